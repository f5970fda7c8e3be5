package compile

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// answer is what the runner tells the kernel.
type answer struct {
	// goOn has the kernel make the call, and read a path in it again. A plugin could have made it that of a program's file, which
	// is no fact then.
	goOn  bool
	value int64
	errno unix.Errno
	file  int // to give the compiler as a descriptor, if not negative
	flags int // of that
}

func fails(errno unix.Errno) answer { return answer{errno: errno, file: -1} }

func returns(value int64) answer { return answer{value: value, file: -1} }

var goOn = answer{goOn: true, file: -1}

// answer answers a call of a process.
func (t *trace) answer(pid int, c call) answer {
	switch c.kind {
	case unknown:
		return fails(t.refuse(fmt.Errorf("a call that is not answered: %w", errNotShared), unix.EPERM))
	case whereCall:
		return t.where(pid, c)
	case processCall:
		if c.process == 0 || c.process > 0 && isThread(pid, c.process) {
			return goOn // the kernel reads no memory for it
		}
		return fails(t.refuse(fmt.Errorf("look at another process: %w", errNotShared), unix.EPERM))
	}
	if c.path == 0 {
		return goOn // about a descriptor
	}
	text, ok := readText(pid, c.path)
	if !ok || !t.isThere() {
		return fails(t.refuse(errUnreadable, unix.EFAULT))
	}
	if text == "" && c.mayBeEmpty() {
		if c.at != unix.AT_FDCWD {
			return t.ofDescriptor(pid, c)
		}
		text = "."
	}
	nofollow := c.flags&unix.AT_SYMLINK_NOFOLLOW != 0 || c.kind == openCall && c.flags&unix.O_NOFOLLOW != 0
	p, errno := t.locateAt(pid, c.at, text, !nofollow)
	if errno != 0 {
		return fails(errno)
	}
	switch {
	case p.kind == volatile:
		return t.ofKernel(pid, p, c)
	case p.kind == image && p.direct && c.kind == executeCall:
		return goOn // the kernel finds the same; if not, it executes nothing of a program's
	case p.kind == image:
		return t.ofImage(pid, p, c)
	}
	return t.answerInside(pid, p.path, c)
}

// answerInside answers a call about a file below the directories of programs.
func (t *trace) answerInside(pid int, name string, c call) answer {
	switch c.kind {
	case openCall:
		return t.open(name, int(c.flags), c.mode)
	case statCall, statxCall:
		return t.stat(pid, name, c)
	case accessCall:
		return t.access(name, c.mode)
	case readlinkCall:
		return t.readLink(name)
	case removeCall:
		if c.flags&unix.AT_REMOVEDIR != 0 {
			return fails(t.remove(name, isDirectory))
		}
		return fails(t.remove(name, isFile))
	case renameCall:
		return t.rename(pid, name, c)
	case modeCall, timeCall:
		return t.change(name, c)
	case directoryCall:
		return t.makeDirectory(name, c.mode)
	}
	// To execute what a program made: its compiler is not this one.
	return fails(t.refuse(fmt.Errorf("execute %s: %w", name, errNotShared), unix.EACCES))
}

// isThread reports whether an ID is that of a process, or of one of its threads.
func isThread(pid int, id int32) bool {
	return unix.Access("/proc/"+strconv.Itoa(pid)+"/task/"+strconv.Itoa(int(id)), unix.F_OK) == nil
}

// locateAt says where a path leads, from a directory that a process has open.
func (t *trace) locateAt(pid int, at int32, text string, follow bool) (place, unix.Errno) {
	dir := t.dir
	if at != unix.AT_FDCWD && !path.IsAbs(text) {
		open := make([]byte, unix.PathMax)
		n, err := unix.Readlink("/proc/"+strconv.Itoa(pid)+"/fd/"+strconv.Itoa(int(at)), open)
		dir = string(open[:max(0, n)])
		if err != nil || !path.IsAbs(dir) {
			return place{}, unix.EBADF
		}
	}
	return t.locate(dir, text, follow)
}

// ofDescriptor answers a call about what a process has open.
func (t *trace) ofDescriptor(pid int, c call) answer {
	name := "/proc/" + strconv.Itoa(pid) + "/fd/" + strconv.Itoa(int(c.at))
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return fails(unix.EBADF)
	}
	switch c.kind {
	case accessCall:
		return fails(errnoOf(unix.Access(name, c.mode)))
	case timeCall:
		return returns(0) // times are not kept
	}
	return t.report(pid, c, &st)
}

