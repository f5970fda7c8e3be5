package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// kind is who holds a slot.
type kind int64

const (
	holderAgent kind = iota + 1 // a job of the agent's
	holderRoot                  // one of root's, which ends for each other holder
	holderClear                 // clearing, before the agent starts
)

// holder is the process that holds a slot; its PID is 0 if there is none. The length of the range of the lock file that it
// locks says both. So who waits learns them from the kernel, which forgets them with the lock: what a holder writes into a
// file names it before the next one has written, and after it was killed.
type holder struct {
	kind kind
	pid  int
}

const kindBits = 2

func (h holder) lock(f *os.File) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: int64(h.pid)<<kindBits | int64(h.kind)})
}

// unlock also ends the lock that a child which has not executed its program yet has with this process.
func unlock(f *os.File) {
	_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
	hangUp(f)
}

func holderOf(f *os.File) holder {
	lock := unix.Flock_t{Type: unix.F_WRLCK} // length 0 is all of the file
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return holder{}
	}
	return holder{kind(lock.Len & (1<<kindBits - 1)), int(lock.Len >> kindBits)}
}

// signalHolder signals the process that holds a slot, if it still does.
func signalHolder(f *os.File, h holder, signal syscall.Signal) {
	process, err := unix.PidfdOpen(h.pid, 0)
	if err != nil {
		return // it has ended
	}
	defer func() { _ = unix.Close(process) }()
	if holderOf(f) == h { // else the PID may have been another process's already
		_ = unix.PidfdSendSignal(process, signal, nil, 0)
	}
}

const (
	// handover is how long a job that is over, or root's, may take to end before the next one.
	handover = 2 * time.Minute
	// killTime is how long it may take after SIGKILL.
	killTime = 5 * time.Second
	// lockPoll is the time between two tries.
	lockPoll = 50 * time.Millisecond
)

// handoverOf is handover for a slot whose clearing may run hooks.
func handoverOf(p plan.JobPolicy) time.Duration { return handover + 2*p.HookLimit() }

// errBusy means that the slot is not free for a job of root's.
var errBusy = errors.New("the slot has a job, which goes first")

// hold makes this process the only one that may change what the slot runs, until it calls release or ends, however it
// ends: the kernel then releases the lock. It waits for the holder before, ends a job of root's, and kills
// one that takes too long. Root's own waits for no one.
func (g *guard) hold(ctx context.Context, who kind) (release func(), err error) {
	f, err := os.OpenFile(g.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hold the slot: %w", err)
	}
	defer func() {
		if err != nil {
			hangUp(f)
		}
	}()
	var before, asked, killed holder
	var late time.Time
	for {
		err = holder{who, os.Getpid()}.lock(f)
		if err == nil {
			return func() { unlock(f) }, nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("hold the slot: %w", err)
		}
		h := holderOf(f)
		if late.IsZero() || h != before { // each holder has its time
			before, late = h, time.Now().Add(g.handover)
		}
		switch {
		case who == holderRoot:
			return nil, errBusy
		case time.Now().After(late.Add(killTime)):
			return nil, fmt.Errorf("process %d still holds the slot after SIGKILL; if a driver holds it, only a reboot frees it", h.pid)
		case time.Now().After(late) && killed != h: // its client waits no longer
			killed = h
			g.signal(f, h, unix.SIGKILL)
		case h.kind == holderRoot && asked != h:
			asked = h
			g.signal(f, h, unix.SIGTERM)
		}
		if err := limit.Sleep(ctx, lockPoll); err != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// lockFile is the file in the slot's run directory that its holder locks.
func (g *guard) lockFile() string { return filepath.Join(g.runDir(), "lock") }

// holder returns who holds the slot.
func (g *guard) holder() holder {
	f, err := os.Open(g.lockFile())
	if err != nil {
		return holder{}
	}
	defer hangUp(f)
	return holderOf(f)
}
