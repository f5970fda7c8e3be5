package compile

import "golang.org/x/sys/unix"

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
)

// Calls are the numbers of the system calls that a compiler makes only with the runner's answer.
func Calls() []uint32 {
	numbers := []uint32{
		unix.SYS_OPENAT, sysFstatat, unix.SYS_STATX, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT, unix.SYS_UNLINKAT,
		unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_FCHMODAT, unix.SYS_MKDIRAT, unix.SYS_UTIMENSAT, unix.SYS_EXECVE, unix.SYS_GETCWD,
	}
	for n := range oldCalls {
		numbers = append(numbers, n)
	}
	return append(numbers, refused...)
}

// refused are those that a compiler cannot make: they look at files in ways that are not answered, change where paths
// lead, or reach out of the process. Compilers do without.
var refused = append(oldRefused, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_CHROOT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_MKNODAT,
	unix.SYS_TRUNCATE, unix.SYS_EXECVEAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_FANOTIFY_MARK,
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
		}
	}
	return c
}
