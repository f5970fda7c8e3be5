//go:build cgo && linux

package main

import (
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-mode/kbnode/internal/inventory/probe"
)

// tdp is NVML_CLOCK_LIMIT_ID_TDP: both bounds of the clock are what the GPU can sustain
// within its power limit.
const tdp = 0xffffff01

// set changes one setting of one GPU and prints the result as a report with this GPU. It
// returns the exit status.
func set(args []string) int {
	s, err := probe.ParseSet(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kbnode-nvml:", err)
		return 2
	}
	r := &probe.Report{Schema: probe.Schema, GPUs: []probe.GPU{}}
	if initialize(r) {
		defer func() { _ = nvml.Shutdown() }() // the process ends anyway
		r.OK = true
		r.GPUs = append(r.GPUs, change(s))
	}
	return show(r)
}

func change(s probe.Setting) probe.GPU {
	g := probe.GPU{Index: -1, UUID: s.GPU}
	h, ret := nvml.DeviceGetHandleByUUID(s.GPU)
	d := &device{Device: h, out: &g}
	if ret != nvml.SUCCESS {
		d.fail("nvmlDeviceGetHandleByUUID", ret)
		return g
	}
	symbol, call := "nvmlDeviceSetPersistenceMode", func() nvml.Return {
		return d.SetPersistenceMode(map[bool]nvml.EnableState{true: nvml.FEATURE_ENABLED, false: nvml.FEATURE_DISABLED}[s.Value == "on"])
	}
	mhz, _ := s.MHz() // ParseSet has checked it
	switch {
	case s.Name == probe.SetClocks && s.Value == "default":
		symbol, call = "nvmlDeviceResetGpuLockedClocks", d.ResetGpuLockedClocks
	case s.Name == probe.SetClocks:
		if s.Value == "base" {
			mhz = tdp
		}
		symbol, call = "nvmlDeviceSetGpuLockedClocks", func() nvml.Return { return d.SetGpuLockedClocks(mhz, mhz) }
	}
	if !has(symbol) {
		d.fail(symbol, nvml.ERROR_FUNCTION_NOT_FOUND)
	} else if ret := call(); ret != nvml.SUCCESS {
		d.fail(symbol, ret)
	}
	return g
}
