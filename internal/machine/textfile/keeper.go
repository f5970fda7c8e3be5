package textfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// RecordPath lists the directories that may have the file, so that the next daemon, or an uninstall, removes what one left
// that was killed.
const RecordPath = "/var/lib/kbnode/textfile.json"

// maxRecord bounds the record, in bytes.
const maxRecord = 64 << 10

// ReadRecord returns the directories that may have the file, on the machine below root.
func ReadRecord(root string) ([]string, error) {
	text, err := limit.ReadFile(filepath.Join(root, RecordPath), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var dirs []string
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", RecordPath, err)
	}
	if err := json.Unmarshal(text, &dirs); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", RecordPath, errBroken, err)
	}
	return dirs, nil
}

// errBroken means that the record will not be of use later, either.
var errBroken = errors.New("it is broken")

// Keeper keeps the file in at most one directory.
type Keeper struct {
	Root string

	dirs     []string // that may have the file
	recorded []string // dirs, as in the record
	read     bool     // the record
}

// Keep writes the file to a directory, "" for none, and removes it from others that have it. What fails is tried again with
// the next call. A file that cannot be replaced stays: its age shows.
func (k *Keeper) Keep(dir string, content []byte) error {
	var errs []error
	if !k.read {
		dirs, err := ReadRecord(k.Root)
		errs = append(errs, err)
		for _, d := range dirs {
			if !slices.Contains(k.dirs, d) {
				k.dirs = append(k.dirs, d)
			}
		}
		// A broken one is written again. One that cannot be read now may name directories.
		k.recorded, k.read = dirs, err == nil || errors.Is(err, errBroken)
	}
	k.dirs = slices.DeleteFunc(slices.Clone(k.dirs), func(old string) bool {
		if old == dir {
			return true
		}
		err := removeFrom(k.Root, old)
		if errors.Is(err, errNone) {
			return false // its file system may be mounted later, with the file
		}
		errs = append(errs, err)
		return err == nil
	})
	if dir != "" {
		k.dirs = append(k.dirs, dir)
	}
	if k.read && !slices.Equal(k.dirs, k.recorded) {
		errs = append(errs, k.record()) // first: who is killed now leaves no file that no one knows of
	}
	if dir != "" {
		errs = append(errs, Write(k.Root, dir, content))
	}
	return errors.Join(errs...)
}

func (k *Keeper) record() error {
	file := filepath.Join(k.Root, RecordPath)
	if len(k.dirs) == 0 {
		err := os.Remove(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", RecordPath, err)
		}
		k.recorded = nil
		return nil
	}
	text, err := json.Marshal(k.dirs)
	if err == nil {
		err = renameio.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", RecordPath, err)
	}
	k.recorded = slices.Clone(k.dirs)
	return nil
}
