package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// openBelow opens a directory. It fails if a link is in its place.
func openBelow(dir string) (*os.Root, error) {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }()
	root, err := parent.OpenRoot(filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	// A link to something in the parent directory would be followed.
	open, err := root.Stat(".")
	named, nerr := parent.Lstat(filepath.Base(dir))
	if err = errors.Join(err, nerr); err == nil && !os.SameFile(open, named) {
		err = fmt.Errorf("%s is a link: %w", dir, syscall.ENOTDIR)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// Wipe deletes everything below a directory. It fails if a link is in its place. It keeps few
// directories open, however deep they are.
func Wipe(dir string) error {
	root, err := openBelow(dir)
	if err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		err = errors.Join(err, RemoveTree(root, e.Name()))
	}
	if err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	return nil
}

// MovedPrefix begins the names of directories that RemoveTree moves up.
const MovedPrefix = ".kbnode-"

// RemoveTree removes an entry of a directory with everything below it, even what its owner
// closed to itself. It moves nested directories up first, so that none is too deep, however many
// a job has put into each other.
func RemoveTree(root *os.Root, name string) error {
	for todo := []string{name}; len(todo) > 0; {
		name, todo = todo[len(todo)-1], todo[:len(todo)-1]
		info, err := root.Lstat(name)
		if err == nil && info.IsDir() {
			if err = root.Chmod(name, 0o700); err == nil {
				todo, err = moveUp(root, name, todo)
			}
		}
		if err == nil {
			err = root.Remove(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// moveUp empties a directory. It moves nonempty directories in it up to root and appends them to
// todo.
func moveUp(root *os.Root, name string, todo []string) ([]string, error) {
	for {
		entries, err := someOf(root, name)
		if err != nil || len(entries) == 0 {
			return todo, err
		}
		for _, e := range entries {
			entry := name + "/" + e.Name()
			// This fails for a directory that is not empty.
			if err = root.Remove(entry); err != nil && e.IsDir() {
				// Moving a directory changes it, which its mode may forbid.
				moved := MovedPrefix + rand.Text()
				if err = root.Chmod(entry, 0o700); err == nil {
					err = root.Rename(entry, moved)
				}
				todo = append(todo, moved)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return todo, err
			}
		}
	}
}

func someOf(root *os.Root, name string) ([]fs.DirEntry, error) {
	dir, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	entries, err := dir.ReadDir(1024)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}
