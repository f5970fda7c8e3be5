package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// sources are a task's files in the job's directory. All access goes through the
// os.Root, so that no name and no link made by a program leads out of it.
type sources struct {
	root  *os.Root
	files result.Pairs[string] // by name in root
	at    map[string]int       // the index in files of each path in root, without links to directories
}

// newSources returns an error for every name that does not lead to a file in the
// directory. It writes nothing.
func newSources(root *os.Root, c *config) (*sources, error) {
	s := &sources{root: root, at: map[string]int{}}
	return s, errors.Join(s.add("sources", c.sources), s.add("headers", c.headers))
}

func (s *sources) add(key string, files result.Pairs[string]) error {
	var errs []error
	for _, f := range files {
		name, err := s.check(f.Key)
		path := name
		if err == nil {
			path, err = s.real(name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q %w", key, f.Key, err))
			if len(errs) == maxFaults {
				break
			}
			continue
		}
		if i, ok := s.at[path]; ok {
			s.files[i].Value = f.Value // the later of two texts with one name wins
			continue
		}
		s.at[path] = len(s.files)
		s.files = append(s.files, result.Pair[string]{Key: name, Value: f.Value})
	}
	return errors.Join(errs...)
}

// real returns the path of a name that check returned, through links to directories.
func (s *sources) real(name string) (string, error) {
	i := strings.LastIndexByte(name, '/') + 1
	top, err := filepath.EvalSymlinks(s.root.Name())
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(top + "/" + name[:i])
	if err != nil {
		return "", err
	}
	return filepath.Rel(top, filepath.Join(dir, name[i:]))
}

var errOutside = errors.New("leads out of the job's directory; give a name inside of it")

// nameFault returns why a name is none of a file in any directory.
func nameFault(name string) error {
	if name == "" || strings.HasSuffix(name, "/") || strings.Contains(name, "\x00") {
		return errors.New("is not a file name")
	}
	if !filepath.IsLocal(name) {
		return errOutside
	}
	if last := name[strings.LastIndexByte(name, '/')+1:]; last == "." || last == ".." {
		return errors.New("is the name of a directory; write one of a file")
	}
	if slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return len(part) > maxName }) {
		return fmt.Errorf("is too long; Linux allows %d bytes", maxName)
	}
	return nil
}

// maxName is the longest name of a file on Linux, in bytes.
const maxName = 255

// check returns the name relative to the directory.
func (s *sources) check(name string) (string, error) {
	if filepath.IsAbs(name) {
		rel, ok := strings.CutPrefix(name, s.root.Name()+"/")
		if !ok {
			return "", errOutside
		}
		name = rel
	}
	if err := nameFault(name); err != nil {
		return "", err
	}
	// Not filepath.Dir, which would remove a link together with a ".." after it.
	if i := strings.LastIndexByte(name, '/'); i > 0 {
		info, err := s.root.Stat(name[:i])
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
			return "", errors.New("is in a directory that does not exist; directories are not created")
		}
		if err != nil {
			return "", fmt.Errorf("leads out of the job's directory or cannot be reached (%w)", err)
		}
	}
	info, err := s.root.Lstat(name)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		info, err = s.root.Stat(name)
		if err != nil {
			return "", fmt.Errorf("is a link that leads out of the job's directory or nowhere (%w)", err)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return name, nil
	case err != nil:
		return "", fmt.Errorf("cannot be written (%w)", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("is not a file but a %s in the job's directory; remove that", kind(info))
	}
	return name, nil
}

func kind(info fs.FileInfo) string {
	if info.IsDir() {
		return "directory"
	}
	return "special file"
}

// put writes the texts under their names. It replaces files that were there before, and
// later anything a program made of them.
func (s *sources) put() error {
	for _, f := range s.files {
		err := tree.Remove(s.root, f.Key)
		if err == nil {
			err = writeFile(s.root, f.Key, []byte(f.Value), 0o666)
		}
		if err != nil {
			return fmt.Errorf("write source: %w", err)
		}
	}
	return s.dropCaches()
}

// dropCaches removes Python's byte code beside the sources: a program can plant byte
// code that Python loads instead of a source.
func (s *sources) dropCaches() error {
	var errs []error
	done := map[string]bool{}
	for _, f := range s.files {
		dir := filepath.Join(filepath.Dir(f.Key), "__pycache__")
		if !done[dir] {
			errs = append(errs, tree.Remove(s.root, dir))
		}
		done[dir] = true
	}
	return errors.Join(errs...)
}

// remove removes the files by name, or what a program put in their places, and the byte code made from
// them.
func (s *sources) remove() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, tree.Remove(s.root, f.Key))
	}
	if err := errors.Join(append(errs, s.dropCaches())...); err != nil {
		return fmt.Errorf("remove sources: %w", err)
	}
	return nil
}

// writeFile creates a file. If the name exists, even as a link, it returns an error.
func writeFile(root *os.Root, name string, text []byte, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
