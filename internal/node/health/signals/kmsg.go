package signals

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	kmsgPath = "/dev/kmsg"
	// A record is at most 8 KiB (PRINTKRB_RECORD_MAX and CONSOLE_EXT_LOG_MAX); a shorter
	// buffer gets EINVAL.
	kmsgBuffer = 32 << 10
	kmsgGather = 50 * time.Millisecond // limits how often a burst of lines wakes the daemon
)

// Kmsg reads the kernel's log.
type Kmsg struct {
	Path string // "" is /dev/kmsg; a FIFO or a recorded file in tests
	Once bool   // stop after the existing lines
}

// Run calls each with the Facts of all lines since the boot and then, unless Once is set,
// of each new line, until ctx ends or, with a recorded file, the file does. Judge skips
// those that its State already has. The error is that the log cannot be read.
func (k Kmsg) Run(ctx context.Context, each func(health.Fact)) error {
	f, live, err := openKmsg(k.Path)
	if err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) }) // a regular file has no deadlines
	defer stop()
	log := &kmsgReader{raw: raw, once: k.Once, waited: live}
	lines := bufio.NewReaderSize(log, kmsgBuffer)
	var overrun, long bool
	var reported time.Duration // of the last overrun
	for {
		line, err := lines.ReadSlice('\n')
		up, _ := uptime() // it does not fail
		switch {
		case ctx.Err() != nil || errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			long = true // not the kernel's; neither is the rest
			continue
		case errors.Is(err, unix.EPIPE):
			// The next read continues with the oldest line that is left.
			if !overrun || up-reported > time.Minute {
				overrun, reported = true, up
				each(health.Fact{Up: up, Kind: health.KindOverrun, Text: "lines of the kernel log were lost: there were too many to read"})
			}
			continue
		case err != nil:
			return fmt.Errorf("read kernel log: %w", err)
		}
		fact, ok := health.Parse(bytes.TrimSuffix(line, []byte("\n")))
		if ok && !long {
			// The kernel stamps lines by a clock that is never corrected and is minutes off
			// after months. Lines that came while we waited came now.
			if log.waited || fact.Up > up {
				fact.Up = up
			}
			each(fact)
		}
		long = false
		if log.waits && lines.Buffered() == 0 && limit.Sleep(ctx, kmsgGather) != nil {
			return nil
		}
	}
}

// kmsgReader reads without blocking a thread. /dev/kmsg returns one record at a time, pipes
// and files return pieces.
type kmsgReader struct {
	raw    syscall.RawConn
	once   bool // no more to read is the end
	waits  bool // the last read waited
	waited bool // some read did
}

func (r *kmsgReader) Read(p []byte) (n int, err error) {
	var cause error
	r.waits = false
	err = r.raw.Read(func(fd uintptr) bool {
		for cause = unix.EINTR; errors.Is(cause, unix.EINTR); {
			n, cause = unix.Read(int(fd), p)
		}
		r.waits = r.waits || errors.Is(cause, unix.EAGAIN)
		return r.once || !errors.Is(cause, unix.EAGAIN)
	})
	r.waited = r.waited || r.waits
	switch {
	case err != nil:
		return 0, err
	case cause == nil && n == 0 || errors.Is(cause, unix.EAGAIN):
		return 0, io.EOF
	}
	return max(n, 0), cause
}

// openKmsg opens the log; live means that it has no past lines.
func openKmsg(path string) (f *os.File, live bool, err error) {
	if path == "" {
		path = kmsgPath
	}
	mode := os.O_RDONLY
	if fi, err := os.Stat(path); err == nil && fi.Mode()&os.ModeNamedPipe != 0 {
		mode, live = os.O_RDWR, true // does not end when its writer does
	}
	f, err = os.OpenFile(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	return f, live, err
}
