package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock versions (landlock(7)) that the runner distinguishes.
const (
	landlockRefer    = 2 // Linux 5.19: files may be renamed into another directory
	landlockTruncate = 3 // 6.2
	landlockScopes   = 6 // 6.12: no signals to processes outside
)

// devices is the directory whose files every program may use, except for terminals: one may be the
// job's log.
const devices = "/dev"

// processes is the directory of processes' files. CUDA writes a thread's name to
// /proc/self/task/TID/comm, and cuInit fails with error 304 if it cannot (driver 580 on an H100).
// A rule holds for a file that exists, and the children of a program do not yet.
const processes = "/proc"

func isTerminal(device string) bool {
	return device == "pts" || device == "ptmx" || device == "console" || strings.HasPrefix(device, "tty") || strings.HasPrefix(device, "vcs")
}

// landlockVersion returns this kernel's Landlock version. It returns 0 if the kernel
// has none, or a version that prevents renames into another directory, which compilers'
// caches need. Tests replace it.
var landlockVersion = func() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < landlockRefer {
		return 0
	}
	return int(version)
}

// rules are those of the last program, which the next one's extend: the directories that only the last one
// had are gone, and to add all devices again takes longer than the rest of a start.
var rules struct {
	sync.Mutex
	*os.File
	devices syscall.Timespec // when they last changed
}

// handledAccess returns what Landlock asks its rules for, and how much of that the kernel knows.
func handledAccess(version int) (unix.LandlockRulesetAttr, uintptr) {
	const write = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	attr, size := unix.LandlockRulesetAttr{Handled_access_fs: write}, unsafe.Offsetof(unix.LandlockRulesetAttr{}.Handled_access_net)
	if version >= landlockTruncate {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= landlockScopes {
		attr.Scoped, size = unix.LANDLOCK_SCOPE_SIGNAL, unsafe.Offsetof(unix.LandlockRulesetAttr{}.Quiet_access_fs)
	}
	return attr, size
}

// newRules makes a set of rules for a domain that may write nowhere, and has no further rights.
func newRules(version int, further ...uint64) (*os.File, uint64, error) {
	attr, size := handledAccess(version)
	for _, right := range further {
		attr.Handled_access_fs |= right
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0) //nolint:gosec // an argument of the kernel
	if errno != 0 {
		return nil, 0, fmt.Errorf("make Landlock rules: %w", errno)
	}
	return os.NewFile(fd, "Landlock rules"), attr.Handled_access_fs, nil
}

// landlockRules returns the rules of a domain for the next program. A program in the domain cannot look
// into a process outside (whose environment holds the payload), cannot signal one (since Linux 6.12), and
// writes only below the given directories, to devices, and where /proc lets its user. This applies to
// root too. Without Landlock, the engine looks for changes afterward.
func landlockRules(version int, writable []string) (*os.File, error) {
	rules.Lock()
	defer rules.Unlock()
	attr, _ := handledAccess(version)
	access := map[string]uint64{}
	for _, dir := range writable {
		access[dir] = attr.Handled_access_fs
	}
	if changed := changeTime(devices); rules.File == nil || changed != rules.devices {
		file, _, err := newRules(version)
		if err != nil {
			return nil, err
		}
		// A program that started with the last ones has a copy.
		_ = rules.Close()
		rules.File, rules.devices = file, changed
		maps.Copy(access, commonAccess(attr.Handled_access_fs))
	}
	return rules.File, allowAll(rules.File, access)
}

// commonAccess returns where every program may write.
func commonAccess(handled uint64) map[string]uint64 {
	existing := handled & (unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE)
	access := map[string]uint64{processes: existing}
	entries, _ := os.ReadDir(devices) // none: the program cannot write to what cannot be listed
	for _, d := range entries {
		// A link leads to another device, or to a file of this process.
		// In shared memory, there are files.
		if path := filepath.Join(devices, d.Name()); d.Type()&fs.ModeSymlink == 0 && !isTerminal(d.Name()) && path != sharedMemory {
			access[path] = existing
		}
	}
	return access
}

func allowAll(rules *os.File, access map[string]uint64) error {
	for path, access := range access {
		if err := allow(int(rules.Fd()), path, access); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("let programs use %s: %w", path, err)
		}
	}
	return nil
}

// workerRules returns those of a worker, which may write to its own directories only, and not read what is in that of its
// judge.
func (p program) workerRules(version int, writable []string) (*os.File, error) {
	file, handled, err := newRules(version, unix.LANDLOCK_ACCESS_FS_READ_FILE)
	if err != nil {
		return nil, err
	}
	access := commonAccess(handled)
	allowBeside(access, []string{p.hidden}, unix.LANDLOCK_ACCESS_FS_READ_FILE)
	if !within(p.dir, p.hidden) { // of what is beside the judge's, all is listed
		access[p.dir] |= unix.LANDLOCK_ACCESS_FS_READ_FILE
	}
	for _, dir := range writable {
		access[dir] = handled
	}
	if err := allowAll(file, access); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// allowBeside adds a right to all but some directories, which have no links in their paths. What cannot be listed does not get it.
func allowBeside(access map[string]uint64, excluded []string, right uint64) {
	parents := map[string]bool{"/": true} // and the excluded
	for _, dir := range excluded {
		for ; filepath.IsAbs(dir) && !parents[dir]; dir = filepath.Dir(dir) {
			parents[dir] = true
		}
	}
	for dir := range parents {
		if slices.ContainsFunc(excluded, func(e string) bool { return within(e, dir) }) {
			continue
		}
		names, _ := os.ReadDir(dir)
		for _, d := range names {
			if path := filepath.Join(dir, d.Name()); !parents[path] && d.Type()&fs.ModeSymlink == 0 {
				access[path] |= right
			}
		}
	}
}

// changeTime returns when an entry was last made or removed in a directory; 0 without one.
func changeTime(dir string) (at syscall.Timespec) {
	if info, err := os.Stat(dir); err == nil {
		at = info.Sys().(*syscall.Stat_t).Ctim
	}
	return at
}

// restrict applies rules to this process, -1 for none, and a filter unless it is nil, with flags. With one of them, it
// returns a file that has the filter's notifications. It runs between fork and exec.
//
//go:norace
//go:nosplit
func restrict(rules int, filter *unix.SockFprog, flags uintptr) (uintptr, unix.Errno) {
	// Programs gain no privileges.
	if _, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return 0, errno
	}
	if rules >= 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); errno != 0 {
			return 0, errno
		}
	}
	if filter == nil {
		return 0, 0
	}
	file, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(filter))) //nolint:gosec // an argument of the kernel
	return file, errno
}

// allow adds a device, or a directory and everything below it, to a set of rules.
func allow(rules int, path string, access uint64) error {
	at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at) //nolint:errcheck // nothing was written
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(at)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 { //nolint:gosec // an argument of the kernel
		return errno
	}
	return nil
}
