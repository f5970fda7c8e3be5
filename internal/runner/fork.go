package runner

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Package syscall calls these around its own fork. Go keeps the names for packages that
// must do more between fork and exec than syscall.SysProcAttr can.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// start starts the program, restricted, with files as descriptors 0, 1, …. Only the
// child enters the Landlock domain: programs may signal every process in their domain,
// and no thread of the runner may be in it. The thread that forks lives until release
// is called: so that no child outlives a killed runner, the kernel kills children when
// the thread that started them ends.
func (p program) start(path string, files []uintptr) (pid int, release func(), err error) {
	started, ended := make(chan error), make(chan struct{})
	release = func() { close(ended) }
	rules := -1
	if p.landlock > 0 {
		if rules, err = landlockRules(p.landlock, p.writable); err != nil {
			return 0, release, err
		}
		defer unix.Close(rules) //nolint:errcheck // nothing was written
	}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		pid, err = p.fork(path, files, rules)
		started <- err
		<-ended
	}()
	err = <-started
	return pid, release, err
}

// fork is syscall.ForkExec with the restrictions that start needs.
func (p program) fork(path string, files []uintptr, rules int) (int, error) {
	file, err := unix.BytePtrFromString(path)
	dir, derr := unix.BytePtrFromString(p.dir)
	argv, aerr := syscall.SlicePtrFromStrings(p.argv)
	env, eerr := syscall.SlicePtrFromStrings(p.env)
	if err = errors.Join(err, derr, aerr, eerr); err != nil {
		return 0, err
	}
	c := child{file: file, dir: dir, argv: &argv[0], env: &env[0], parent: os.Getpid(), rules: rules, open: fileLimit()}
	if canFilter() {
		f := programFilter(c.parent)
		c.filter = &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	}
	// High numbers, so that the child's dup3 to 0, 1, … overwrites none of them.
	for _, fd := range files {
		high, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 16)
		if err != nil {
			return 0, fmt.Errorf("duplicate file: %w", err)
		}
		defer unix.Close(high) //nolint:errcheck // a duplicate
		c.files = append(c.files, high)
	}
	var report [2]int
	if err := unix.Pipe2(report[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer unix.Close(report[0]) //nolint:errcheck // opened for reading
	c.report = report[1]
	pid, errno := c.fork()
	_ = unix.Close(report[1])
	if errno != 0 {
		return 0, fmt.Errorf("fork: %w", errno)
	}
	var failed [4]byte
	n, err := unix.Read(report[0], failed[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(report[0], failed[:])
	}
	if err != nil || n == 0 {
		return pid, err // it runs: the pipe was closed on exec
	}
	for _, err = unix.Wait4(pid, nil, 0, nil); errors.Is(err, unix.EINTR); {
		_, err = unix.Wait4(pid, nil, 0, nil)
	}
	return 0, unix.Errno(*(*uint32)(unsafe.Pointer(&failed))) //nolint:gosec // as the child wrote it
}

// fileLimit returns the limit of open files for programs. It is that of the parent
// process, because Go raises its own at startup. The zero value leaves the limit as it
// is.
func fileLimit() (l unix.Rlimit) {
	var own unix.Rlimit
	if unix.Prlimit(os.Getppid(), unix.RLIMIT_NOFILE, nil, &l) != nil || unix.Getrlimit(unix.RLIMIT_NOFILE, &own) != nil || l.Max != own.Max {
		return unix.Rlimit{}
	}
	return l
}

// child is what a forked process needs to become the program. Between fork and exec,
// its stack must not grow and nothing may be allocated.
type child struct {
	file, dir     *byte
	argv, env     **byte
	files         []int
	parent, rules int // process ID; Landlock rules, -1 for none
	report        int // pipe for the error
	filter        *unix.SockFprog
	open          unix.Rlimit
}

//go:norace
//go:noinline
func (c *child) fork() (int, unix.Errno) {
	beforeFork()
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		afterFork()
		return int(pid), errno
	}
	afterForkInChild()
	errno = c.exec()
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(c.report), uintptr(unsafe.Pointer(&errno)), 4) //nolint:gosec // an argument of the kernel
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, math.MaxUint8, 0, 0)
	}
}

//go:norace
//go:nosplit
func (c *child) exec() unix.Errno {
	if _, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0); errno != 0 {
		return errno
	}
	if parent, _, _ := unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); int(parent) != c.parent {
		return unix.ESRCH // the parent is already gone
	}
	if c.open.Max != 0 {
		if _, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&c.open)), 0, 0, 0); errno != 0 { //nolint:gosec // likewise
			return errno
		}
	}
	// A session and a group of its own, away from a terminal, which the filter keeps together.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno != 0 {
		return errno
	}
	if errno := restrict(c.rules, c.filter); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); errno != 0 { //nolint:gosec // likewise
		return errno
	}
	for i, fd := range c.files {
		if _, _, errno := unix.RawSyscall(unix.SYS_DUP3, uintptr(fd), uintptr(i), 0); errno != 0 {
			return errno
		}
	}
	_, _, errno := unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.file)), uintptr(unsafe.Pointer(c.argv)), uintptr(unsafe.Pointer(c.env))) //nolint:gosec // likewise
	return errno
}
