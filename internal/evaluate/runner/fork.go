package runner

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
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

// vfork returns twice: 0 in a child, which uses this process's memory and stack while this thread waits,
// and when the child has executed a program or ended, its process ID, or a negative error. To copy the
// memory instead takes as long as to start a small program.
func vfork() int

// A forker is a thread that forks a program, and the compilers that it asks for. So that no child outlives a killed
// runner, the kernel kills children when the thread that started them ends.
type forker chan func()

func newForker() forker {
	f := make(forker)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for do := range f {
			do()
		}
	}()
	return f
}

// start starts a program, restricted, with files as descriptors 0, 1, …. Only the child enters the Landlock domain:
// programs may signal every process in their domain, and no thread of the runner may be in it.
func (f forker) start(p program, path string, files []uintptr) (pid int, err error) {
	rules := -1
	if p.landlock > 0 {
		rulesOf := landlockRules
		if p.worker != nil {
			rulesOf = p.workerRules
		}
		file, err := rulesOf(p.landlock, p.writable)
		if err != nil {
			return 0, err
		}
		if p.worker != nil {
			defer file.Close() //nolint:errcheck // it has them
		}
		rules = int(file.Fd())
	}
	done := make(chan struct{})
	f <- func() {
		defer close(done)
		var judge []uint32
		if canFilter() {
			if judge, err = threads(p.worker != nil); err != nil {
				return
			}
		}
		var c *child
		if c, err = p.child(path, rules); err != nil {
			return
		}
		c.setFilter(programFilter(judge, p.landlock, p.cores, nil))
		if p.worker == nil {
			pid, err = c.run(files)
			return
		}
		pid, err = helpers.start(p.worker, func() (int, error) { return c.run(files) })
	}
	<-done
	return pid, err
}

// child prepares to fork.
func (p program) child(path string, rules int) (*child, error) {
	file, err := unix.BytePtrFromString(path)
	dir, derr := unix.BytePtrFromString(p.dir)
	argv, aerr := syscall.SlicePtrFromStrings(p.exec)
	env, eerr := syscall.SlicePtrFromStrings(p.env)
	if err = errors.Join(err, derr, aerr, eerr); err != nil {
		return nil, err
	}
	c := &child{file: file, dir: dir, argv: &argv[0], env: &env[0], parent: os.Getpid(), rules: rules, open: fileLimit(), cores: p.cores}
	return c, c.keepCapabilities(p.capabilities())
}

func (c *child) setFilter(f filter) {
	if canFilter() {
		c.filter = &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	}
}

// run is syscall.ForkExec with the restrictions that a child needs.
func (c *child) run(files []uintptr) (int, error) {
	// High numbers, so that the child's dup3 to 0, 1, … overwrites none of them.
	for _, fd := range files {
		high, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 16)
		if err != nil {
			return 0, fmt.Errorf("duplicate file: %w", err)
		}
		defer unix.Close(high) //nolint:errcheck // a duplicate
		c.files = append(c.files, high)
	}
	setScore([]byte(highestScore))
	pid := c.fork()
	afterFork()
	setScore(ownScore.was)
	if pid < 0 {
		return 0, fmt.Errorf("fork: %w", unix.Errno(-pid))
	}
	if c.failed == 0 {
		return pid, nil
	}
	_, err := unix.Wait4(pid, nil, 0, nil)
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Wait4(pid, nil, 0, nil)
	}
	return 0, c.failed
}

// threads lists the threads of this process, and of those above and beside it: a parent may be a shell that goes on. A
// program is told from them by its filter, so spareThreads made those that it may need in the meantime. With below, it lists
// the threads below this process, too: a worker's judge.
func threads(below bool) ([]uint32, error) {
	ids, err := tasks("self")
	if err != nil {
		return nil, fmt.Errorf("list own threads: %w", err)
	}
	others := append(lineage()[1:], pipeline(group())...)
	if below {
		others = append(others, descendants()...)
	}
	for _, pid := range others {
		ids = append(ids, uint32(pid))
	}
	for _, pid := range others {
		more, _ := tasks(strconv.Itoa(pid)) // one that ended has none
		ids = append(ids, more...)
	}
	return ids[:min(len(ids), maxThreads)], nil
}

// tasks lists the threads of a process. kill(2) takes the ID of each for the process.
func tasks(pid string) (ids []uint32, err error) {
	names, err := os.ReadDir(filepath.Join("/proc", pid, "task"))
	for _, n := range names {
		if id, err := strconv.ParseUint(n.Name(), 10, 31); err == nil {
			ids = append(ids, uint32(id))
		}
	}
	return ids, err
}

