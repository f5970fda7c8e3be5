package compile

import (
	"slices"

	"golang.org/x/sys/unix"
)

// call is a system call that names a file, in the form that all of its kind have.
type call struct {
	kind         callKind
	at           int32  // directory
	path         uint64 // address of the text
	flags        uint64
	mode         uint32
	buffer, size uint64
	otherAt      int32
	other        uint64
	process      int32 // or a thread; 0 for the caller
}

type callKind int

const (
	unknown callKind = iota
	openCall
	statCall
	statxCall
	accessCall
	readlinkCall
	removeCall
	renameCall
	modeCall
	directoryCall
	timeCall
	executeCall
	whereCall
	processCall
)

// mayBeEmpty reports whether the call is about its descriptor if the path is empty. The flag is another one's of open(2).
func (c call) mayBeEmpty() bool {
	return c.flags&unix.AT_EMPTY_PATH != 0 && (c.kind == statCall || c.kind == statxCall || c.kind == accessCall || c.kind == timeCall)
}

// Calls are the numbers of the system calls that a compiler makes only with the runner's answer.
func Calls() []uint32 {
	numbers := []uint32{
		unix.SYS_OPENAT, sysFstatat, unix.SYS_STATX, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT, unix.SYS_UNLINKAT,
		unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_FCHMODAT, unix.SYS_MKDIRAT, unix.SYS_UTIMENSAT, unix.SYS_EXECVE, unix.SYS_GETCWD,
	}
	for n := range oldCalls {
		numbers = append(numbers, n)
	}
	return slices.Concat(numbers, processCalls, refused)
}

// processCalls look at a process by its ID: a program could keep a message in its limits, its priority, or the IDs of its
// children, which no fact has.
var processCalls = []uint32{
	unix.SYS_PRLIMIT64, unix.SYS_GETPGID, unix.SYS_GETSID, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_GETATTR, unix.SYS_SCHED_GETPARAM,
	unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_RR_GET_INTERVAL, unix.SYS_GET_ROBUST_LIST, unix.SYS_GETPRIORITY, unix.SYS_SETPRIORITY,
	unix.SYS_IOPRIO_GET, unix.SYS_IOPRIO_SET, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
}

// Clocks are the numbers of system calls that look at a process if their first argument, a clock, is negative.
func Clocks() []uint32 {
	return []uint32{unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_TIMER_CREATE}
}

// Fcntls are the commands of fcntl that are refused: those that see locks of programs.
func Fcntls() []uint32 {
	return []uint32{unix.F_GETLK, unix.F_SETLK, unix.F_SETLKW, unix.F_OFD_GETLK, unix.F_OFD_SETLK, unix.F_OFD_SETLKW}
}

// processOf returns the process of a call that looks at one, -1 for several.
func processOf(number uint32, a [6]uint64) int32 {
	first, second := int32(a[0]), int32(a[1])
	one := int32(unix.PRIO_PROCESS)
	switch number {
	case unix.SYS_TGKILL, unix.SYS_RT_TGSIGQUEUEINFO:
		return second
	case unix.SYS_IOPRIO_GET, unix.SYS_IOPRIO_SET:
		one = 1 // IOPRIO_WHO_PROCESS of linux/ioprio.h
		fallthrough
	case unix.SYS_GETPRIORITY, unix.SYS_SETPRIORITY:
		if first != one {
			return -1
		}
		return second
	case unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_TIMER_CREATE:
		return ^(first >> 3) // clock_getcpuclockid(3)
	case unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO:
		if first == 0 { // the group
			return -1
		}
	}
	return first
}

// refused are those that a compiler cannot make: they look at files in ways that are not answered, see what programs
// lock, change where paths lead, or reach out of the process. Compilers do without.
var refused = append(oldRefused, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_CHROOT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_MKNODAT,
	unix.SYS_TRUNCATE, unix.SYS_EXECVEAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLOCK, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_FANOTIFY_MARK,
	unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_PIVOT_ROOT)

// Missing are the numbers of those that a compiler is told that the kernel does not have, so that it takes another, or does
// without.
func Missing() []uint32 {
	return []uint32{unix.SYS_OPENAT2, unix.SYS_STATFS, unix.SYS_GETXATTRAT, unix.SYS_LISTXATTRAT, unix.SYS_FILE_GETATTR}
}

// decode gives a call its common form.
func decode(number int32, a [6]uint64) call {
	c := call{at: int32(a[0]), path: a[1]}
	switch number {
	case unix.SYS_OPENAT:
		c.kind, c.flags, c.mode = openCall, a[2], uint32(a[3])
	case sysFstatat:
		c.kind, c.buffer, c.flags = statCall, a[2], a[3]
	case unix.SYS_STATX:
		c.kind, c.flags, c.buffer = statxCall, a[2], a[4]
	case unix.SYS_FACCESSAT:
		c.kind, c.mode = accessCall, uint32(a[2])
	case unix.SYS_FACCESSAT2:
		c.kind, c.mode, c.flags = accessCall, uint32(a[2]), a[3]
	case unix.SYS_READLINKAT:
		c.kind, c.buffer, c.size, c.flags = readlinkCall, a[2], a[3], unix.AT_SYMLINK_NOFOLLOW
	case unix.SYS_UNLINKAT:
		c.kind, c.flags = removeCall, a[2]&unix.AT_REMOVEDIR|unix.AT_SYMLINK_NOFOLLOW
	case unix.SYS_RENAMEAT:
		c.kind, c.otherAt, c.other, c.flags = renameCall, int32(a[2]), a[3], unix.AT_SYMLINK_NOFOLLOW
	case unix.SYS_RENAMEAT2:
		c.kind, c.otherAt, c.other, c.mode, c.flags = renameCall, int32(a[2]), a[3], uint32(a[4]), unix.AT_SYMLINK_NOFOLLOW
	case unix.SYS_FCHMODAT:
		c.kind, c.mode = modeCall, uint32(a[2])
	case unix.SYS_MKDIRAT:
		c.kind, c.mode = directoryCall, uint32(a[2])
	case unix.SYS_UTIMENSAT:
		c.kind, c.flags = timeCall, a[3]
	case unix.SYS_EXECVE:
		c = call{kind: executeCall, at: unix.AT_FDCWD, path: a[0]}
	case unix.SYS_GETCWD:
		c = call{kind: whereCall, buffer: a[0], size: a[1]}
	default:
		if old := oldCalls[uint32(number)]; old != nil {
			c = old(a)
		} else if slices.Contains(processCalls, uint32(number)) || slices.Contains(Clocks(), uint32(number)) {
			c = call{kind: processCall, process: processOf(uint32(number), a)}
		}
	}
	return c
}
