package checkout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/limit"
)

// Each mirror has a lock file beside it, out of reach of git's user. One of its bytes is locked by
// who fetches. The other is locked by all who use the mirror, or by the one who removes it. Its time
// is that of the last use. The locks end with their holder.
const (
	fetchByte = iota
	useByte
	lockSuffix = ".lock"
	gitSuffix  = ".git"
)

// lockPoll is the time between two tries to lock a mirror.
const lockPoll = 20 * time.Millisecond

var errBusy = errors.New("in use")

type lockFile struct{ f *os.File }

// lock waits until no one removes a mirror and, to fetch, until no one else fetches.
func (m Mirrors) lock(ctx context.Context, name string, fetch bool) (*lockFile, error) {
	for {
		l, err := m.openLock(name)
		if err != nil {
			return nil, err
		}
		if fetch {
			err = l.wait(ctx, unix.F_WRLCK, fetchByte)
		}
		if err == nil {
			err = l.wait(ctx, unix.F_RDLCK, useByte)
		}
		if err == nil && l.current() {
			return l, nil
		}
		l.close()
		if err != nil {
			return nil, err
		}
	}
}

// tryLock locks a mirror that no one uses, or returns errBusy.
func (m Mirrors) tryLock(name string) (*lockFile, error) {
	l, err := m.openLock(name)
	if err != nil {
		return nil, err
	}
	if err = l.try(unix.F_WRLCK, fetchByte); err == nil {
		err = l.try(unix.F_WRLCK, useByte)
	}
	if err == nil && !l.current() {
		err = errBusy
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (m Mirrors) openLock(name string) (*lockFile, error) {
	f, err := os.OpenFile(filepath.Join(m.Dir, name+lockSuffix), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock a mirror: %w; run kbnode reconcile", err)
	}
	return &lockFile{f}, nil
}

// wait waits for one byte's lock, or changes the one that this file has.
func (l *lockFile) wait(ctx context.Context, how int16, at int64) error {
	for {
		err := l.try(how, at)
		if !errors.Is(err, errBusy) {
			return err
		}
		if err := limit.Sleep(ctx, lockPoll); err != nil {
			return fmt.Errorf("lock a mirror: %w", err)
		}
	}
}

func (l *lockFile) try(how int16, at int64) error {
	err := unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Start: at, Len: 1})
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return errBusy
	case err != nil:
		return fmt.Errorf("lock a mirror: %w", err)
	}
	return nil
}

// current reports whether the file is still the mirror's lock: who removes a mirror removes its lock.
func (l *lockFile) current() bool {
	ours, err1 := l.f.Stat()
	there, err2 := os.Lstat(l.f.Name())
	return err1 == nil && err2 == nil && os.SameFile(ours, there)
}

// touch notes that the mirror is used now.
func (l *lockFile) touch() {
	now := time.Now()
	_ = os.Chtimes(l.f.Name(), now, now) // it is removed a little too early
}

func (l *lockFile) close() { _ = l.f.Close() } // closing twice does no harm
