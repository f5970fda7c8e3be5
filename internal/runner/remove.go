package runner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveAll removes a file or a tree, with what directories in it no one may read. Call it when no
// program can interfere.
func RemoveAll(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return ignoreMissing(err)
	}
	defer parent.Close() //nolint:errcheck // opened for reading
	return removeFrom(parent, filepath.Base(path))
}

// removeFrom removes an entry of a directory. Unlike os.RemoveAll, it does not open a level for each
// level of a tree, of which a program can make more than there may be open files: it moves
// directories up and removes one after another.
func removeFrom(parent *os.File, name string) error {
	at := int(parent.Fd())
	for left := []string{name}; len(left) > 0; {
		name, left = left[len(left)-1], left[:len(left)-1]
		err := unlink(at, name)
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EACCES) {
			return fmt.Errorf("remove %.100s: %w", name, err)
		}
		moved, err := empty(at, name)
		if left = append(left, moved...); err == nil {
			err = unlink(at, name)
		}
		if err != nil {
			return fmt.Errorf("remove directory %.100s: %w", name, err)
		}
	}
	return nil
}

// unlink removes a file or an empty directory. It is no error if there is none.
func unlink(at int, name string) error {
	err := unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	return ignoreMissing(err)
}

// empty removes what is in a directory, and moves directories that are not empty to its parent. It
// returns their names there.
func empty(at int, name string) (moved []string, err error) {
	_ = unix.Fchmodat(at, name, 0o700, 0) // an error is one to open it, too
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close() //nolint:errcheck // opened for reading
	names, err := dir.Readdirnames(-1)
	for _, n := range names {
		if unlink(fd, n) == nil {
			continue
		}
		to := ".removing-" + rand.Text()
		// Its owner must be able to write to a directory to move it.
		_ = unix.Fchmodat(fd, n, 0o700, 0)
		if rerr := unix.Renameat(fd, n, at, to); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		moved = append(moved, to)
	}
	return moved, err
}
