//go:build cgo && linux

// Command kbnode-nvml prints NVML's report about this machine's GPUs as JSON and exits. With
// `all` that is a line about the machine, and lines about each GPU as it reads them
// (report.Line). It changes nothing and keeps no handle: an open one blocks driver upgrades and GPU resets. With the
// UUID of a GPU as its argument it reads only what uses that GPU.
// `kbnode-nvml sample` and `set` are the exceptions: the first samples one GPU while its
// input is open, the second changes one setting of one GPU.
//
// It exits with 0 if NVML could be initialized, whatever the single GPUs answered, and with
// 3 otherwise. Link it with -Wl,-z,lazy: go-nvml leaves every function unresolved that the
// installed driver may lack.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gpu-mode/kbnode/internal/plan/nvml"
)

const library = "libnvidia-ml.so.1"

func main() {
	args := os.Args[1:]
	switch {
	case len(args) == 0:
		os.Exit(whole())
	case args[0] == "all":
		os.Exit(all(args[1:]))
	case args[0] == "sample":
		os.Exit(sample(args[1:]))
	case args[0] == "set":
		os.Exit(set(args[1:]))
	}
	os.Exit(show(use(args[0])))
}

// show prints a report and returns the exit status.
func show(r *report.Report) int {
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !r.OK {
		return 3
	}
	return 0
}

// use makes the report on what uses the GPU with this UUID.
func use(uuid string) *report.Report {
	r := &report.Report{Schema: report.Schema, GPUs: []report.GPU{}}
	if initialize(r) {
		defer func() { _ = nvml.Shutdown() }() // the process ends anyway
		r.OK = true
		r.Driver, _ = nvml.SystemGetDriverVersion()
		r.GPUs = append(r.GPUs, readUse(uuid))
	}
	return r
}

// initialize starts NVML. If that fails, the report says why.
func initialize(r *report.Report) bool {
	// nvml.Init returns "library not found" for every failure of dlopen, so call dlopen
	// first to distinguish a missing driver from a broken one.
	lib := dl.New(library, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := lib.Open(); err != nil {
		r.Code = int(nvml.ERROR_LIBRARY_NOT_FOUND)
		r.Error = err.Error()
		r.Absent = strings.HasPrefix(r.Error, library+": cannot open shared object file: No such file")
		return false
	}
	if ret := nvml.Init(); ret != nvml.SUCCESS {
		r.Code, r.Error = int(ret), ret.String()
		return false
	}
	return true
}

// has reports whether the installed driver has a function. Calling one that it lacks ends
// the process in the dynamic loader, without a chance to recover.
func has(symbol string) bool {
	return nvml.Extensions().LookupSymbol(symbol) == nil
}

// device queries one GPU and records errors.
type device struct {
	nvml.Device
	out *report.GPU
}

// ask calls one NVML function and returns its value, nil if there is none. It records only
// errors that a healthy GPU would not return. Once the GPU is lost it makes no more calls,
// since each may take seconds.
func ask[T any](d *device, symbol string, call func() (T, nvml.Return)) *T {
	if d.out.Error != "" || !has(symbol) {
		return nil
	}
	v, ret := call()
	switch ret {
	case nvml.SUCCESS:
		return &v
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_DATA, nvml.ERROR_NOT_FOUND,
		nvml.ERROR_NO_PERMISSION, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED, nvml.ERROR_INVALID_ARGUMENT:
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		d.fail(symbol, ret)
	default:
		d.out.Unread = append(d.out.Unread, symbol+": "+ret.String())
	}
	return nil
}

// need is like ask for values that every GPU has: without them the GPU counts as broken.
func need[T any](d *device, symbol string, call func() (T, nvml.Return)) (v T) {
	if d.out.Error != "" {
		return v
	}
	v, ret := call()
	if ret != nvml.SUCCESS {
		d.fail(symbol, ret)
	}
	return v
}

func (d *device) fail(symbol string, ret nvml.Return) {
	d.out.Error, d.out.Code = symbol+": "+ret.String(), int(ret)
}

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
