package probe

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

// Keep makes this process keep the unpacked probe, or remember the installed file that was
// verified, because unpacking takes longer than most answers. It is for processes that ask
// every minute and can spare some megabytes, which are not part of the heap.
func Keep() {
	kept.mu.Lock()
	defer kept.mu.Unlock()
	kept.on = true
}

var kept keeper

type keeper struct {
	mu   sync.Mutex
	on   bool
	mem  *os.File // sealed
	same string   // identity of the file that was verified to be the probe
}

// memory returns the path for executing the kept probe; "" if there is none.
func (k *keeper) memory() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mem == nil {
		return ""
	}
	return fmt.Sprintf("/proc/self/fd/%d", k.mem.Fd())
}

// keepMemory takes ownership of a file that the probe was executed from.
func (k *keeper) keepMemory(f *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.on || k.mem != nil {
		_ = f.Close()
		return
	}
	k.mem = f
}

// file reports whether a file was verified to be the probe and has not changed since.
func (k *keeper) file(fi fs.FileInfo) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.same != "" && k.same == identity(fi)
}

func (k *keeper) keepFile(fi fs.FileInfo) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.on {
		k.same = identity(fi)
	}
}

// identity changes whenever a file changes, because no one can set its ctime.
func identity(fi fs.FileInfo) string {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Size, st.Ctim)
}
