package compile

import "golang.org/x/sys/unix"

const machine = "x86_64"

// oldCalls are those of amd64 that newer machines do not have.
var oldCalls = map[uint32]func(a [6]uint64) call{
	unix.SYS_OPEN: func(a [6]uint64) call {
		return call{kind: openCall, at: unix.AT_FDCWD, path: a[0], flags: a[1], mode: uint32(a[2])}
	},
	unix.SYS_CREAT: func(a [6]uint64) call {
		return call{kind: openCall, at: unix.AT_FDCWD, path: a[0], flags: unix.O_CREAT | unix.O_WRONLY | unix.O_TRUNC, mode: uint32(a[1])}
	},
	unix.SYS_STAT: func(a [6]uint64) call { return call{kind: statCall, at: unix.AT_FDCWD, path: a[0], buffer: a[1]} },
	unix.SYS_LSTAT: func(a [6]uint64) call {
		return call{kind: statCall, at: unix.AT_FDCWD, path: a[0], buffer: a[1], flags: unix.AT_SYMLINK_NOFOLLOW}
	},
	unix.SYS_ACCESS: func(a [6]uint64) call {
		return call{kind: accessCall, at: unix.AT_FDCWD, path: a[0], mode: uint32(a[1])}
	},
	unix.SYS_READLINK: func(a [6]uint64) call {
		return call{kind: readlinkCall, at: unix.AT_FDCWD, path: a[0], buffer: a[1], size: a[2], flags: unix.AT_SYMLINK_NOFOLLOW}
	},
	unix.SYS_UNLINK: func(a [6]uint64) call {
		return call{kind: removeCall, at: unix.AT_FDCWD, path: a[0], flags: unix.AT_SYMLINK_NOFOLLOW}
	},
	unix.SYS_RMDIR: func(a [6]uint64) call {
		return call{kind: removeCall, at: unix.AT_FDCWD, path: a[0], flags: unix.AT_REMOVEDIR | unix.AT_SYMLINK_NOFOLLOW}
	},
	unix.SYS_RENAME: func(a [6]uint64) call {
		return call{kind: renameCall, at: unix.AT_FDCWD, path: a[0], otherAt: unix.AT_FDCWD, other: a[1], flags: unix.AT_SYMLINK_NOFOLLOW}
	},
	unix.SYS_CHMOD: func(a [6]uint64) call { return call{kind: modeCall, at: unix.AT_FDCWD, path: a[0], mode: uint32(a[1])} },
	unix.SYS_MKDIR: func(a [6]uint64) call {
		return call{kind: directoryCall, at: unix.AT_FDCWD, path: a[0], mode: uint32(a[1])}
	},
	unix.SYS_UTIME:     func(a [6]uint64) call { return call{kind: timeCall, at: unix.AT_FDCWD, path: a[0]} },
	unix.SYS_UTIMES:    func(a [6]uint64) call { return call{kind: timeCall, at: unix.AT_FDCWD, path: a[0]} },
	unix.SYS_FUTIMESAT: func(a [6]uint64) call { return call{kind: timeCall, at: int32(a[0]), path: a[1]} },
}

var oldRefused = []uint32{unix.SYS_LINK, unix.SYS_SYMLINK, unix.SYS_MKNOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_USELIB}

const sysFstatat = unix.SYS_NEWFSTATAT
