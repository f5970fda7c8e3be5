package runner

import (
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The offsets of struct seccomp_data (seccomp(2)) that filters read. Arguments are 64 bits wide; on
// amd64 and arm64 the lower half comes first.
const (
	atNumber = 0
	atArch   = 4
	atArgs   = 16
)

// x32 marks calls of amd64's third calling convention, which have numbers of their own.
const x32 = 0x40000000

// filter builds a seccomp program: a list of instructions that decides on each system call.
type filter []unix.SockFilter

func (f *filter) add(code uint16, k uint32, jt, jf int) {
	*f = append(*f, unix.SockFilter{Code: code, Jt: uint8(jt), Jf: uint8(jf), K: k})
}

func (f *filter) load(offset uint32) { f.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset, 0, 0) }

// loadArg loads the lower half of an argument, which is all of an int.
func (f *filter) loadArg(n uint32) { f.load(atArgs + 8*n) }

// skipIfNot skips as many instructions if the loaded value is not k.
func (f *filter) skipIfNot(k uint32, skip int) {
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, k, 0, skip)
}

func (f *filter) and(k uint32) { f.add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, k, 0, 0) }

func (f *filter) allow() { f.add(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW, 0, 0) }

// fail makes the call return an error, or 0 without having done anything.
func (f *filter) fail(errno unix.Errno) {
	f.add(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(errno), 0, 0)
}

// onCall adds what decides about one system call. What decides ends with allow or fail.
func (f *filter) onCall(number uint32, decide func(*filter)) {
	var inner filter
	decide(&inner)
	f.skipIfNot(number, len(inner))
	*f = append(*f, inner...)
}

// onAny is onCall for several system calls, which share what decides.
func (f *filter) onAny(decide func(*filter), numbers ...uint32) {
	var inner filter
	decide(&inner)
	f.oneOf(numbers, len(inner))
	*f = append(*f, inner...)
}

// oneOf skips the instructions that follow up to skip unless the loaded value is one of ks.
func (f *filter) oneOf(ks []uint32, skip int) {
	for i, k := range ks {
		f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, k, len(ks)-i, 0)
	}
	f.add(unix.BPF_JMP|unix.BPF_JA, uint32(skip), 0, 0)
}

// programFilter returns the filter for programs that this process judges, which has the given
// threads. Its user may do to it what a user may do to any process of his: change its priority, stop
// it, or look into it. And a process that leaves its group by setsid or setpgid outlives the group's
// end, so these have no effect. landlock is the kernel's version, 0 for none. With cores, it stays on those
// that it has, scheduled like others. first, if not nil, adds what decides first.
func programFilter(judge []uint32, landlock int, cores *unix.CPUSet, first func(*filter)) filter {
	var f filter
	f.onlyNative()
	if first != nil {
		first(&f)
	}
	f.refuseCalls()
	if landlock == landlockRefer {
		f.truncations()
	}
	f.onAny(func(f *filter) { f.fail(0) }, unix.SYS_SETSID, unix.SYS_SETPGID)
	f.limitScheduling(cores != nil)
	f.limitPriorities()
	f.limitSignals(judge)
	f.allow()
	return f
}

// onlyNative refuses the calls of other architectures, and loads the number of a call.
func (f *filter) onlyNative() {
	f.load(atArch)
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, auditArch(), 1, 0)
	f.fail(unix.ENOSYS)
	f.load(atNumber)
	f.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, x32, 0, 1)
	f.fail(unix.ENOSYS)
}

// refuseCalls refuses calls that reach out of a program, or into what is after it.
func (f *filter) refuseCalls() {
	f.onAny(func(f *filter) { f.fail(unix.EPERM) },
		// into other processes
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
		unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
		unix.SYS_PIDFD_SEND_SIGNAL, // takes a directory of /proc, too
		// past this filter
		unix.SYS_IO_URING_SETUP,
		// keys outlive a program
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	)
	// So do System V objects and POSIX message queues. Kernels without them answer in this way.
	f.onAny(func(f *filter) { f.fail(unix.ENOSYS) }, unix.SYS_SHMGET, unix.SYS_SEMGET, unix.SYS_MSGGET, unix.SYS_MQ_OPEN)
	f.onCall(unix.SYS_FCNTL, decideFcntl)
	f.onCall(unix.SYS_IOCTL, decideIoctl)
	// An attribute of a directory outlives a program, and the lack of one. File systems without attributes answer in
	// this way.
	f.onAny(func(f *filter) { f.fail(unix.ENOTSUP) },
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
		unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR)
	f.onCall(unix.SYS_SETSOCKOPT, decideSetsockopt)
}

// onlySelf decides about a call whose first argument is a process: 0, the calling one, is allowed.
func onlySelf(errno unix.Errno) func(*filter) {
	return func(f *filter) {
		f.loadArg(0)
		f.skipIfNot(0, 1)
		f.allow()
		f.fail(errno)
	}
}

