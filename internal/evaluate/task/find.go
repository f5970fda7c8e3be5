package task

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Find reads the problem in a directory, or of a task.yml, or the example of that name if there is no
// such directory or file. The error has every fault of task.yml, with its line and what to write instead.
// A file's source may be outside the directory, since problems share files, but not outside of the
// problem's git repository or, without one, of the directory above it.
func Find(name string) (*Task, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && slices.Contains(Examples(), name):
		return ReadFS(examples.Files, name)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s is neither an example nor a directory; %s", quote(name), instead(name))
	case err != nil:
		return nil, fmt.Errorf("read task: %w", err)
	}
	file := filepath.Clean(name)
	if dir := filepath.Dir(file); !info.IsDir() && LangOf(name) != "" {
		if names, err := os.ReadFile(filepath.Join(dir, FileName)); err == nil && strings.Contains(string(names), filepath.Base(file)) {
			return nil, fmt.Errorf("%s is a file of a problem; write --problem %s", quote(name), text.ShellWord(dir))
		}
		return nil, fmt.Errorf("%s is a submission; write --problem PROBLEM before it", quote(name))
	}
	if info.IsDir() {
		file = filepath.Join(name, FileName)
		other := strings.TrimSuffix(file, ".yml") + ".yaml"
		_, err := os.Stat(file)
		switch absent := errors.Is(err, fs.ErrNotExist); {
		case absent && slices.Contains(Examples(), name):
			return nil, fmt.Errorf("%s does not exist; add it, or work in another directory to use the example %s", file, name)
		case absent && exists(other):
			return nil, fmt.Errorf("%s does not exist; type mv %s %s", file, text.ShellWord(other), text.ShellWord(file))
		case absent:
			return nil, fmt.Errorf("%s does not exist; %s", file, instead(name))
		}
	}
	return load(&Task{Dir: filepath.Dir(file)}, file)
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
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

// onGitHub matches the address that a browser shows of a repository, of a directory in it, or of its task.yml.
var onGitHub = lazy.Regexp(`^(?:https?://)?github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?(?:/(?:tree|blob)/[\w.-]+((?:/[\w.-]+)*?)(?:/task\.yml)?)?/?$`)

// instead returns what to write for the name of a problem that is none.
func instead(name string) string {
	if m := onGitHub().FindStringSubmatch(name); m != nil && m[3] == "" {
		return fmt.Sprintf("type git clone https://github.com/%s/%s, and write the directory in it that has the problem's %s", m[1], m[2], FileName)
	} else if m != nil {
		return fmt.Sprintf("type git clone https://github.com/%s/%s, and write %s", m[1], m[2], path.Join(m[2], m[3]))
	}
	if below := problemBelow(name); below != "" {
		return "write the directory of one problem, such as " + text.ShellWord(text.Line(below, 300))
	}
	all := strings.Join(Examples(), ", ")
	var similar []string
	for _, known := range Examples() {
		if isSimilar(filepath.Base(name), known) {
			similar = append(similar, known)
		}
	}
	if len(similar) > 0 {
		return "write " + strings.Join(similar, " or ") + "; the examples are " + all
	}
	return "name a directory that has a " + FileName + ", or an example: " + all
}

// problemBelow returns a directory in another one that has a task.yml, or "". It looks deeper in a git repository, which is no
// machine's root.
func problemBelow(dir string) string {
	pattern, levels := "*", 1
	if dir == "" {
		return ""
	}
	if exists(filepath.Join(dir, ".git")) {
		levels = 3
	}
	for range levels {
		if found, _ := fs.Glob(os.DirFS(filepath.Clean(dir)), pattern+"/"+FileName); len(found) > 0 {
			return filepath.Join(dir, path.Dir(found[0]))
		}
		pattern += "/*"
	}
	return ""
}

// isSimilar reports whether a word may mean a name: a typo of it, a part of it, or the name with
// other separators.
func isSimilar(word, name string) bool {
	plain := strings.NewReplacer("-", "", "_", "", " ", "").Replace
	word, name = strings.ToLower(plain(word)), strings.ToLower(plain(name))
	return text.Edits(word, name) < 3 || len(word) > 2 && (strings.Contains(name, word) || strings.Contains(word, name))
}
