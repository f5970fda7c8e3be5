package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// left is what a slot's user may have left besides processes: files in directories that
// programs write to, and System V IPC objects. It is removed as that user, as the agent's
// unit sees it.
type left struct {
	uid  int
	dirs []leftDir
	ipc  string // "/proc/sysvipc"
	// end removes one object of a kind; nil removes it for real.
	end func(kind string, id int) error
}

// leftDir is a directory that is emptied of a user's files, except for the names to keep.
type leftDir struct {
	path string
	keep func(name string) bool
}

// leftovers returns what a job of slot k may leave. During a job (within) the agent's own
// files for it stay; these are their names in buildkite-agent 3.76.
func leftovers(k, uid int, within bool) left {
	// The variables that Buildkite sent, for hooks; in version 4 also as JSON.
	env := []string{os.Getenv("BUILDKITE_ENV_FILE"), os.Getenv("BUILDKITE_ENV_JSON_FILE")}
	none := func(string) bool { return false }
	names := func(list ...string) func(string) bool {
		return func(name string) bool { return slices.Contains(list, name) }
	}
	return left{uid: uid, ipc: "/proc/sysvipc", dirs: []leftDir{
		{"/tmp", func(name string) bool {
			return slices.Contains(env, "/tmp/"+name) || within && name == "buildkite-agent-hook-wrapper"
		}},
		{"/var/tmp", none},
		{"/dev/shm", none},
		{"/dev/mqueue", none},
		// Checkouts and plugins are for later jobs, too.
		{plan.WorkDir(k), names("builds", "plugins")},
		// agent-<pid> and agent-leader are the agent's own sockets.
		{plan.RunDir(k) + "/agent", func(name string) bool {
			return strings.HasPrefix(name, "agent-") || within && name == "job-api"
		}},
	}}
}

// remove removes all of it.
func (l left) remove() error {
	if l.uid == 0 {
		return errors.New("remove leftovers: refused for root; run as a slot's user")
	}
	var errs []error
	for _, d := range l.dirs {
		errs = append(errs, d.empty(l.uid))
	}
	for _, kind := range []string{"shm", "sem", "msg"} {
		errs = append(errs, l.objects(kind))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove leftovers: %w", err)
	}
	return nil
}

// empty removes what belongs to the user. A directory that does not exist, or that the
// user cannot read, contains nothing of the user's.
func (d leftDir) empty(uid int) error {
	root, err := os.OpenRoot(d.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(".")
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	entries, err := f.ReadDir(-1)
	errs := []error{err}
	for _, e := range entries {
		info, err := root.Lstat(e.Name())
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.keep(e.Name()) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == uid {
			errs = append(errs, disk.RemoveTree(root, e.Name()))
		}
	}
	return errors.Join(errs...)
}

// objects removes the user's objects of one kind: shared memory segments, semaphores or
// message queues. The kernel lists them in a table with a heading, with different columns
// for each kind (proc_sysvipc(5)).
func (l left) objects(kind string) error {
	text, err := os.ReadFile(filepath.Join(l.ipc, kind))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without them
	}
	if err != nil {
		return err
	}
	end := l.end
	if end == nil {
		end = endObject
	}
	var errs []error
	var heading []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if heading == nil {
			heading = fields
			continue
		}
		value := func(column string) int {
			if i := slices.Index(heading, column); i >= 0 && i < len(fields) {
				if n, err := strconv.Atoi(fields[i]); err == nil {
					return n
				}
			}
			return -1
		}
		id := max(value(kind+"id"), value(kind[:1]+"sqid")) // shmid, semid, msqid
		if id >= 0 && (value("uid") == l.uid || value("cuid") == l.uid) {
			if err := end(kind, id); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EIDRM) {
				errs = append(errs, fmt.Errorf("remove %s %d: %w", kind, id, err))
			}
		}
	}
	return errors.Join(errs...)
}

func endObject(kind string, id int) error {
	var errno syscall.Errno
	switch kind {
	case "shm":
		_, _, errno = unix.Syscall(unix.SYS_SHMCTL, uintptr(id), unix.IPC_RMID, 0)
	case "sem":
		_, _, errno = unix.Syscall6(unix.SYS_SEMCTL, uintptr(id), 0, unix.IPC_RMID, 0, 0, 0)
	case "msg":
		_, _, errno = unix.Syscall(unix.SYS_MSGCTL, uintptr(id), unix.IPC_RMID, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}
