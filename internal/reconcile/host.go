// Package reconcile makes a machine what its plan says: Observe reads, Diff
// compares, Apply writes. It is the only package that changes the machine, and
// it decides nothing about what should be true of it.
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

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Host is the machine that is observed and changed.
type Host struct {
	Root    string  // "/", or a directory that holds a machine's tree
	Systemd Systemd // nil: a tree without a running system, in which no unit exists
	Users   Users
	Network Network      // nil: it is left alone
	Log     *slog.Logger // nil logs nothing

	// GPUs are what was read of them in this pass. Without, the settings of GPUs
	// are left alone.
	GPUs []inventory.GPU
	// SetGPU changes a setting that NVIDIA's driver keeps; nil is probe.Set.
	SetGPU func(ctx context.Context, s probe.Setting) error

	// Adopt replaces files that kbnode did not write, and keeps a backup.
	Adopt bool
	// Now stops agents in the middle of their jobs where a change needs it.
	Now bool
	// Progress, where set, is told of each change before it is made.
	Progress func(Change)
	// StopTimeout bounds the wait for an agent that runs no job; 0 means 15 s.
	// One that took a job meanwhile is left to finish it.
	StopTimeout time.Duration
	// KillTimeout is how long a job has to end when Now is set, before it is
	// killed; 0 means 60 s. The agent itself gives it about 10 s of them.
	KillTimeout time.Duration
	// Sleep waits between two looks at jobs that Uninstall waits for; nil waits
	// for real.
	Sleep func(ctx context.Context, d time.Duration) error

	// sockets says that guards listen in a tree, too.
	sockets bool

	// step, where set, is called before each change of the machine, with words
	// that name it; an error is returned as if the change had failed. Tests
	// interrupt here.
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

// before announces a change of the machine to a test.
func (h *Host) before(words ...string) error {
	if h.step == nil {
		return nil
	}
	return h.step(strings.Join(words, " "))
}

// canChown says that files can be given to their owners.
func canChown() bool { return os.Geteuid() == 0 }

// Lock keeps every other kbnode from changing the machine until release is
// called or the process ends. The error says who holds it.
func (h *Host) Lock() (release func(), err error) { return h.lock(plan.LockPath) }

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
		if err := h.before("flock", file); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			holder, _ := io.ReadAll(io.LimitReader(f, 32))
			_ = f.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: %w", file, err)
			}
			return nil, &LockedError{PID: strings.TrimSpace(string(holder))}
		}
		// Whoever held it before has deleted the file on release: a lock on a
		// file without a name keeps nobody out.
		if !sameFile(f, name) {
			_ = f.Close()
			continue
		}
		if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
			h.log().Warn("lock does not name its holder", "path", name, "err", err) // a full disk must not keep us out
		}
		return func() {
			_ = os.Remove(name)
			_ = f.Close()
		}, nil
	}
}

func sameFile(f *os.File, name string) bool {
	a, errA := f.Stat()
	b, errB := os.Lstat(name)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// LockedError says that another kbnode changes the machine at the moment.
type LockedError struct {
	PID string // of the other one; "" if it did not say
}

func (e *LockedError) Error() string {
	if e.PID == "" {
		return "another kbnode is changing this machine; try again when it is done"
	}
	return fmt.Sprintf("another kbnode (pid %s) is changing this machine; try again when it is done", e.PID)
}

// exists says whether a path is there, without following a link.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}
