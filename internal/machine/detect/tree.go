package detect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// maxFile bounds what is read of one file. The largest file that is read in full is
// /proc/cpuinfo, 1.5 KiB per CPU.
const maxFile = 4 << 20

// tree is a machine's files below one root, by relative path. Below "/" files are opened as
// they are. Below any other root nothing outside of it is opened, whatever its links point
// to: a recorded tree comes from someone else.
type tree struct {
	root  string
	files fs.FS
	close func() error
	// captured, if not nil, collects what was read, by path: a tree of just these files reads
	// the same. A directory is recorded as path + dirMark.
	captured map[string]string
	// failed, if not nil, collects what could not be read.
	failed *failures
}

// dirMark is an empty file that represents a directory of which nothing else was read; an
// archive of files has no other way to record that it exists.
const dirMark = "/.kbnode"

func openTree(root string) (tree, error) {
	failed := &failures{list: map[string]error{}}
	if root == "" || filepath.Clean(root) == "/" {
		return tree{root: "/", files: os.DirFS("/"), close: func() error { return nil }, failed: failed}, nil
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return tree{}, fmt.Errorf("open machine tree: %w", err)
	}
	return tree{root: root, files: dir.FS(), close: dir.Close, failed: failed}, nil
}

// live reports whether the tree is the machine that kbnode runs on.
func (t tree) live() bool { return t.root == "/" }

// read returns the text of a file without surrounding white space and without the NUL at
// the end of many files copied out of sysfs.
func (t tree) read(path string) (string, error) {
	f, err := t.files.Open(path)
	if err != nil {
		t.fail(path, err)
		return "", err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	_ = f.Close() // nothing was written
	if err != nil {
		t.fail(path, err)
		return "", err
	}
	text, _, _ := strings.Cut(string(data), "\x00")
	text = strings.TrimSpace(text)
	if t.captured != nil {
		t.captured[path] = text
	}
	return text, nil
}

// text returns the text of a file, "" if there is none.
func (t tree) text(path string) string {
	text, err := t.read(path)
	if err != nil {
		return ""
	}
	return text
}

// number returns the number in a file, decimal or with 0x.
func (t tree) number(path string) (int64, bool) {
	n, err := strconv.ParseInt(t.text(path), 0, 64)
	return n, err == nil
}

// id returns the number in a file, -1 if there is none or it is negative, which is how the
// kernel reports an unknown value.
func (t tree) id(path string) int {
	n, ok := t.number(path)
	if !ok || n < 0 || n > 1<<20 {
		return -1
	}
	return int(n)
}

// names returns the entries of a directory in alphabetical order.
func (t tree) names(path string) []string {
	entries, err := fs.ReadDir(t.files, path)
	if err != nil {
		t.fail(path, err) // what was read before it counts
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// numbered returns the numbers N of the entries prefix+N of a directory, ascending.
func (t tree) numbered(path, prefix string) []int {
	var ids []int
	for _, name := range t.names(path) {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			if id, err := strconv.Atoi(rest); err == nil && id >= 0 {
				ids = append(ids, id)
				if t.captured != nil {
					t.captured[path+"/"+name+dirMark] = ""
				}
			}
		}
	}
	slices.Sort(ids)
	return ids
}

func (t tree) exists(path string) bool {
	info, err := fs.Stat(t.files, path)
	if err != nil {
		t.fail(path, err)
	}
	if err == nil && t.captured != nil && info.IsDir() {
		t.captured[path+dirMark] = ""
	}
	return err == nil
}

// absent reports whether a file certainly does not exist.
func (t tree) absent(path string) bool {
	_, err := fs.Stat(t.files, path)
	return errors.Is(err, fs.ErrNotExist)
}

// cpus returns the set in the first readable one of these files. Files whose names end in
// list, or are online, present and the like, contain lists, others masks; recorded trees
// mix them up, so the form of the text decides.
func (t tree) cpus(paths ...string) (cpuset.Set, bool) {
	for _, path := range paths {
		text, err := t.read(path)
		if err != nil {
			continue
		}
		parse := cpuset.Parse
		if isMask(path, text) {
			parse = cpuset.ParseMask
		}
		if set, err := parse(text); err == nil {
			return set, true
		}
	}
	return cpuset.Set{}, false
}

// isMask distinguishes a hexadecimal mask from a list of numbers. A list has at most four
// digits in a row; a mask has groups of eight digits, of which only the first may be
// shorter.
func isMask(path, text string) bool {
	switch filepath.Base(path) {
	case "cpumap", "local_cpus", "shared_cpu_map", "thread_siblings", "core_cpus", "core_siblings", "package_cpus":
		return true
	}
	if strings.ContainsAny(text, "-:") {
		return false
	}
	for group := range strings.SplitSeq(text, ",") {
		if len(group) >= 8 || strings.ContainsAny(group, "abcdefABCDEF") {
			return true
		}
	}
	return false
}

// fields parses the "name value" or "name: value" lines of a file, as in meminfo and KFD's
// properties.
func fields(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok {
			out[strings.TrimSuffix(name, ":")] = strings.TrimSpace(value)
		}
	}
	return out
}
