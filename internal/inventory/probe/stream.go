package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/text"
)

// maxSampleLine bounds one line, in bytes.
const maxSampleLine = 4 << 10

// Sample is the state of a GPU at one moment, a line of `kbnode-nvml sample`. Values that
// the driver does not report are absent.
type Sample struct {
	Clock       *uint32 `json:"sm_clock_mhz,omitempty"`
	Temperature *uint32 `json:"temperature_c,omitempty"`
	Margin      *int32  `json:"margin_c,omitempty"` // distance to slowing down
	Power       *uint32 `json:"power_mw,omitempty"`
	Busy        *uint32 `json:"busy_percent,omitempty"`
	// Reasons is the bit set of GPU.ClockReasons.
	Reasons *uint64 `json:"clock_reasons,omitempty"`
	// Error means that the driver does not answer for this GPU; it is the last line.
	Error string `json:"error,omitempty"`
}

// Stream samples the GPU of opts at the interval every until ctx is done. One process holds
// the GPU meanwhile, and ends when ctx or this process does. Stream then returns nil, after
// four seconds at the latest. It returns an error if there are no samples, or no more,
// including when none came for opts.Timeout. There is one sampler per GPU at a time,
// including one that hangs in the driver.
func Stream(ctx context.Context, opts Options, every time.Duration, each func(Sample)) error {
	opts.Timeout, opts.runDir = cmp.Or(opts.Timeout, timeout), cmp.Or(opts.runDir, runDir)
	// It does not wait: who has the lock samples, or hangs.
	lock, held := tryLock(filepath.Join(opts.runDir, "sample-"+lockName(opts.GPU)))
	if held {
		return errors.New("an earlier sampler of this GPU has not ended; the GPU may be hung in the driver")
	}
	defer lock.Close() //nolint:errcheck // the child has its own, and closing no file does no harm
	// The end of its input tells the child to end.
	in, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close() //nolint:errcheck // it may be closed already
	s := &sampler{child: child{ended: func() {}}, stdin: stdin, lines: make(chan Sample), wrong: make(chan error, 1), quit: make(chan struct{})}
	err = s.start(opts, lock, func(path string) *exec.Cmd {
		cmd := exec.Command(path, "sample", "--uuid", opts.GPU, "--every", every.String())
		cmd.Env = []string{"GOMAXPROCS=1"} // enough for one line a second
		cmd.Stdin, cmd.Stdout = in, &sampleWriter{to: s}
		return cmd
	})
	_ = in.Close() // the child has its own
	if err != nil {
		return err
	}
	return s.follow(ctx, opts.Timeout, each)
}

// sampler is a child that prints samples while its input is open.
type sampler struct {
	child
	stdin io.Closer
	lines chan Sample
	wrong chan error    // errors in the child's output
	quit  chan struct{} // closed when no one receives lines anymore
}

// follow passes samples to each until ctx is done or the child has ended.
func (s *sampler) follow(ctx context.Context, patience time.Duration, each func(Sample)) error {
	stop := sync.OnceFunc(func() { close(s.quit) })
	defer stop()
	silence := time.NewTimer(patience)
	defer silence.Stop()
	for {
		select {
		case sample := <-s.lines:
			if sample.Error != "" {
				return errors.Join(errors.New(text.Line(sample.Error, 300)), s.end(stop))
			}
			each(sample)
			silence.Reset(patience)
		case err := <-s.wrong:
			return errors.Join(err, s.end(stop))
		case err := <-s.exited:
			select {
			case err = <-s.wrong:
				return err
			default:
				return s.why(err)
			}
		case <-silence.C:
			return errors.Join(fmt.Errorf("the NVML probe sent no sample for %v and was stopped", patience), s.end(stop))
		case <-ctx.Done():
			return s.end(stop)
		}
	}
}

// end closes the child's input, which ends it, or else kills it. It returns an error if not
// even that works.
func (s *sampler) end(stop func()) error {
	stop()
	_ = s.stdin.Close() // it may have ended already
	select {
	case <-s.exited: //nolint:errcheck // it was ended, however that went
		return nil
	case <-time.After(killGrace):
	}
	_, err := s.kill()
	return err
}

// why describes the end of a child that no one ended.
func (s *sampler) why(exit error) error {
	if status, ok := errors.AsType[*exec.ExitError](exit); ok {
		return fmt.Errorf("the NVML probe crashed: %s", s.lastWords(status))
	}
	if exit != nil {
		return fmt.Errorf("run the NVML probe: %w", exit)
	}
	return errors.New("the NVML probe exited on its own")
}

// sampleWriter parses samples from the child's output.
type sampleWriter struct {
	to   *sampler
	rest []byte
}

func (w *sampleWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			break
		}
		var s Sample
		if err := json.Unmarshal(line, &s); err != nil {
			return 0, w.refuse(fmt.Errorf("read a sample: %w", err))
		}
		w.rest = rest
		select {
		case w.to.lines <- s:
		case <-w.to.quit:
			return 0, io.ErrClosedPipe
		}
	}
	if len(w.rest) > maxSampleLine {
		return 0, w.refuse(fmt.Errorf("read a sample: a line of more than %d bytes", maxSampleLine))
	}
	w.rest = bytes.Clone(w.rest)
	return len(p), nil
}

func (w *sampleWriter) refuse(err error) error {
	w.to.wrong <- err
	return err
}
