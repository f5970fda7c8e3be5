// Package tree removes what a job left, however deep it is and whatever its modes.
package tree

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// MovedPrefix begins the names of directories that Remove moves up.
const MovedPrefix = ".kbnode-"

// RemoveAll removes a file or a tree by its path.
func RemoveAll(path string) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(Remove(root, filepath.Base(path)), root.Close())
}

// Remove removes an entry of a directory with everything below it, even what its owner
// closed to itself. It moves nested directories up first, so that none is too deep, however many
// a job has put into each other. It goes on after an error, as where a full disk has no room for a name, and tries
// again as long as something was removed.
func Remove(root *os.Root, name string) error {
	for todo := []string{name}; ; {
		var failed []string
		var failure error
		progress := false
		for len(todo) > 0 {
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
			if err == nil {
				progress = true
			} else if !errors.Is(err, fs.ErrNotExist) {
				failed, failure = append(failed, name), err
			}
		}
		if len(failed) == 0 || !progress {
			return failure
		}
		todo = failed
	}
}

// moveUp empties a directory. It moves nonempty directories in it up to root and appends them to
// todo.
func moveUp(root *os.Root, name string, todo []string) ([]string, error) {
	for {
		some, err := moveSome(root, name, &todo)
		if err != nil || !some {
			return todo, err
		}
	}
}

// moveSome is moveUp for what one reading of the directory finds, and reports whether that was anything: a file
// system may skip some while others are removed. It does not begin again after each part: ext4 keeps the blocks of
// what was removed, and to read those of a large directory each time takes hours.
func moveSome(root *os.Root, name string, todo *[]string) (some bool, err error) {
	below, err := root.OpenRoot(name)
	if err != nil {
		return false, err
	}
	defer func() { _ = below.Close() }()
	dir, err := below.Open(".")
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }()
	for {
		entries, err := dir.ReadDir(1024)
		if errors.Is(err, io.EOF) {
			return some, nil
		}
		for _, e := range entries {
			some = true
			// This fails for a directory that is not empty.
			err := below.Remove(e.Name())
			if err != nil && e.IsDir() {
				// Moving a directory changes it, which its mode may forbid.
				entry, moved := name+"/"+e.Name(), MovedPrefix+rand.Text()
				if err = root.Chmod(entry, 0o700); err == nil {
					err = root.Rename(entry, moved)
				}
				if err != nil { // without room for another name
					moved = entry
				}
				*todo = append(*todo, moved)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return some, err
			}
		}
		if err != nil {
			return some, err
		}
	}
}
