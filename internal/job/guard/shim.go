package guard

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// shimName begins the name of the process above a container, which tells the engine how it ended. The kernel cuts it.
const shimName = "containerd-shim"

// watchShim watches the process above a container. If it ends before the container does, as when it is killed, the
// engine kills the container, and says that it ended like any other, with 137. orphaned reports that this was so; false
// also means that it is not known.
func (s slotProcs) watchShim(id string) (orphaned func() bool) {
	shim, first := s.shimOf(id)
	if shim == 0 {
		return func() bool { return false }
	}
	fds := make([]unix.PollFd, 2)
	for i, pid := range []int{shim, first} {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			if i > 0 {
				_ = unix.Close(int(fds[0].Fd))
			}
			return func() bool { return false }
		}
		fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	var lost atomic.Bool
	go func() { // until the first of both has ended, which is the container unless something is wrong
		_, err := unix.Poll(fds, -1)
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Poll(fds, -1)
		}
		lost.Store(err == nil && fds[1].Revents == 0)
		for _, f := range fds {
			_ = unix.Close(int(f.Fd))
		}
	}()
	return lost.Load
}

// shimOf returns the process above a container and the container's first one, 0 if either is not found.
func (s slotProcs) shimOf(id string) (shim, first int) {
	pids, _ := s.members(s.container(id))
	for _, pid := range pids {
		status, _ := s.tree().Read(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		_, rest, _ := strings.Cut(status, "\nPPid:")
		number, _, _ := strings.Cut(rest, "\n")
		parent, err := strconv.Atoi(strings.TrimSpace(number))
		if err == nil && strings.HasPrefix(s.name(parent), shimName) && !s.owns(parent) { // a job's program could take the name
			return parent, pid
		}
	}
	return 0, 0
}
