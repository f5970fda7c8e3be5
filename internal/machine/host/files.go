// Package host reads files of a machine below a root: what checks look at beyond the
// inventory. It returns facts and judges nothing. What it cannot read is empty.
package host

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// Limits of what is read of one file, in bytes.
const (
	maxFile = 1 << 20
	maxLong = 16 << 20 // of a file read by lines: modules.dep of a large kernel has 1 MiB
)

// Tree is the files of a machine. All names are absolute, without the root.
type Tree struct {
	Root string // "/", or a directory with a machine's tree
}

// Path returns the path of a file below the root.
func (t Tree) Path(name string) string { return filepath.Join(t.Root, name) }

// Read returns the first MiB of a file.
func (t Tree) Read(name string) (string, error) {
	text, err := limit.ReadFile(t.Path(name), maxFile)
	return string(text), err
}

// Value returns the text of a file without surrounding white space.
func (t Tree) Value(name string) string {
	text, _ := t.Read(name)
	return strings.TrimSpace(text)
}

// Exists reports whether stat succeeds. It follows links.
func (t Tree) Exists(name string) bool {
	_, err := os.Stat(t.Path(name))
	return err == nil
}

// List returns the names that match a pattern.
func (t Tree) List(pattern string) []string {
	names, _ := filepath.Glob(t.Path(pattern)) // the patterns are well formed
	for i, name := range names {
		names[i] = path.Join("/", strings.TrimPrefix(name, filepath.Clean(t.Root)))
	}
	return names
}

// Lines calls line for each line of a large file. It returns false if the file cannot be
// opened.
func (t Tree) Lines(name string, line func(string)) bool {
	f, err := os.Open(t.Path(name))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(io.LimitReader(f, maxLong))
	lines.Buffer(nil, maxFile)
	for lines.Scan() {
		line(lines.Text())
	}
	return true
}

// Contains reports whether a large file, which may be one long line, contains a text.
func (t Tree) Contains(name, text string) bool {
	all, err := limit.ReadFile(t.Path(name), maxLong)
	return err == nil && strings.Contains(string(all), text)
}

// Owner returns the owner, group and mode of a file, or -1, -1 and 0 if there is none. It
// does not follow links.
func (t Tree) Owner(name string) (uid, gid int, mode fs.FileMode) {
	return owner(os.Lstat(t.Path(name)))
}

// TargetOwner is Owner, except that it follows links.
func (t Tree) TargetOwner(name string) (uid, gid int, mode fs.FileMode) {
	return owner(os.Stat(t.Path(name)))
}

func owner(info fs.FileInfo, err error) (uid, gid int, mode fs.FileMode) {
	if err != nil {
		return -1, -1, 0
	}
	if st, is := info.Sys().(*syscall.Stat_t); is {
		uid, gid = int(st.Uid), int(st.Gid)
	}
	return uid, gid, info.Mode()
}

// Volume is a file system as described by statfs(2) and stat(2).
type Volume struct {
	Dev uint64
	unix.Statfs_t
}

// Volume returns the file system of a path, or of its nearest existing parent.
func (t Tree) Volume(name string) (Volume, error) {
	for ; ; name = path.Dir(name) {
		var v Volume
		var st unix.Stat_t
		err := errors.Join(unix.Stat(t.Path(name), &st), unix.Statfs(t.Path(name), &v.Statfs_t))
		if err == nil || name == "/" || !errors.Is(err, fs.ErrNotExist) {
			v.Dev = uint64(st.Dev) //nolint:unconvert // another type on other machines
			return v, err
		}
	}
}

// Mount is a mounted file system.
type Mount struct {
	Point    string
	Device   string // major:minor
	Root     string // what of the file system is mounted
	Options  string // of this mount
	Kind     string
	ReadOnly bool
}

// MountOf returns the mount that a path is on. The last of several at one place is on top.
func MountOf(mounts []Mount, path string) (best Mount) {
	for _, m := range mounts {
		below := m.Point == "/" || m.Point == path || strings.HasPrefix(path, m.Point+"/")
		if below && len(m.Point) >= len(best.Point) {
			best = m
		}
	}
	return best
}

// Mounts returns what a process sees mounted, the topmost last; see proc_pid_mountinfo(5).
// It returns false if that cannot be read.
func (t Tree) Mounts(pid string) (list []Mount, ok bool) {
	ok = t.Lines("/proc/"+pid+"/mountinfo", func(line string) {
		before, after, _ := strings.Cut(line, " - ")
		f, super := strings.Fields(before), strings.Fields(after)
		if len(f) < 6 || len(super) == 0 {
			return
		}
		m := Mount{Point: path.Clean(strings.ReplaceAll(f[4], `\040`, " ")), Device: f[2], Root: f[3], Options: f[5], Kind: super[0]}
		for _, options := range append(f[5:6], super[min(len(super), 2):]...) {
			m.ReadOnly = m.ReadOnly || strings.HasPrefix(options+",", "ro,") || strings.Contains(options+",", ",ro,")
		}
		list = append(list, m)
	})
	return list, ok
}
