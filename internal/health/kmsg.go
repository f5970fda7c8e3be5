package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/limit"
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
func (k Kmsg) Run(ctx context.Context, each func(Fact)) error {
	f, live, err := openKmsg(k.Path)
	if err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	var overrun bool
	var reported time.Duration                                                        // of the last overrun
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) }) // a regular file has no deadlines
	defer stop()

	r := records{each: func(record []byte) {
		f, ok := Parse(record)
		if !ok {
			return
		}
		// The kernel stamps lines by a clock that is never corrected and is minutes off
		// after months. Lines that came while we waited came now.
		if up, err := uptime(); err == nil && (live || f.Up > up) {
			f.Up = up
		}
		each(f)
	}}
	for {
		var n int
		var cause error
		waited := false
		err := raw.Read(func(fd uintptr) bool {
			n, cause = unix.Read(int(fd), r.room())
			waited = waited || errors.Is(cause, unix.EAGAIN)
			return k.Once || !errors.Is(cause, unix.EAGAIN)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read kernel log: %w", err)
		case errors.Is(cause, unix.EINTR):
			continue
		case k.Once && errors.Is(cause, unix.EAGAIN):
			return nil
		case errors.Is(cause, unix.EPIPE):
			// The next read continues with the oldest line that is left.
			if up, err := uptime(); err == nil && (!overrun || up-reported > time.Minute) {
				overrun, reported = true, up
				each(Fact{Up: up, Kind: KindOverrun, Text: "lines of the kernel log were lost: there were too many to read"})
			}
			continue
		case cause != nil:
			return fmt.Errorf("read kernel log: %w", cause)
		case n == 0:
			return nil
		}
		live = live || waited
		r.add(n)
		if waited {
			if limit.Sleep(ctx, kmsgGather) != nil {
				return nil
			}
		}
	}
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

// records splits input into lines. /dev/kmsg returns one record at a time, pipes and
// files return pieces.
type records struct {
	each func([]byte)
	buf  [kmsgBuffer]byte
	n    int
	skip bool // the rest of a line was too long
}

func (r *records) room() []byte {
	if r.n > len(r.buf)/2 {
		r.n, r.skip = 0, true // no line is this long
	}
	return r.buf[r.n:]
}

func (r *records) add(n int) {
	r.n += n
	rest := r.buf[:r.n]
	for {
		line, after, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			break
		}
		if !r.skip {
			r.each(line)
		}
		r.skip, rest = false, after
	}
	r.n = copy(r.buf[:], rest)
}
