// Package reconcile makes a machine match its plan: Observe reads, Diff compares, Apply
// writes. It is the only package that changes the machine, and it does not decide what
// the machine should be like.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// Host is the machine that is observed and changed.
type Host struct {
	Root    string          // "/", or a directory that holds a machine's tree
	Systemd systemd.Manager // nil: a tree without a running system, in which no unit exists
	Users   Users           // of Apply
	Network Network         // nil: networks are left alone
	Log     *slog.Logger    // nil logs nothing

	// GPUs is what this pass has read of the GPUs. If empty, their settings are left
	// alone.
	GPUs []inventory.GPU
	// SetGPU changes a setting that NVIDIA's driver keeps; nil means probe.Set.
	SetGPU func(ctx context.Context, s nvml.Setting) error

	// Adopt replaces files that kbnode did not write, and keeps a backup.
	Adopt bool
	// Now stops agents in the middle of their jobs if a change needs it.
	Now bool
	// Progress, if set, is called with each change before it is made.
	Progress func(Change)
	// Sleep waits between two looks at the jobs that Uninstall waits for; nil waits in
	// real time.
	Sleep func(ctx context.Context, d time.Duration) error

	// sockets makes Observe check the slots' sockets in a tree, too.
	sockets bool

	// step, if set, is called before each change of the machine, with words that name it.
	// An error is returned as if the change had failed. Tests interrupt here.
	step func(words string) error
}

func (h *Host) path(elem ...string) string {
	return filepath.Join(append([]string{h.Root}, elem...)...)
}

func (h *Host) log() *slog.Logger {
	if h.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Log
}

// callStep calls step, if set.
func (h *Host) callStep(words ...string) error {
	if h.step == nil {
		return nil
	}
	return h.step(strings.Join(words, " "))
}

// canChown reports whether this process can give files to their owners.
func canChown() bool { return os.Geteuid() == 0 }

// Lock keeps every other kbnode from changing the machine until release is called or the
// process ends. The error is a *LockedError if another kbnode holds the lock.
func (h *Host) Lock() (release func(), err error) { return h.lock(plan.LockPath) }

// LockFile keeps other processes out until release is called or this process ends. The
// error is a *LockedError if another process holds the lock.
func LockFile(name string) (release func(), err error) { return (&Host{Root: "/"}).lock(name) }

func (h *Host) lock(file string) (release func(), err error) {
	name := h.path(file)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // /run is for all to read
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := h.callStep("flock", file); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			holder, _ := io.ReadAll(io.LimitReader(f, 32))
			_ = f.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: %w", name, err)
			}
			return nil, &LockedError{PID: strings.TrimSpace(string(holder))}
		}
		// The previous holder deletes the file on release: a lock on a file without a
		// name keeps no one out.
		if !sameFile(f, name) {
			_ = f.Close()
			continue
		}
		if f.Truncate(0) == nil { // a full disk must not keep us out
			_, _ = f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
		}
		return func() {
			_ = os.Remove(name)
			// A child that has not executed its program yet also holds the file for a moment.
			_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
			_ = f.Close()
		}, nil
	}
}

func sameFile(f *os.File, name string) bool {
	a, errA := f.Stat()
	b, errB := os.Lstat(name)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// LockedError means that another kbnode is changing the machine.
type LockedError struct {
	PID string // of the other kbnode; "" if unknown
}

func (e *LockedError) Error() string {
	if e.PID == "" {
		return "another kbnode is changing this machine; try again when it is done"
	}
	return fmt.Sprintf("another kbnode (pid %s) is changing this machine; try again when it is done", e.PID)
}

// exists reports whether a path exists, without following a link.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}
