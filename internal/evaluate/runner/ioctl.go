package runner

import "golang.org/x/sys/unix"

// The commands of ioctl that set a file's owner (asm-generic/sockios.h).
const fioSetOwn, sioSetOwn = 0x8901, 0x8902

// ioctlType masks the type of a command of ioctl, which says what kind of file it is for
// (Documentation/userspace-api/ioctl/ioctl-number.rst).
const ioctlType = 0xff00

// readOnlyTypes are the types of terminals and of file systems. A program can open such a file for reading and
// change it all the same: stop the terminal's output, or keep a number with a directory. So of these types
// only what reads is allowed. GPUs have other types: NVIDIA's F (0x46) and 0, AMD's K (0x4b), DRM's d (0x64).
var readOnlyTypes = []uint32{
	0x5400,                         // T: terminals, and FIONBIO and the like of any file
	0x6600, 0x7600, 0x5800, 0x8300, // f, v, X: most file systems; zfs
	0x9400, 0xf500, 0xbc00, 0x9700, // btrfs, f2fs, bcachefs, ceph
}

// readingIoctls are the commands of these types that are allowed: they read, are about the descriptor alone, or
// about a terminal that the program made itself.
var readingIoctls = []uint32{
	unix.TCGETS, unix.TCGETS2, unix.TCGETA, unix.TIOCGWINSZ, unix.TIOCGPGRP, unix.TIOCGSID, unix.TIOCGETD, unix.TIOCGEXCL, unix.TIOCINQ, unix.TIOCOUTQ,
	0x5421, 0x5450, 0x5451, 0x5460, // FIONBIO, FIONCLEX, FIOCLEX, FIOQSIZE (asm-generic/ioctls.h); not FIOASYNC
	unix.TIOCGPTN, unix.TIOCSPTLCK, unix.TIOCGPTPEER, // of the other end, which only its maker has
	unix.FS_IOC_GETFLAGS, 0x801c581f, 0x80087601, 0xc020660b, // FS_IOC_FSGETXATTR, FS_IOC_GETVERSION, FS_IOC_FIEMAP (linux/fs.h, linux/fiemap.h)
	0xc0686611,                      // PROCMAP_QUERY (linux/fs.h)
	unix.FICLONE, unix.FICLONERANGE, // into a file that is open for writing
}

// setDelegation is F_SETDELEG of linux/fcntl.h since 6.19: a lease of a directory, too.
const setDelegation = 1040

// decideFcntl decides about fcntl. A file's owner gets signals, any signal with F_SETSIG; a terminal with O_ASYNC
// sends them to its foreground group, which is the runner's, without an owner being set. A lease holds up the
// next process that opens the file, and a hint stays with it.
func decideFcntl(f *filter) {
	f.loadArg(1)
	f.oneOf([]uint32{unix.F_SETOWN, unix.F_SETOWN_EX, unix.F_SETSIG, unix.F_SETLEASE, setDelegation, unix.F_SET_RW_HINT, unix.F_SET_FILE_RW_HINT}, 1)
	f.fail(unix.EPERM)
	f.skipIfNot(unix.F_SETFL, 4)
	f.loadArg(2)
	f.and(unix.O_ASYNC)
	f.skipIfNot(unix.O_ASYNC, 1)
	f.fail(unix.EPERM)
	f.allow()
}

// decideIoctl decides about ioctl by its command.
func decideIoctl(f *filter) {
	var read filter
	read.loadArg(1)
	read.oneOf(readingIoctls, 1)
	read.allow()
	read.fail(unix.EPERM)

	f.loadArg(1)
	f.and(ioctlType)
	f.oneOf(readOnlyTypes, len(read))
	*f = append(*f, read...)
	f.loadArg(1)
	f.oneOf([]uint32{fioSetOwn, sioSetOwn}, 1)
	f.fail(unix.EPERM)
	f.allow()
}
