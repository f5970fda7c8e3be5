//go:build cgo && linux

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	report "github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// all prints a line about the machine, and then lines about each GPU, so that what was read
// is not lost if the driver hangs on the next one. It returns the exit status.
func all(args []string) int {
	flags := flag.NewFlagSet("all", flag.ExitOnError)
	skip := flags.String("skip", "", "indices of GPUs to leave out, as 0,3")
	only := flags.Int("only", -1, "index of the one GPU to read")
	locks := flags.Bool("locks", false, "lock a byte of file 3 for what is asked of the driver")
	_ = flags.Parse(args) // it exits on errors
	held := locker{*locks}
	held.wait(start)
	r := &report.Report{Schema: report.Schema, GPUs: []report.GPU{}}
	if initialize(r) {
		// Who hangs when the GPUs are closed, here or as the process ends, keeps others from joining it.
		defer func() {
			held.wait(start)
			_ = nvml.Shutdown() // the process ends anyway
		}()
		machine(r)
	}
	held.unlock(start)
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !r.OK {
		return 3
	}
	skipped := strings.Split(*skip, ",")
	for i := range r.Count {
		if slices.Contains(skipped, strconv.Itoa(i)) || *only >= 0 && i != *only {
			continue
		}
		begun := func(pci string) { _ = out.Encode(report.Line{Begun: &report.Hung{Index: i, PCI: pci}}) } // the next one fails, too
		begun("")
		if !held.lock(i) {
			continue
		}
		g := readGPU(i, begun)
		held.unlock(i)
		if err := out.Encode(report.Line{GPU: &g}); err != nil {
			return 1 // no one reads it
		}
	}
	return 0
}

// whole prints one report about all GPUs. Versions of kbnode that do not know `all` read it.
func whole() int {
	r := &report.Report{Schema: report.Schema, GPUs: []report.GPU{}}
	if initialize(r) {
		defer func() { _ = nvml.Shutdown() }() // the process ends anyway
		machine(r)
		for i := range r.Count {
			r.GPUs = append(r.GPUs, readGPU(i, func(string) {}))
		}
		r.Count = 0 // no lines follow
	}
	return show(r)
}

// machine reads what concerns no single GPU.
func machine(r *report.Report) {
	count, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		r.Code, r.Error = int(ret), "count the GPUs: "+ret.String()
		return
	}
	r.OK, r.Count = true, count
	r.Driver, _ = nvml.SystemGetDriverVersion()
	r.NVML, _ = nvml.SystemGetNVMLVersion()
	if has("nvmlSystemGetCudaDriverVersion_v2") {
		if v, ret := nvml.SystemGetCudaDriverVersion_v2(); ret == nvml.SUCCESS {
			r.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
	}
}

// start is the index of what is asked before any GPU, and after all.
const start = -1

// locker locks a byte of a file for each GPU that it asks for, and one while NVML starts or ends. A
// process that hangs in the driver cannot be killed and keeps its lock, and no other one
// hangs beside it.
type locker struct{ used bool }

// lock reports whether a GPU may be asked for.
func (l locker) lock(index int) bool {
	return !l.used || !errors.Is(lockByte(unix.F_OFD_SETLK, unix.F_WRLCK, index), unix.EAGAIN)
}

func (l locker) wait(index int) {
	if l.used {
		_ = lockByte(unix.F_OFD_SETLKW, unix.F_WRLCK, index) // as with a file system that has no locks
	}
}

func (l locker) unlock(index int) {
	if l.used {
		_ = lockByte(unix.F_OFD_SETLK, unix.F_UNLCK, index)
	}
}

func lockByte(command, kind, index int) error {
	const file = 3
	for {
		err := unix.FcntlFlock(file, command, &unix.Flock_t{Type: int16(kind), Start: int64(index - start), Len: 1})
		if !errors.Is(err, unix.EINTR) { // a signal of the runtime
			return err
		}
	}
}
