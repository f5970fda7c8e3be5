package probe

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// calls are system calls that a job must not be able to make. Where one is allowed, its
// arguments keep it from doing anything, and the error is a different one.
var calls = []struct {
	name string
	try  func() error
}{
	{"mount", mount},
	{"remount of the root", func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"umount", func() error { return unix.Unmount("/proc/self/fd", unix.MNT_DETACH) }},
	{"a user namespace", func() error { return unshare(unix.CLONE_NEWUSER) }},
	{"a mount namespace", func() error { return unshare(unix.CLONE_NEWNS) }},
	{"a network namespace", func() error { return unshare(unix.CLONE_NEWNET) }},
	{"the namespace of another process", setns},
	{"pivot_root", func() error { return unix.PivotRoot("/", "/") }},
	{"a kernel module", func() error { return call(unix.SYS_INIT_MODULE, 0, 0) }},
	{"removal of a kernel module", func() error { return call(unix.SYS_DELETE_MODULE, 0, 0) }},
	{"another kernel", func() error { return call(unix.SYS_KEXEC_LOAD, 0, 1<<20) }},
	{"reboot", func() error { return call(unix.SYS_REBOOT, 0, 0) }},
	{"bpf", func() error { return call(unix.SYS_BPF, 0, 0) }},
	{"perf events", func() error { return call(unix.SYS_PERF_EVENT_OPEN, 0, 0) }},
	{"the kernel's keys", func() error { return call(unix.SYS_KEYCTL, 0, uintptr(0xfffffffd)) }},
	{"the kernel log", func() error { return call(unix.SYS_SYSLOG, 10, 0) }},
	{"a file by its handle", handle},
	{"the clock", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Nsec: -1}) }},
	{"the host's name", hostname},
	{"packet sockets", func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
	{"raw sockets", func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
	{"real-time priority", func() error {
		return unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	}},
	{"a higher priority", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) }},
	{"root", func() error { return setroot() }},
}

func mount() error {
	const over = "/dev/shm" // where no one misses anything
	err := unix.Mount("none", over, "tmpfs", 0, "")
	if err == nil {
		_ = unix.Unmount(over, unix.MNT_DETACH)
	}
	return err
}

// hostname sets the name to what it already is.
func hostname() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return unix.Sethostname([]byte(name))
}

func call(number, a, b uintptr) error {
	if _, _, errno := unix.Syscall6(number, a, b, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// unshare moves this thread out of its namespaces. The thread then ends.
func unshare(flags int) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		done <- unix.Unshare(flags)
	}()
	return <-done
}

func setns() error {
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

// handle opens the root of the file system below this one (inode 2), a known way to break
// out of containers.
func handle() error {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	got, err := unix.OpenByHandleAt(fd, unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}), unix.O_RDONLY)
	if err == nil {
		_ = unix.Close(got)
	}
	return err
}

func socket(domain, kind, proto int) error {
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, proto)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// setroot tries to become root. If the process is root already, it returns EALREADY.
func setroot() error {
	if os.Getuid() == 0 {
		return unix.EALREADY
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- call(unix.SYS_SETUID, 0, 0)
	}()
	return <-done
}

// idle does nothing. A forked process is a copy of this one with a single thread, in which Go's runtime
// does not work, so it makes only raw system calls.
//
//go:nosplit
//go:norace
func idle() {
	for {
		_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// daemon leaves an orphaned process behind in its own session.
//
//go:nosplit
//go:norace
func daemon() {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE_RANGE, 0, 1<<31, 0) // so that no one waits for its output
	pid, _, _ = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 {
		idle()
	}
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
