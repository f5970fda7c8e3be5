package probe

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

// Keep makes this process keep the probe as it was unpacked, or remember the file that
// was found to be it: to unpack it takes longer than most of its answers. It is for
// who asks every minute and can spare some megabytes, which are no part of its heap.
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
	same string   // identity of the file that is the probe
}

// memory is where the kept probe can be executed; "" where there is none.
func (k *keeper) memory() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mem == nil {
		return ""
	}
	return fmt.Sprintf("/proc/self/fd/%d", k.mem.Fd())
}

// keepMemory takes over a file that was executed from.
func (k *keeper) keepMemory(f *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.on || k.mem != nil {
		_ = f.Close()
		return
	}
	k.mem = f
}

// file says that a file was found to be the probe, and has not been changed since.
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

// identity changes with whatever changes a file: nobody can set its ctime.
func identity(fi fs.FileInfo) string {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Size, st.Ctim)
}
