package compile

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// written writes to a process's memory.
func (t *trace) written(pid int, at uint64, data []byte, value int64) answer {
	if len(data) == 0 {
		return returns(value)
	}
	// The file stays that of the process that had the ID when it was opened.
	memory, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/mem", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fails(t.refuse(errUnreadable, unix.EFAULT))
	}
	defer unix.Close(memory) //nolint:errcheck // written at once
	if !t.isThere() {
		return fails(t.refuse(errUnreadable, unix.EFAULT))
	}
	if n, err := unix.Pwrite(memory, data, int64(at)); err != nil || n != len(data) {
		return fails(t.refuse(errUnreadable, unix.EFAULT))
	}
	return returns(value)
}

// pageSize is a divisor of that of each machine.
const pageSize = 4096

// readText reads a path from a process's memory, page by page: the next one may not be there.
func readText(pid int, at uint64) (string, bool) {
	text := make([]byte, 0, 256)
	for len(text) < unix.PathMax {
		piece := make([]byte, min(256, pageSize-at%pageSize))
		local := []unix.Iovec{{Base: &piece[0], Len: uint64(len(piece))}}
		n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(piece)}}, 0)
		if err != nil || n <= 0 {
			return "", false
		}
		if end := bytes.IndexByte(piece[:n], 0); end >= 0 {
			return string(append(text, piece[:end]...)), true
		}
		text = append(text, piece[:n]...)
		at += uint64(n)
	}
	return "", false
}
