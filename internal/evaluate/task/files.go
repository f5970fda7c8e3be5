package task

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Bounds of a problem's files, in bytes.
const (
	maxFile = 8 << 20
	maxText = 16 << 20 // of all files
)

// readFile reads a file of the problem. A file of the machine has at most that many bytes.
func (t *Task) readFile(name string, most int64) ([]byte, error) {
	if t.Root == nil {
		return readFile(name, most)
	}
	text, err := fs.ReadFile(t.Root, name)
	if err != nil {
		return nil, unread(err)
	}
	return text, nil
}

// readSource reads a file that becomes part of a payload, by its path from task.yml's directory.
func (t *Task) readSource(source string) ([]byte, error) {
	name := filepath.Join(t.Dir, source)
	if t.Root == nil {
		var err error
		if name, err = resolve(t.Dir, source); err != nil {
			return nil, err
		}
	}
	return t.readFile(name, maxFile)
}

// resolve returns the path of a source without links. Jobs get its text, and anyone may have written the
// task.yml, or the links beside it. So it refuses what is outside of the problem's scope, and hidden files
// in it, such as .env and .git/config.
func resolve(dir, source string) (string, error) {
	dir, err := resolveDir(dir)
	if err != nil {
		return "", unread(err)
	}
	file, err := filepath.EvalSymlinks(filepath.Join(dir, source))
	if err != nil {
		return "", unread(err)
	}
	top := scope(dir)
	if rel, err := filepath.Rel(top, file); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("leads out of %.300s, where all files of a problem must be; copy it there", top)
	}
	way, err := filepath.Rel(dir, file)
	for part := range strings.SplitSeq(way, "/") {
		if err != nil || strings.HasPrefix(part, ".") && part != "." && part != ".." {
			return "", errors.New("is hidden, as private files are; give it a name that does not begin with a dot")
		}
	}
	return file, nil
}

// resolveDir returns a directory's absolute path without links. filepath.Abs may return one with the
// links in PWD, whose .. leads elsewhere.
func resolveDir(dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil || filepath.IsAbs(dir) {
		return dir, err
	}
	wd, err := os.Getwd()
	if err == nil {
		wd, err = filepath.EvalSymlinks(wd)
	}
	return filepath.Join(wd, dir), err
}

// scope returns the directory that has all of a problem's files: its git repository or, in a copy that is
// none, the parent directory, where problems keep what they share. Sets of problems that lie side by side,
// each with its list SET.yaml beside it, also share files.
func scope(dir string) string {
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	set := filepath.Dir(dir)
	if _, err := os.Lstat(set + ".yaml"); err == nil {
		return filepath.Dir(set)
	}
	return set
}

// readFile reads a regular file of at most that many bytes. It neither blocks on a
// pipe nor opens a device. Errors are to follow the file's name, and do not repeat it.
func readFile(name string, most int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, errors.New("is not a file; name a regular file")
	}
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, unread(err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, unread(err)
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("is over %d bytes; make it smaller", most)
	}
	return text, nil
}

// addFile is what to do about a file that does not exist.
const addFile = "fix the path, or add the file"

var errAbsent = errors.New("does not exist; " + addFile)

// unread returns why a file cannot be read, to follow its name.
func unread(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errAbsent
	}
	if errors.Is(err, fs.ErrPermission) {
		return errors.New("cannot be read: permission denied; its owner has to let you read it")
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("cannot be read: %w", err)
}

// text reads a file that a line names, as Python's read_text does: line ends become \n.
func (d *definition) text(line int, source string) string {
	if filepath.IsAbs(source) || strings.Contains(source, "\x00") {
		d.Add(line, "source %s is not a relative path; write it as seen from this file's directory", quote(source))
		return ""
	}
	if d.size > maxText {
		return "" // already recorded
	}
	b, err := d.t.readSource(source)
	if errors.Is(err, errAbsent) && text.Edits(strings.ToUpper(source), Submission) < 4 {
		err = fmt.Errorf("does not exist; write %s", quote(Submission))
	}
	d.size += len(b)
	if err == nil && d.size > maxText {
		err = fmt.Errorf("brings the files to over %d bytes; make them smaller", maxText)
	}
	if err == nil && !utf8.Valid(b) {
		err = errors.New("is not UTF-8 text; save it as UTF-8")
	}
	if err != nil {
		d.Add(line, "source %s %v", quote(source), err)
		return ""
	}
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(b))
}

// files reads the files for the job's directory.
func (d *definition) files(n *yaml.Node) {
	const hint = `{"name": "eval.py", "source": "eval.py"}`
	var list []yaml.Node
	d.decode(n, "files", &list, "a list such as - "+hint)
	for _, e := range list {
		if e.Kind != yaml.MappingNode {
			d.Add(e.Line, "files: this is %s; write %s", kind(&e), hint)
			continue
		}
		var f file
		source, faults := "", len(d.List)
		for _, m := range d.pairs(&e) {
			switch m.key {
			case "name":
				f.name = d.word(m.value, "files: name")
			case "source":
				source = d.word(m.value, "files: source")
			}
		}
		if len(d.List) > faults {
			continue
		}
		if f.name == "" {
			d.Add(e.Line, "files: name is missing; write the file's name in the job's directory")
		} else {
			d.checkName(e.Line, f.name)
		}
		switch source {
		case "":
			d.Add(e.Line, "files: source is missing; write the path of the file, or %s", Submission)
		case Submission:
			f.text = Submission
		default:
			f.text = d.text(e.Line, source)
		}
		f.submission = f.text == Submission // as in kernelbot, also in a file
		if f.submission && d.t.Submission == "" {
			d.t.Submission = f.name
		}
		d.t.files = append(d.t.files, f)
	}
	if d.t.Submission == "" && len(d.List) == 0 {
		d.Add(n.Line, `files: none of them is the submission; write {"name": "submission.py", "source": "%s"}`, Submission)
	}
}

// checkName refuses a name that is not that of a file in the job's directory,
// or is already taken.
func (d *definition) checkName(line int, name string) {
	switch {
	case !filepath.IsLocal(name) || slices.Contains(strings.Split(name, "/"), ".."):
		d.Add(line, "name %s leads out of the job's directory; write a name inside it, such as %s", quote(name), quote(filepath.Base(name)))
	case filepath.Clean(name) != name || name == "." || !text.Plain(name):
		d.Add(line, "name %s is not a file name; write one such as %s", quote(name), quote(filepath.Base(name)))
	case d.has(name):
		d.Add(line, "name %s is used by two files; rename one of them", quote(name))
	}
}

func (d *definition) has(name string) bool {
	return slices.ContainsFunc(d.t.files, func(f file) bool { return f.name == name })
}
