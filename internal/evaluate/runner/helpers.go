package runner

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// helpers are the processes that run for a program and that the runner started: compilers, and a judge's worker. Each has
// a group of its own.
var helpers = registry{ended: map[int]chan<- syscall.WaitStatus{}}

type registry struct {
	sync.Mutex
	ended map[int]chan<- syscall.WaitStatus // by process ID
}

// start starts one, which cannot be reaped before it is known. ended has room for its status.
func (r *registry) start(ended chan<- syscall.WaitStatus, start func() (int, error)) (int, error) {
	r.Lock()
	defer r.Unlock()
	pid, err := start()
	if err == nil {
		r.ended[pid] = ended
	}
	return pid, err
}

// kill kills one and all of its group, unless it has ended.
func (r *registry) kill(pid int) {
	r.Lock()
	defer r.Unlock()
	if r.ended[pid] != nil {
		killGroup(pid)
	}
}

// reap reaps a child that has ended. If it is a helper, all of its group ends with it.
func (r *registry) reap(pid int) {
	r.Lock()
	defer r.Unlock()
	ended, ok := r.ended[pid]
	if ok {
		killGroup(pid)
	}
	var status unix.WaitStatus
	got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
	if ok && err == nil && got == pid {
		delete(r.ended, pid)
		ended <- syscall.WaitStatus(status)
	}
}

// clear forgets all. Call it when the program has ended, before endTree reaps them.
func (r *registry) clear() {
	r.Lock()
	defer r.Unlock()
	clear(r.ended)
}