// maxThreads bounds the threads that a filter knows.
const maxThreads = 128

// containerCapabilities are those of root in a container of Docker, and the right to lock memory.
// Others let a program forge its process ID, run before all others, or look into the runner.
const containerCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_KILL |
	1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_RAW |
	1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_MKNOD | 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_IPC_LOCK

// capabilities returns those that root's program may have.
func (p program) capabilities() uint64 {
	keep := uint64(containerCapabilities)
	if p.wrapped {
		keep = math.MaxUint64 // a profiler may need more, and nothing depends on what it reports
	}
	if p.landlock == 0 {
		// Root's programs cannot look into a process that has a capability which they lack
		// (ptrace(2)), so they lose one that they do not need. Other users have none to lose: for
		// them the runner must be process 1.
		keep &^= 1 << unix.CAP_SETFCAP
	}
	return keep
}

// losesCapability reports whether programs lose a capability that processes like this one have, and so cannot look into
// them, without Landlock.
func losesCapability() bool {
	header, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	return unix.Capget(&header, &caps[0]) == nil && caps[0].Permitted&(1<<unix.CAP_SETFCAP) != 0
}

// keepCapabilities prepares to take capabilities away. On exec, root's program gets those that the
// bounding set has and those that are inheritable (capabilities(7)).
func (c *child) keepCapabilities(keep uint64) error {
	c.keep, c.capHeader = keep, unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&c.capHeader, &c.caps[0]); err != nil {
		return fmt.Errorf("read own capabilities: %w", err)
	}
	c.caps[0].Inheritable &= uint32(keep)
	c.caps[1].Inheritable &= uint32(keep >> 32)
	return nil
}

// dropCapabilities runs between fork and exec.
//
//go:norace
//go:nosplit
func (c *child) dropCapabilities() unix.Errno {
	for n := range uintptr(64) {
		if c.keep>>n&1 != 0 {
			continue
		}
		_, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0)
		if errno == unix.EINVAL || errno == unix.EPERM {
			break // the kernel has no more, or the process has no right to, as few users need it
		}
		if errno != 0 {
			return errno
		}
	}
	_, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&c.capHeader)), uintptr(unsafe.Pointer(&c.caps)), 0) //nolint:gosec // arguments of the kernel
	return errno
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
	parent, rules int        // process ID; Landlock rules, -1 for none
	failed        unix.Errno // why it did not become the program
	filter        *unix.SockFprog
	hand          *handOver // of the filter's notifications, if not nil
	umask         int       // of a compiler
	open          unix.Rlimit
	cores         *unix.CPUSet
	keep          uint64 // capabilities
	capHeader     unix.CapUserHeader
	caps          [2]unix.CapUserData
}

// fork returns in the parent once the child has executed its program or ended. By then the child has
// used fork's stack, so the parent must return at once and call afterFork outside.
//
//go:norace
//go:noinline
func (c *child) fork() int {
	beforeFork()
	if pid := vfork(); pid != 0 {
		return pid
	}
	afterForkInChild()
	c.failed = c.exec()
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
	if c.cores != nil {
		if _, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(*c.cores), uintptr(unsafe.Pointer(c.cores))); errno != 0 { //nolint:gosec // likewise
			return errno
		}
	}
	// A session and a group of its own, away from a terminal, which the filter keeps together.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno != 0 {
		return errno
	}
	if errno := c.dropCapabilities(); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); errno != 0 { //nolint:gosec // likewise
		return errno
	}
	flags := uintptr(0)
	if c.hand != nil {
		_, _, _ = unix.RawSyscall(unix.SYS_UMASK, uintptr(c.umask), 0, 0) // it cannot fail
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	file, errno := restrict(c.rules, c.filter, flags)
	if errno != 0 {
		return errno
	}
	if c.hand != nil {
		c.hand.control.file = int32(file)
		if _, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(c.hand.socket), uintptr(unsafe.Pointer(&c.hand.message)), 0); errno != 0 { //nolint:gosec // likewise
			return errno
		}
	}
	for i, fd := range c.files {
		if _, _, errno := unix.RawSyscall(unix.SYS_DUP3, uintptr(fd), uintptr(i), 0); errno != 0 {
			return errno
		}
	}
	_, _, errno = unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.file)), uintptr(unsafe.Pointer(c.argv)), uintptr(unsafe.Pointer(c.env))) //nolint:gosec // likewise
	return errno
}
