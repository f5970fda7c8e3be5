package compile

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif of linux/seccomp.h.
type notification struct {
	id     uint64
	pid    uint32
	flags  uint32
	number int32
	arch   uint32
	ip     uint64
	args   [6]uint64
}

// reply is struct seccomp_notif_resp.
type reply struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// addition is struct seccomp_notif_addfd.
type addition struct {
	id        uint64
	flags     uint32
	file      uint32
	as        uint32
	fileFlags uint32
}

// The commands of ioctl for them.
const (
	ioctlReceive = unix.SECCOMP_IOCTL_NOTIF_RECV
	ioctlSend    = unix.SECCOMP_IOCTL_NOTIF_SEND
	ioctlValid   = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	ioctlAdd     = 0x40182103 // SECCOMP_IOCTL_NOTIF_ADDFD
)

// trace answers the calls of a compiler and of all that it starts.
type trace struct {
	*files
	calls *os.File
	id    uint64 // of the call that is answered
	work  func() (done func())
}

// run answers until all processes of the compiler are gone, or the file is closed.
func (t *trace) run() {
	for {
		n, ok := t.next()
		if !ok {
			return
		}
		done := t.work()
		t.reply(n, t.safely(n))
		done()
	}
}

// next waits for a call. ok is false if there is none to come.
func (t *trace) next() (n *notification, ok bool) {
	conn, err := t.calls.SyscallConn()
	if err != nil {
		return nil, false
	}
	err = conn.Read(func(fd uintptr) bool {
		for {
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			got, err := unix.Poll(ready, 0)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err == nil && got == 0:
				return false
			case err != nil, ready[0].Revents&unix.POLLIN == 0:
				return true // POLLHUP: no process has the filter anymore
			}
			n = &notification{}
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlReceive, uintptr(unsafe.Pointer(n))); errno == 0 { //nolint:gosec // an argument of the kernel
				ok = true
				return true
			}
			// The process ended, and its call with it.
		}
	})
	return n, ok && err == nil
}

// safely answers a call, whatever is wrong with it: a fault must not end the runner.
func (t *trace) safely(n *notification) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a = fails(t.refuse(errNotShared, unix.EIO))
		}
	}()
	t.id = n.id
	return t.answer(int(n.pid), decode(n.number, n.args))
}

// isThere reports whether the process still waits for the answer: another one may have its process ID by now.
func (t *trace) isThere() (ok bool) {
	if conn, err := t.calls.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlValid, uintptr(unsafe.Pointer(&t.id))) //nolint:gosec // an argument of the kernel
			ok = errno == 0
		})
	}
	return ok
}

// reply gives the kernel the answer. An error means that the process ended.
func (t *trace) reply(n *notification, a answer) {
	conn, err := t.calls.SyscallConn()
	if err != nil {
		return
	}
	control := func(command uintptr, arg unsafe.Pointer) {
		_ = conn.Control(func(fd uintptr) { _, _, _ = unix.Syscall(unix.SYS_IOCTL, fd, command, uintptr(arg)) })
	}
	if a.file >= 0 {
		add := addition{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, file: uint32(a.file), fileFlags: uint32(a.flags & unix.O_CLOEXEC)}
		control(ioctlAdd, unsafe.Pointer(&add)) //nolint:gosec // an argument of the kernel
		_ = unix.Close(a.file)
		return
	}
	r := reply{id: n.id, value: a.value, errno: -int32(a.errno)}
	if a.goOn {
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	control(ioctlSend, unsafe.Pointer(&r)) //nolint:gosec // likewise
}
