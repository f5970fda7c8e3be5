package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// FileError is why a file is not run as a hook.
type FileError struct {
	Why string // names the file or directory
	Fix string // a command for a root shell; "" if none helps
}

func (e *FileError) Error() string {
	if e.Fix == "" {
		return e.Why
	}
	return e.Why + "; type sudo " + e.Fix
}

// Open opens a hook, to be executed by its descriptor. The error is a *FileError if the file is no program, or if others than
// root could change it or what leads to it. It looks at each part of the path by a descriptor and follows no link, so that what
// it returns is what it has checked.
func Open(root, name string) (*os.File, error) { return open(root, name, owner(root)) }

// owner is who counts as root besides root itself: in a tree the user of this process, who may have unpacked it.
func owner(root string) int {
	if root == "/" {
		return 0
	}
	return os.Geteuid()
}

func open(root, name string, owner int) (*os.File, error) {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	done, left := "/", strings.Trim(name, "/")
	for {
		if err := check(at, done, left == "", owner); err != nil {
			_ = unix.Close(at)
			return nil, err
		}
		if left == "" {
			return os.NewFile(uintptr(at), name), nil
		}
		var part string
		part, left, _ = strings.Cut(left, "/")
		done = path.Join(done, part)
		next, err := unix.Openat(at, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, &FileError{Why: done + " does not exist; put the program there, or name another"}
		case err != nil:
			return nil, fmt.Errorf("open %s: %w", done, err)
		}
		at = next
	}
}

// check checks a directory on the way to a hook, or the hook itself.
func check(fd int, name string, last bool, owner int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("read mode of %s: %w", name, err)
	}
	kind, mode := st.Mode&unix.S_IFMT, st.Mode&0o7777
	switch {
	case kind == unix.S_IFLNK:
		return &FileError{Why: fmt.Sprintf("%s is a symbolic link, which is not followed; write the path that it leads to%s", name, target(fd))}
	case last && kind != unix.S_IFREG:
		return &FileError{Why: name + " is not a regular file; name a program"}
	case !last && kind != unix.S_IFDIR:
		return &FileError{Why: name + " is not a directory; name a program by its path"}
	case st.Uid != 0 && int(st.Uid) != owner:
		return &FileError{fmt.Sprintf("%s belongs to user %d, not to root", name, st.Uid), "chown root " + name}
	case mode&0o022 != 0:
		return &FileError{fmt.Sprintf("%s has mode %04o, so others than root can change it", name, mode), "chmod go-w " + name}
	case last && mode&0o100 == 0:
		return &FileError{name + " is not executable", "chmod u+x " + name}
	}
	var where unix.Statfs_t
	if err := unix.Fstatfs(fd, &where); last && err == nil && where.Flags&unix.MS_NOEXEC != 0 {
		return &FileError{Why: name + " is on a file system that is mounted noexec; put the program elsewhere"}
	}
	return nil
}

// target returns where a link leads to, for a sentence.
func target(link int) string {
	buf := make([]byte, 256)
	n, err := unix.Readlinkat(link, "", buf)
	if err != nil || n == len(buf) {
		return ""
	}
	return fmt.Sprintf(", %q", buf[:n])
}

// Problem is why a hook of the configuration would not run.
type Problem struct {
	Key string // of the configuration
	Err error  // often a *FileError
}

func (p Problem) String() string { return p.Key + ": " + p.Err.Error() }

// lookTime bounds the look at one hook, which may be on a disk that hangs.
const lookTime = 5 * time.Second

// Problems looks at the hooks of a configuration, below a root. What this process may not look at is no problem.
func Problems(root string, job config.Job) (all []Problem) {
	for key, file := range map[string]string{"job.prolog": job.Prolog, "job.epilog": job.Epilog} {
		if file == "" {
			continue
		}
		_, err := limit.Call(root, "hook "+file, lookTime, func() (struct{}, error) {
			f, err := Open(root, file)
			if err == nil {
				err = f.Close()
			}
			return struct{}{}, err
		})
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			all = append(all, Problem{key, err})
		}
	}
	slices.SortFunc(all, func(a, b Problem) int { return strings.Compare(b.Key, a.Key) }) // as they run
	return all
}
