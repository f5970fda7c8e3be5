package checkout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// Each mirror has two lock files beside it, out of reach of git's user. Who fetches has that of
// fetchSuffix alone (unix.LOCK_EX), and others unpack commits meanwhile. All of them share that of
// lockSuffix (unix.LOCK_SH); who makes the mirror again or removes it has it alone. A lock ends
// with its holder.
const (
	lockSuffix  = ".lock"
	fetchSuffix = ".fetch"
	gitSuffix   = ".git"
	spare       = "-new" // ends the name of what replaces a damaged mirror
)

// lockPoll is the time between two tries to lock a mirror.
const lockPoll = 20 * time.Millisecond

var errBusy = errors.New("in use")

// lock waits until it has a lock file. Closing the file gives it back.
func (m Mirrors) lock(ctx context.Context, file string, how int) (*os.File, error) {
	for {
		f, err := m.tryLock(file, how)
		if !errors.Is(err, errBusy) {
			return f, err
		}
		if err := limit.Sleep(ctx, lockPoll); err != nil {
			return nil, fmt.Errorf("lock a mirror: %w", err)
		}
	}
}

// tryLock returns errBusy if others have the lock.
func (m Mirrors) tryLock(file string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(m.Dir, file), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock a mirror: %w; run kbnode reconcile", err)
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	ours, err1 := f.Stat()
	there, err2 := os.Lstat(f.Name())
	switch {
	case errors.Is(err, unix.EWOULDBLOCK), err == nil && (err1 != nil || err2 != nil || !os.SameFile(ours, there)):
		err = errBusy // who removes a mirror removes its lock
	case err != nil:
		err = fmt.Errorf("lock a mirror: %w", err)
	default:
		return f, nil
	}
	unlock(f)
	return nil, err
}

// unlock may be called twice. Closing alone would leave the lock to a child that was just forked and
// has this process's files open until it executes its program.
func unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}
