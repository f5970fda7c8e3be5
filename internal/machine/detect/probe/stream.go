package probe

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxSampleLine bounds one line, in bytes.
const maxSampleLine = 4 << 10

// Stream samples the GPU of opts at the interval every until ctx is done. One process holds
// the GPU meanwhile, and ends when ctx or this process does. Stream then returns nil, after
// four seconds at the latest. It returns an error if there are no samples, or no more. There
// is one sampler per GPU at a time, including one that hangs in the driver.
func Stream(ctx context.Context, opts Options, every time.Duration, each func(nvml.Sample)) error {
	opts.runDir = cmp.Or(opts.runDir, runDir)
	// It does not wait: who has the lock samples, or hangs.
	lock, held := tryLock(filepath.Join(opts.runDir, "sample-"+lockName(opts.GPU)))
	if held {
		return errors.New("an earlier sampler of this GPU has not ended; the GPU may be hung in the driver")
	}
	defer lock.Close() //nolint:errcheck // the child has its own, and closing no file does no harm
	// The end of its input tells the child to end.
	in, stdin, err1 := os.Pipe()
	stdout, out, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer stdin.Close()  //nolint:errcheck // it may be closed already
	defer stdout.Close() //nolint:errcheck // only read
	s := &sampler{child: child{ended: func() {}}, stdin: stdin, stdout: stdout}
	err := s.start(opts, lock, func(path string) *exec.Cmd {
		cmd := exec.Command(path, "sample", "--uuid", opts.GPU, "--every", every.String())
		cmd.Env = []string{"GOMAXPROCS=1"} // enough for one line a second
		cmd.Stdin, cmd.Stdout = in, out
		return cmd
	})
	_, _ = in.Close(), out.Close() // the child has its own
	if err != nil {
		return err
	}
	if err := s.follow(ctx, each); err != nil {
		return errors.Join(err, s.end())
	}
	return s.end()
}

// sampler is a child that prints samples while its input is open.
type sampler struct {
	child
	stdin, stdout *os.File
}

// follow passes samples to each until ctx is done, or the child has ended or is of no use.
func (s *sampler) follow(ctx context.Context, each func(nvml.Sample)) error {
	defer context.AfterFunc(ctx, func() { _ = s.stdout.SetReadDeadline(time.Unix(1, 0)) })() // a pipe has deadlines
	lines := bufio.NewReaderSize(s.stdout, maxSampleLine)
	for {
		line, err := lines.ReadSlice('\n')
		var sample nvml.Sample
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			return s.why()
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read a sample: a line of more than %d bytes", maxSampleLine)
		case err == nil:
			err = json.Unmarshal(line, &sample)
		}
		if err != nil {
			return fmt.Errorf("read a sample: %w", err)
		}
		if sample.Error != "" {
			return errors.New(text.Line(sample.Error, 300))
		}
		each(sample)
	}
}

// end closes the child's input, which ends it, or else kills it. It returns an error if not
// even that works.
func (s *sampler) end() error {
	_ = s.stdin.Close()
	select {
	case <-s.exited: //nolint:errcheck // it was ended, however that went
		return nil
	case <-time.After(killGrace):
	}
	_, err := s.kill()
	return err
}

// why describes the end of a child that no one ended. Its output has ended.
func (s *sampler) why() error {
	select {
	case exit := <-s.exited:
		close(s.exited) // end need not wait
		if status, ok := errors.AsType[*exec.ExitError](exit); ok {
			return fmt.Errorf("%w: %s", errCrashed, s.lastWords(status))
		}
		if exit != nil {
			return fmt.Errorf("run the NVML probe: %w", exit)
		}
	case <-time.After(killGrace):
	}
	return errors.New("the NVML probe ended its samples")
}