// ofKernel answers a call about a file of the kernel's, or a device.
func (t *trace) ofKernel(pid int, p place, c call) answer {
	if p.path == "/dev/tty" {
		return fails(unix.ENXIO) // it has no terminal
	}
	if !slices.Contains(steady, p.path) {
		return fails(t.refuse(fmt.Errorf("%s is the kernel's: %w", p.path, errNotShared), unix.ENOENT))
	}
	name := p.path
	if rest, own := strings.CutPrefix(name, "/proc/self/"); own {
		name = "/proc/" + strconv.Itoa(pid) + "/" + rest
	}
	var st unix.Stat_t
	var err error
	switch c.kind {
	case openCall:
		if name != os.DevNull && c.flags&unix.O_ACCMODE != unix.O_RDONLY {
			return fails(unix.EACCES)
		}
		fd, err := unix.Open(name, int(c.flags&(unix.O_ACCMODE|unix.O_DIRECTORY|unix.O_NOFOLLOW))|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			return fails(errnoOf(err))
		}
		return answer{file: fd, flags: int(c.flags)}
	case statCall, statxCall:
		if err = unix.Stat(name, &st); c.flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
			err = unix.Lstat(name, &st)
		}
		if err == nil {
			return t.report(pid, c, &st)
		}
	case accessCall:
		err = unix.Access(name, c.mode)
	case readlinkCall:
		to := make([]byte, min(c.size, unix.PathMax))
		var n int
		if n, err = unix.Readlink(name, to); err == nil {
			return t.written(pid, c.buffer, to[:n], int64(n))
		}
	default:
		err = unix.EACCES
	}
	return fails(errnoOf(err))
}

// ofImage answers a call about a file of the image.
func (t *trace) ofImage(pid int, p place, c call) answer {
	switch c.kind {
	case openCall:
		if c.flags&(unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC) != 0 {
			return fails(unix.EACCES)
		}
		fd, err := openImage(p.path, c.flags)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return fails(errnoOf(err))
		}
		if err != nil {
			return fails(t.refuse(err, errnoOf(err)))
		}
		return answer{file: fd, flags: int(c.flags)}
	case statCall, statxCall:
		var st unix.Stat_t
		if err := unix.Lstat(p.path, &st); err != nil {
			return fails(errnoOf(err))
		}
		return t.report(pid, c, &st)
	case accessCall:
		return fails(errnoOf(unix.Access(p.path, c.mode)))
	case readlinkCall:
		if to := t.links.target(p.path); to != "" {
			to = to[:min(uint64(len(to)), c.size)]
			return t.written(pid, c.buffer, []byte(to), int64(len(to)))
		}
		if err := unix.Access(p.path, unix.F_OK); err != nil {
			return fails(errnoOf(err))
		}
		return fails(unix.EINVAL)
	}
	// The kernel would read the path again, and its error would say whether a program's file is there.
	switch err := unix.Lstat(p.path, new(unix.Stat_t)); {
	case err == nil && c.kind == directoryCall:
		return fails(unix.EEXIST)
	case err != nil && (c.kind != directoryCall || unix.Access(path.Dir(p.path), unix.F_OK) != nil):
		return fails(errnoOf(err))
	}
	return fails(unix.EACCES)
}

