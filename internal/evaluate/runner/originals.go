package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/tree"
)

const (
	originalLimit  = 1 << 20  // bytes of a file of which the content is kept
	originalsLimit = 32 << 20 // bytes of all
)

// originals are the contents of files that a step may go on with after the runner, without a fence: the script
// that started it, which a shell reads as it goes, and files of the checkout. The last program could change them.
type originals struct {
	wanted  bool              // something goes on: this is not the first process of a container
	texts   map[string][]byte // in the job's directory, by path
	links   map[string]string // likewise, where they lead
	scripts []script
	size    int64 // bytes of all
}

// script is a file that a process above this one reads. It may be without a name by now.
type script struct {
	file *os.File
	text []byte
	mode fs.FileMode
}

// newOriginals looks at what the processes above and beside this one read. mayWrite reports whether programs may
// write to a path.
func newOriginals(pids []int, mayWrite func(path string) bool) *originals {
	o := &originals{wanted: os.Getppid() != 0, texts: map[string][]byte{}, links: map[string]string{}}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		fds, _ := os.ReadDir(filepath.Join(dir, "fd")) // another user's: what it reads, programs cannot write
		for _, fd := range fds {
			link := filepath.Join(dir, "fd", fd.Name())
			if path, err := os.Readlink(link); err == nil && mayWrite(path) && readsOnly(filepath.Join(dir, "fdinfo", fd.Name())) {
				o.addScript(link)
			}
		}
	}
	return o
}

// readsOnly reports whether a descriptor is open only for reading. What a process writes changes by itself.
func readsOnly(fdinfo string) bool {
	info, _ := os.ReadFile(fdinfo) // it may be closed by now
	_, rest, ok := strings.Cut(string(info), "flags:")
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 {
		return false
	}
	flags, err := strconv.ParseUint(fields[0], 8, 32)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY
}

func (o *originals) addScript(fd string) {
	info, err := os.Stat(fd)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	f, err := os.OpenFile(fd, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	text, ok := o.read(f)
	if !ok {
		_ = f.Close() // opened for reading
		return
	}
	o.scripts = append(o.scripts, script{f, text, info.Mode()})
}

// read returns the content of a file if there is room for it.
func (o *originals) read(f *os.File) ([]byte, bool) {
	info, err := f.Stat()
	if err != nil || info.Size() > originalLimit || o.size+info.Size() > originalsLimit {
		return nil, false
	}
	text, err := io.ReadAll(io.LimitReader(f, originalLimit+1))
	if err != nil || len(text) > originalLimit {
		return nil, false
	}
	o.size += int64(len(text))
	return text, true
}

// add keeps the content of a file in the job's directory.
func (o *originals) add(name string, info fs.FileInfo) {
	if o.wanted && info.Mode().Type() == fs.ModeSymlink {
		if to, err := os.Readlink(name); err == nil {
			o.links[name] = to
		}
	}
	if !o.wanted || !info.Mode().IsRegular() || info.Size() > min(originalLimit, originalsLimit-o.size) {
		return
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if text, ok := o.read(f); ok {
		o.texts[name] = text
	}
}

// putBackScripts puts back what is being read.
func (o *originals) putBackScripts() error {
	var errs []error
	for _, s := range o.scripts {
		now := make([]byte, len(s.text)+1)
		if n, err := s.file.ReadAt(now, 0); errors.Is(err, io.EOF) && bytes.Equal(now[:n], s.text) {
			continue
		}
		errs = append(errs, overwrite(self(s.file), s.text, s.mode))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("put back the step's script: %w", err)
	}
	return nil
}

// putBack puts back a file of the job's directory, or a directory on the way to one.
func (o *originals) putBack(name string, was stamp) error {
	if !o.wanted {
		return nil
	}
	text, isText := o.texts[name]
	to, isLink := o.links[name]
	info, err := os.Lstat(name)
	switch {
	case !isText && !isLink && !was.mode.IsDir():
		return fmt.Errorf("a program changed %s, which is too large to be put back; exec kbnode runner, so that nothing goes on with it", name)
	case err == nil && isText && info.Mode().IsRegular() && identityOf(info).inode == was.inode:
	default:
		err = tree.RemoveAll(name)
		if err == nil && isText {
			err = writeNew(name)
		}
	}
	switch {
	case err != nil:
	case isText:
		err = overwrite(name, text, was.mode)
	case isLink:
		err = os.Symlink(to, name)
	default:
		err = os.Mkdir(name, 0o700) // until all is in it
	}
	if err != nil {
		return fmt.Errorf("put back what a program changed: %w", err)
	}
	return nil
}

// settle gives what putBack put back its owner, and a directory its mode and times.
func (o *originals) settle(name string, was stamp) error {
	info, err := os.Lstat(name)
	st, ok := (*syscall.Stat_t)(nil), false
	if err == nil {
		st, ok = info.Sys().(*syscall.Stat_t)
	}
	if !o.wanted || !ok || info.Mode().Type() != was.mode.Type() {
		return nil // putBack said why
	}
	now := stamp{mode: info.Mode(), owner: [2]uint32{st.Uid, st.Gid}}
	if was.mode.IsDir() {
		return was.restore(name, now)
	}
	if was.owner == now.owner {
		return nil
	}
	err = os.Lchown(name, int(was.owner[0]), int(was.owner[1]))
	if err == nil && was.mode.IsRegular() {
		err = os.Chmod(name, was.mode) // less of it may be left
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil // another user's, as the directory that it is in
	}
	return err
}

func writeNew(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// overwrite writes a file in its place, which its owner may have closed to itself.
func overwrite(name string, text []byte, mode fs.FileMode) error {
	open := func() (*os.File, error) { return os.OpenFile(name, os.O_WRONLY|os.O_TRUNC|unix.O_NONBLOCK, 0) }
	f, err := open()
	if errors.Is(err, fs.ErrPermission) {
		if err = os.Chmod(name, 0o600); err == nil {
			f, err = open()
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	info, serr := f.Stat()
	if serr == nil && info.Mode() != mode {
		serr = f.Chmod(mode)
	}
	return errors.Join(err, serr, f.Close())
}
