//go:build cgo && linux

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// niceness is the sampler's: it must not get in anyone's way.
const niceness = 10

// sample prints one line of JSON about a GPU per interval until its input is closed. Then
// its handle is closed too, so only the process that wants samples holds the GPU. It
// returns the exit status: 3 if the driver does not answer.
func sample(args []string) int {
	flags := flag.NewFlagSet("sample", flag.ExitOnError)
	uuid := flags.String("uuid", "", "UUID of the GPU")
	every := flags.Duration("every", time.Second, "time between two samples")
	_ = flags.Parse(args) // it exits on errors
	// Who stops the unit of a job's process may tell all its processes, and the samples go on until the job has
	// ended.
	signal.Ignore(syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	// The priority of the process group applies to all threads. Setting it cannot fail for
	// root.
	_ = syscall.Setpriority(syscall.PRIO_PGRP, 0, niceness)
	out := json.NewEncoder(os.Stdout)
	refuse := func(what string) int {
		_ = out.Encode(report.Sample{Error: what})
		return 3
	}
	if ret := nvml.Init(); ret != nvml.SUCCESS {
		return refuse("nvmlInit: " + ret.String())
	}
	h, ret := nvml.DeviceGetHandleByUUID(*uuid)
	if ret != nvml.SUCCESS {
		return refuse("nvmlDeviceGetHandleByUUID: " + ret.String())
	}
	d := &device{Device: h, out: &report.GPU{Index: -1}}
	// Clocks and temperature belong to the whole GPU.
	if whole := ask(d, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", d.GetDeviceHandleFromMigDeviceHandle); whole != nil {
		d.Device = *whole
	}
	tick := time.NewTicker(max(*every, 10*time.Millisecond))
	for ; ; <-tick.C {
		s := d.sample()
		if s.Error != "" {
			return refuse(s.Error)
		}
		if err := out.Encode(s); err != nil {
			return 1 // no one reads it
		}
	}
}

func (d *device) sample() report.Sample {
	s := report.Sample{
		Clock:       d.clock(),
		Temperature: d.temperature(),
		Margin:      d.margin(),
		Power:       d.power(),
		Busy:        d.busy(),
		Reasons:     d.clockReasons(),
	}
	d.out.Unread = nil // they would add up once per second
	s.Error = d.out.Error
	return s
}

// tdp is NVML_CLOCK_LIMIT_ID_TDP: both bounds of the clock are what the GPU can sustain
// within its power limit.
const tdp = 0xffffff01

// set changes one setting of one GPU and prints the result as a report with this GPU. It
// returns the exit status.
func set(args []string) int {
	if len(args) != 3 {
		fmt.Fprintln(os.Stderr, "kbnode-nvml: write set UUID NAME VALUE")
		return 2
	}
	r := &report.Report{Schema: report.Schema, GPUs: []report.GPU{}}
	if initialize(r) {
		defer func() { _ = nvml.Shutdown() }() // the process ends anyway
		r.OK = true
		r.GPUs = append(r.GPUs, change(report.Setting{GPU: args[0], Name: args[1], Value: args[2]}))
	}
	return show(r)
}

func change(s report.Setting) report.GPU {
	g := report.GPU{Index: -1, UUID: s.GPU}
	h, ret := nvml.DeviceGetHandleByUUID(s.GPU)
	d := &device{Device: h, out: &g}
	if ret != nvml.SUCCESS {
		d.fail("nvmlDeviceGetHandleByUUID", ret)
		return g
	}
	mhz, err := strconv.ParseUint(s.Value, 10, 32)
	if s.Value == "base" {
		mhz, err = tdp, nil
	}
	var symbol string
	var call func() nvml.Return
	switch {
	case s.Name == report.SetPersistence:
		symbol, call = "nvmlDeviceSetPersistenceMode", func() nvml.Return {
			return d.SetPersistenceMode(map[bool]nvml.EnableState{true: nvml.FEATURE_ENABLED, false: nvml.FEATURE_DISABLED}[s.Value == "on"])
		}
	case s.Name == report.SetClocks && s.Value == "default":
		symbol, call = "nvmlDeviceResetGpuLockedClocks", d.ResetGpuLockedClocks
	case s.Name == report.SetClocks && err == nil:
		symbol, call = "nvmlDeviceSetGpuLockedClocks", func() nvml.Return { return d.SetGpuLockedClocks(uint32(mhz), uint32(mhz)) }
	default:
		g.Error = fmt.Sprintf("%s cannot be set to %q", s.Name, s.Value)
		return g
	}
	if !has(symbol) {
		d.fail(symbol, nvml.ERROR_FUNCTION_NOT_FOUND)
	} else if ret := call(); ret != nvml.SUCCESS {
		d.fail(symbol, ret)
	}
	return g
}