// openImage opens a file or directory of the image. The runner may read what no compiler may, its own files in /proc
// above all, wherever that is mounted.
func openImage(name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags&unix.O_DIRECTORY | unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &how)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	var system unix.Statfs_t
	err = errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &system))
	if kind := st.Mode & unix.S_IFMT; err == nil && (kind != unix.S_IFREG && kind != unix.S_IFDIR || system.Type == unix.PROC_SUPER_MAGIC) {
		err = unix.EACCES
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// open opens a file below the directories of programs.
func (t *trace) open(name string, flags int, mode uint32) answer {
	n, errno := t.observeOnce(name)
	if errno != 0 {
		return fails(errno)
	}
	writes := flags&unix.O_ACCMODE != unix.O_RDONLY
	switch {
	case flags&unix.O_TMPFILE == unix.O_TMPFILE:
		return fails(unix.EOPNOTSUPP)
	case n.kind == isDirectory && (writes || flags&unix.O_CREAT != 0):
		return fails(unix.EISDIR)
	case n.kind == isDirectory && name == t.scratch:
		fd, err := unix.FcntlInt(t.listing.Fd(), unix.F_DUPFD_CLOEXEC, 0) // nvcc looks for what it left there
		if err != nil {
			return fails(t.refuse(err, unix.EIO))
		}
		return answer{file: fd, flags: flags}
	case n.kind == isDirectory:
		return fails(t.refuse(fmt.Errorf("the names in %s are no facts: %w", name, errNotShared), unix.EACCES))
	case flags&unix.O_DIRECTORY != 0 && n.kind == isFile:
		return fails(unix.ENOTDIR)
	case n.kind == isAbsent && flags&unix.O_CREAT == 0:
		return fails(unix.ENOENT)
	case n.kind == isFile && flags&unix.O_CREAT != 0 && flags&unix.O_EXCL != 0:
		return fails(unix.EEXIST)
	case writes && n.kind == isFile && !n.made && n.mode&0o200 == 0 && unix.Geteuid() != 0:
		return fails(t.refuse(fmt.Errorf("write to %s: %w", name, errNotShared), unix.EACCES))
	case n.kind == isAbsent, flags&unix.O_TRUNC != 0 && !n.made, writes && !n.made:
		n, errno = t.make(name, isFile, mode&^t.umask, flags&unix.O_TRUNC == 0)
		if errno != 0 {
			return fails(errno)
		}
	}
	fd, err := reopen(n.file, flags&(unix.O_ACCMODE|unix.O_APPEND|unix.O_TRUNC))
	if err != nil {
		return fails(t.refuse(err, unix.EIO))
	}
	return answer{file: fd, flags: flags}
}

// stat describes a file as fstat(2) describes what the compiler opens there: cp compares the two.
func (t *trace) stat(pid int, name string, c call) answer {
	n, errno := t.observeOnce(name)
	switch {
	case errno != 0:
		return fails(errno)
	case n.kind == isAbsent:
		return fails(unix.ENOENT)
	}
	var st unix.Stat_t
	if n.kind == isFile {
		if err := unix.Fstat(int(n.file.Fd()), &st); err != nil {
			return fails(t.refuse(err, unix.EIO))
		}
		st.Nlink = 1
		return t.report(pid, c, &st)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	st = unix.Stat_t{Dev: 1, Ino: h.Sum64() | 1, Nlink: 2, Mode: unix.S_IFDIR | n.mode, Uid: uint32(unix.Geteuid()), Gid: uint32(unix.Getegid()), Blksize: 4096}
	return t.report(pid, c, &st)
}

// report writes a description to a process.
func (t *trace) report(pid int, c call, st *unix.Stat_t) answer {
	if c.kind == statCall {
		return t.written(pid, c.buffer, unsafe.Slice((*byte)(unsafe.Pointer(st)), unsafe.Sizeof(*st)), 0) //nolint:gosec // as the kernel writes it
	}
	x := unix.Statx_t{
		Mask: unix.STATX_BASIC_STATS, Blksize: uint32(st.Blksize), Nlink: uint32(st.Nlink), Uid: st.Uid, Gid: st.Gid, Mode: uint16(st.Mode),
		Ino: st.Ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks),
		Atime: unix.StatxTimestamp{Sec: st.Atim.Sec}, Mtime: unix.StatxTimestamp{Sec: st.Mtim.Sec}, Ctime: unix.StatxTimestamp{Sec: st.Ctim.Sec},
		Dev_major: unix.Major(st.Dev), Dev_minor: unix.Minor(st.Dev),
	}
	return t.written(pid, c.buffer, unsafe.Slice((*byte)(unsafe.Pointer(&x)), unsafe.Sizeof(x)), 0) //nolint:gosec // likewise
}

// access says whether a compiler may access a file.
func (t *trace) access(name string, mode uint32) answer {
	n, errno := t.observeOnce(name)
	switch {
	case errno != 0:
		return fails(errno)
	case n.kind == isAbsent:
		return fails(unix.ENOENT)
	case mode&unix.X_OK != 0 && n.mode&0o111 == 0:
		return fails(unix.EACCES)
	}
	return returns(0)
}

// readLink says that a file is no link: none is below these directories.
func (t *trace) readLink(name string) answer {
	n, errno := t.observeOnce(name)
	switch {
	case errno != 0:
		return fails(errno)
	case n.kind == isAbsent:
		return fails(unix.ENOENT)
	}
	return fails(unix.EINVAL)
}

// change changes the mode of a file that the compiler made. Times are not kept.
func (t *trace) change(name string, c call) answer {
	n, errno := t.observeOnce(name)
	switch {
	case errno != 0:
		return fails(errno)
	case !n.made:
		return fails(t.refuse(errNotShared, unix.EPERM))
	case c.kind == modeCall:
		n.mode = c.mode & 0o777
		t.describe(n)
	}
	return returns(0)
}

func (t *trace) makeDirectory(name string, mode uint32) answer {
	n, errno := t.observeOnce(name)
	if errno == 0 && n.kind != isAbsent {
		errno = unix.EEXIST
	}
	if errno == 0 {
		_, errno = t.make(name, isDirectory, mode&^t.umask, false)
	}
	return fails(errno)
}

// rename renames a file that the compiler made.
func (t *trace) rename(pid int, name string, c call) answer {
	text, ok := readText(pid, c.other)
	if !ok || !t.isThere() {
		return fails(t.refuse(errUnreadable, unix.EFAULT))
	}
	to, errno := t.locateAt(pid, c.otherAt, text, false)
	if errno != 0 {
		return fails(errno)
	}
	n, errno := t.observeOnce(name)
	switch {
	case errno != 0:
		return fails(errno)
	case n.kind == isAbsent:
		return fails(unix.ENOENT)
	case to.kind != inside || !n.made || n.kind != isFile || c.mode != 0:
		return fails(t.refuse(errNotShared, unix.EXDEV))
	case to.path == name:
		return returns(0)
	}
	made, errno := t.make(to.path, isFile, n.mode, false)
	if errno != 0 {
		return fails(errno)
	}
	_ = made.file.Close()
	made.file, made.mode = n.file, n.mode
	n.file = nil
	t.put(name, &node{made: true, was: n.was})
	return returns(0)
}

// where tells a process its directory.
func (t *trace) where(pid int, c call) answer {
	text := append([]byte(t.dir), 0)
	if uint64(len(text)) > c.size {
		return fails(unix.ERANGE)
	}
	return t.written(pid, c.buffer, text, int64(len(text)))
}
