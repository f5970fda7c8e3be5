package runner

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stamp tells a file from a changed one. The time of its last change does, which no program without
// CAP_SYS_TIME can set, and on a tmpfs its content: there, writing to mapped memory does not always
// change the time. Of a directory, it has all that a program could keep there for the next one.
type stamp struct {
	mode   fs.FileMode
	owner  [2]uint32           // user and group
	times  [2]syscall.Timespec // of a directory: of access and modification
	size   int64
	inode  uint64
	change syscall.Timespec  // of a directory: only outside of the job's, where atime may change by itself
	sum    [sha256.Size]byte // on a tmpfs
}

// same reports whether nothing was done to a file. To read a directory may change when that was, and to put that
// back copies a directory of an image's layer.
func (s stamp) same(now stamp) bool {
	return s == now || s.mode.IsDir() && now.mode.IsDir() && s.change == now.change && s.change != syscall.Timespec{}
}

// stampOf looks at a file of an area, and at its content if content is set and it is on a tmpfs.
func (e *engine) stampOf(a *area, name string, info fs.FileInfo, content bool) (stamp, error) {
	s := stamp{mode: info.Mode()}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return s, nil
	}
	s.owner = [2]uint32{st.Uid, st.Gid}
	if info.IsDir() {
		s.times = [2]syscall.Timespec{st.Atim, st.Mtim}
		if a.kind == containerArea {
			s.change = st.Ctim
		}
		return s, nil
	}
	s.size, s.inode, s.change = info.Size(), st.Ino, st.Ctim
	if !content || a.kind == foreignArea || !info.Mode().IsRegular() || !e.onTmpfs(name, st.Dev) {
		return s, nil
	}
	var err error
	if s.sum, err = sumOf(name); errors.Is(err, fs.ErrPermission) {
		err = nil // programs, which are the same user, cannot map it either
	}
	return s, err
}

// onTmpfs reports whether a file's device is a tmpfs.
func (e *engine) onTmpfs(name string, device uint64) bool {
	on, ok := e.tmpfs[device]
	if !ok {
		var st unix.Statfs_t
		on = unix.Statfs(name, &st) != nil || st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
		e.tmpfs[device] = on
	}
	return on
}

// sumOf hashes a regular file.
func sumOf(name string) (sum [sha256.Size]byte, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return sum, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// restore puts back what a directory had, so that it can be read. Its own changes are no matter where the user may not
// undo them.
func (s stamp) restore(dir string, now stamp) error {
	var errs []error
	if s.owner != now.owner {
		errs = append(errs, os.Lchown(dir, int(s.owner[0]), int(s.owner[1])))
	}
	if s.mode != now.mode {
		errs = append(errs, os.Chmod(dir, s.mode))
	}
	errs = append(errs, s.setTimes(dir))
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil || errors.Is(err, fs.ErrPermission) })...)
}

// setTimes puts back the times. Where others own the directory, as they do /dev/shm, it makes them those of this moment: a program
// chose when it wrote there last.
func (s stamp) setTimes(dir string) error {
	err := os.Chtimes(dir, time.Unix(s.times[0].Unix()), time.Unix(s.times[1].Unix()))
	if errors.Is(err, fs.ErrPermission) {
		now := unix.Timespec{Nsec: unix.UTIME_NOW}
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW) // as far as it may
	}
	return err
}

// settle puts back the mode and the times of a directory that is done, as far as the user may, and notes when.
func (s *stamp) settle(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	timed := s.change != syscall.Timespec{}
	if !ok || timed && s.change == st.Ctim {
		return nil
	}
	if info.Mode() != s.mode {
		err = os.Chmod(dir, s.mode)
	}
	// Always in the job's directory, or the time of the last change says whether a program did something here, and when.
	if differ := s.times != [2]syscall.Timespec{st.Atim, st.Mtim}; err == nil && (differ || !timed) {
		if terr := s.setTimes(dir); differ {
			err = terr
		}
	}
	if info, lerr := os.Lstat(dir); timed && lerr == nil {
		s.change = info.Sys().(*syscall.Stat_t).Ctim
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return ignoreMissing(err)
}
