package task

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/text"
)

// Bounds of a search for problems: the entries of a directory, and how many problems an
// error names.
const (
	maxEntries = 1000
	maxNamed   = 12
)

// Find reads a problem as Read does, or the example of that name if there is no such
// directory or file. The error for a name that is neither tells which are, the near ones
// first.
func Find(name string) (*Task, error) {
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		file := filepath.Join(name, FileName)
		_, err := os.Stat(file)
		switch {
		case !errors.Is(err, fs.ErrNotExist):
			return Read(name)
		case slices.Contains(Examples(), name):
			return nil, fmt.Errorf("%s does not exist; add it, or work in another directory to use the example %s", file, name)
		}
		return nil, fmt.Errorf("%s does not exist; %s", file, instead(name))
	case !errors.Is(err, fs.ErrNotExist):
		return Read(name)
	case slices.Contains(Examples(), name):
		return ReadFS(examples.Files, name)
	}
	return nil, fmt.Errorf("%s is neither an example nor a directory; %s", quote(name), instead(name))
}

// Examples returns the names of the problems that kbnode carries along.
func Examples() (names []string) {
	entries, _ := examples.Files.ReadDir(".")
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// Name returns the name of the problem's directory.
func (t *Task) Name() string {
	if dir, err := filepath.Abs(t.Dir); err == nil && t.Root == nil {
		return filepath.Base(dir)
	}
	return filepath.Base(t.Dir)
}

// FS returns the problem's directory, for what task.yml does not name.
func (t *Task) FS() fs.FS {
	if t.Root == nil {
		return os.DirFS(t.Dir)
	}
	dir, err := fs.Sub(t.Root, t.Dir)
	if err != nil {
		return t.Root // never: task.yml was read from Dir
	}
	return dir
}

// Choice says what the name of a problem may be.
const Choice = "a directory with a " + FileName + ", or the name of an example"

// instead returns what to write for the name of a problem that is none.
func instead(name string) string {
	name = filepath.Clean(name)
	if below := problemsIn(name); len(below) > 0 {
		return "write a problem in it: " + named(below, " or ")
	}
	all := Examples()
	var similar []string
	// The name of an example is not a path, so its directory may be anywhere.
	for _, known := range slices.Concat(problemsIn(filepath.Dir(name)), all) {
		if isSimilar(filepath.Base(name), filepath.Base(known)) {
			similar = append(similar, known)
		}
	}
	if len(similar) > 0 {
		return "write " + named(similar, " or ") + "; the examples are " + named(all, ", ")
	}
	return "name a directory that has a " + FileName + ", or an example: " + named(all, ", ")
}

// problemsIn returns the paths of a directory's subdirectories that are problems, in order.
func problemsIn(dir string) (paths []string) {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()                        //nolint:errcheck // opened for reading
	names, _ := f.Readdirnames(maxEntries) // an error means that there are fewer to name
	slices.Sort(names)
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name, FileName)); err == nil && info.Mode().IsRegular() {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}

// isSimilar reports whether a word may mean a name: a typo of it, a part of it, or the name with
// other separators.
func isSimilar(word, name string) bool {
	plain := strings.NewReplacer("-", "", "_", "", " ", "").Replace
	word, name = strings.ToLower(plain(word)), strings.ToLower(plain(name))
	return text.Edits(word, name) < 3 || len(word) > 2 && (strings.Contains(name, word) || strings.Contains(word, name))
}

// named lists names for an error, with last before the last one.
func named(names []string, last string) string {
	more := ""
	if n := len(names) - maxNamed; n > 0 {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	var shown []string
	for _, name := range names {
		shown = append(shown, text.Line(name, 200))
	}
	if n := len(shown) - 1; n > 0 && more == "" {
		shown = append(shown[:n-1], shown[n-1]+last+shown[n])
	}
	return strings.Join(shown, ", ") + more
}