// limitScheduling lets a program schedule itself alone, and not even that if it has cores of its own.
func (f *filter) limitScheduling(ownCores bool) {
	f.onAny(onlySelf(unix.EPERM), unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM)
	// Threads that are made with an affinity are not made if this fails.
	affinity, attributes := onlySelf(0), onlySelf(unix.EPERM)
	if ownCores {
		affinity = func(f *filter) { f.fail(0) }
		attributes = affinity // they have its slice, and the clock rate that it asks for
	}
	f.onCall(unix.SYS_SCHED_SETAFFINITY, affinity)
	f.onCall(unix.SYS_SCHED_SETATTR, attributes)
}

// limitPriorities lets a program limit and rank itself alone.
func (f *filter) limitPriorities() {
	f.onCall(unix.SYS_PRLIMIT64, func(f *filter) { // its third argument is the new limit
		f.loadArg(0)
		f.skipIfNot(0, 1)
		f.allow()
		f.loadArg(2)
		f.skipIfNot(0, 3)
		f.load(atArgs + 8*2 + 4)
		f.skipIfNot(0, 1)
		f.allow()
		f.fail(unix.EPERM)
	})
	// Of the user, that is, of the judge, too.
	own := func(user uint32) func(*filter) {
		return func(f *filter) {
			f.loadArg(0)
			f.skipIfNot(user, 1)
			f.fail(unix.EPERM)
			f.loadArg(1)
			f.skipIfNot(0, 1)
			f.allow()
			f.fail(unix.EPERM)
		}
	}
	f.onCall(unix.SYS_SETPRIORITY, own(unix.PRIO_USER))
	const ioprioUser = 3 // IOPRIO_WHO_USER of linux/ioprio.h
	f.onCall(unix.SYS_IOPRIO_SET, own(ioprioUser))
}

// limitSignals refuses signals to the judge's threads, to groups, and to all.
func (f *filter) limitSignals(judge []uint32) {
	f.onAny(func(f *filter) {
		f.loadArg(0)
		f.oneOf(judge, 1)
		f.fail(unix.EPERM)
		// A group is more than its members think, since setsid and setpgid have no effect.
		f.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, 1<<31, 1, 0)
		f.skipIfNot(0, 1)
		f.fail(unix.EPERM)
		f.allow()
	}, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_OPEN)
}

// ipv6FlowLabelManager is IPV6_FLOWLABEL_MGR (linux/in6.h).
const ipv6FlowLabelManager = 32

// decideSetsockopt decides about setsockopt. A flow label stays for up to a minute after its socket, with an address,
// and every process may read both in /proc/net/ip6_flowlabel. And who closes a connection's last descriptor waits for as
// long as SO_LINGER says: the runner, if one is sent to it, or the kernel's thread that collects unix sockets, and the next
// program finds the connection in /proc/net/tcp.
func decideSetsockopt(f *filter) {
	f.loadArg(1)
	f.skipIfNot(unix.SOL_SOCKET, 4)
	f.loadArg(2)
	f.skipIfNot(unix.SO_LINGER, 1)
	f.fail(0)
	f.allow()
	f.skipIfNot(unix.IPPROTO_IPV6, 3)
	f.loadArg(2)
	f.skipIfNot(ipv6FlowLabelManager, 1)
	f.fail(unix.ENOPROTOOPT)
	f.allow()
}

// truncations refuses what Landlock only rules since its third version: to empty a file that the program did not
// open for writing. With the access mode 3, which is for ioctl alone, Landlock asks for no right at all.
func (f *filter) truncations() {
	f.onCall(unix.SYS_TRUNCATE, func(f *filter) { f.fail(unix.EPERM) })
	f.onCall(unix.SYS_OPENAT2, func(f *filter) { f.fail(unix.ENOSYS) }) // its flags are in memory
	open := func(flags uint32) func(*filter) {
		return func(f *filter) {
			f.loadArg(flags)
			f.and(unix.O_TRUNC | unix.O_ACCMODE)
			f.oneOf([]uint32{unix.O_TRUNC | unix.O_RDONLY, unix.O_TRUNC | unix.O_ACCMODE}, 1)
			f.fail(unix.EPERM)
			f.allow()
		}
	}
	f.onAny(open(2), unix.SYS_OPENAT, unix.SYS_OPEN_BY_HANDLE_AT)
	if sysOpen != 0 {
		f.onCall(sysOpen, open(1))
	}
}

func auditArch() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

// canFilter reports whether this kernel has seccomp filters. Emulators such as qemu-user do not.
var canFilter = sync.OnceValue(func() bool {
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))) //nolint:gosec // an argument of the kernel
	return errno == 0
})
