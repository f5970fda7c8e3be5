package runner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

const (
	// resultRoom is how many bytes are reserved for result.json, which takes less than 300 KiB unless
	// programs report a lot. runRoom is what those of one evaluation take at most, with its output, and
	// maxRoom bounds those of all.
	resultRoom = 1 << 20
	runRoom    = popcornLimit + resultRoom
	maxRoom    = 64 << 20
)

// jobDir is the job's directory, held open: programs may change its mode, rename it and put another
// one in its place.
type jobDir struct {
	root *os.Root
	file *os.File
	was  fs.FileInfo
	way  []closable // the directories above it, and above those for temporary files
	// room is a file without a name, so that no program can remove it, and with space, so that the
	// result can be written when no more is left. It is nil where there are no such files.
	room *os.File
}

func openJobDir(path string) (*jobDir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	d := &jobDir{root: root}
	if d.file, err = root.Open("."); err == nil {
		d.was, err = d.file.Stat()
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	d.way = wayTo(path)
	fd, err := unix.Openat(int(d.file.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err == nil {
		d.room = os.NewFile(uintptr(fd), result.File)
		d.reserve(0)
	}
	return d, nil
}

// reserve takes the space for the result of that many evaluations.
func (d *jobDir) reserve(evaluations int) {
	if d.room != nil { // an error means that the space is taken when it is needed
		_ = unix.Fallocate(int(d.room.Fd()), 0, 0, min(maxRoom, resultRoom+int64(evaluations)*runRoom))
	}
}

func (d *jobDir) close() error {
	err := d.root.Close()
	for _, f := range []*os.File{d.file, d.room} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	for _, c := range d.way {
		_ = c.file.Close() // no file is read or written by it
	}
	return err
}

// closable is a directory whose mode a program may change, held open.
type closable struct {
	file *os.File
	mode uint32
}

// wayTo returns the directories above a path that this user may close to himself, the topmost first.
func wayTo(path string) (way []closable) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			f := os.NewFile(uintptr(fd), dir)
			if unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() {
				way = append(way, closable{f, st.Mode})
			} else {
				_ = f.Close() // another's
			}
		}
		if dir == filepath.Dir(dir) {
			slices.Reverse(way)
			return way
		}
	}
}

// open gives the directories on the way their modes again. Without them, no path leads to what programs left.
func (d *jobDir) open() {
	var st unix.Stat_t
	for _, c := range d.way {
		if unix.Fstat(int(c.file.Fd()), &st) == nil && st.Mode != c.mode {
			_ = unix.Chmod(self(c.file), c.mode&0o7777) // what is closed is an error where it is used
		}
	}
}

// putBack gives the directory its mode and its place again. Call it when all programs are dead.
func (d *jobDir) putBack() error {
	d.open()
	path := d.root.Name()
	if now, err := d.file.Stat(); err != nil {
		return fmt.Errorf("look at the job's directory: %w", err)
	} else if st, ok := now.Sys().(*syscall.Stat_t); ok && st.Nlink == 0 {
		return d.renew()
	} else if now.Mode() != d.was.Mode() {
		if err := d.file.Chmod(d.was.Mode()); err != nil {
			return fmt.Errorf("put back the mode of the job's directory: %w", err)
		}
	}
	if there, err := os.Lstat(path); err == nil && os.SameFile(there, d.was) {
		return nil
	}
	// What is in its place may be above it.
	other := path + "." + rand.Text()
	err := ignoreMissing(os.Rename(path, other))
	if err == nil {
		var moved string
		if moved, err = os.Readlink(self(d.file)); err == nil {
			err = os.Rename(moved, path)
		}
	}
	if err = errors.Join(err, tree.RemoveAll(other)); err != nil {
		return fmt.Errorf("put back the job's directory, which a program moved away from %s: %w", path, err)
	}
	return nil
}

// renew makes the directory again, which a program removed, so that there is one for the result. The
// sources stay in the old one, where no program can be run anymore.
func (d *jobDir) renew() error {
	path := d.root.Name()
	err := tree.RemoveAll(path)
	if err == nil {
		err = os.Mkdir(path, d.was.Mode().Perm())
	}
	var next *jobDir
	if err == nil {
		next, err = openJobDir(path)
	}
	if err != nil {
		return fmt.Errorf("make the job's directory again, which a program removed: %w", err)
	}
	if d.room != nil { // its space is reserved
		next.room, d.room = d.room, next.room
	}
	next.way, d.way = d.way, next.way
	for _, c := range d.way {
		_ = c.file.Close() // those of the first
	}
	if spare := d.room; spare != nil {
		_ = spare.Close() // never written to
	}
	_ = d.file.Close() // opened for reading; its root is the sources', too
	*d = *next
	return nil
}

// self is the name of an open file of this process.
func self(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// write writes the result into the directory atomically. It replaces anything that a program left
// under that name, even a directory or a link.
func (d *jobDir) write(r *result.Result) error {
	text, err := r.Encode()
	if err != nil {
		return fmt.Errorf("encode %s: %w", result.File, err)
	}
	err = d.putBack()
	tmp := "." + result.File + "." + rand.Text()
	if err == nil {
		err = d.fill(tmp, text)
	}
	if err == nil {
		if info, lerr := d.root.Lstat(result.File); lerr == nil && info.IsDir() {
			err = tree.Remove(d.root, result.File)
		}
		err = errors.Join(err, d.root.Rename(tmp, result.File))
	}
	if err != nil {
		// A file that now has the name is not the runner's.
		return errors.Join(fmt.Errorf("write %s: %w", result.File, err), ignoreMissing(d.root.Remove(tmp)),
			d.root.RemoveAll(result.File), os.RemoveAll(d.root.Name()+"/"+result.File))
	}
	return nil
}

// fill creates a file, in the reserved space if there is some.
func (d *jobDir) fill(name string, text []byte) error {
	if d.room != nil {
		_, err := d.room.WriteAt(text, 0)
		if err == nil {
			err = d.room.Truncate(int64(len(text)))
		}
		if err == nil {
			err = unix.Linkat(unix.AT_FDCWD, self(d.room), int(d.file.Fd()), name, unix.AT_SYMLINK_FOLLOW)
		}
		if err == nil {
			return nil
		}
	}
	return writeFile(d.root, name, text, 0o644)
}
