package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// trial is one slot's part of a run.
type trial struct {
	t      *tester
	plan   plan.Slot
	policy plan.JobPolicy
	state  slot.State
	waits  string // what the changes that make the slot as planned wait for; "" if it is, or they do not
	report SlotReport
}

// skipReason returns why a slot is not tried, or "" if it is.
func (s *trial) skipReason() string {
	if why := s.state.Away(s.plan); why != "" {
		return why
	}
	if busy := s.state.Busy(); busy != "" {
		return "it is busy with " + busy
	}
	if s.waits != "" {
		return "it is not as planned yet: its change " + s.waits
	}
	return ""
}

// errJob ends the test of a slot whose agent gets a job.
var errJob = errors.New("a job came")

// try runs the slot's containers. A job that comes in the meantime goes first: guard ends
// what is tried, and what did not hold may be the job's doing.
func (s *trial) try(ctx context.Context) error {
	run, doing := s.containers, "running containers that try to escape"
	if s.t.Quick {
		run, doing = s.plain, "running a container"
	}
	s.t.Say("%s: %s", s.plan.Name, doing)
	checks, err := run(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		checks = append(checks, Check{Tried: doing, Saw: err.Error(), Do: s.hint()})
	}
	failed := slices.ContainsFunc(checks, func(c Check) bool { return !c.Held })
	if errors.Is(err, errJob) || failed && s.hasJob() {
		s.report.Skipped = "a job came and goes first; run kbnode selftest again when it is done"
		return nil
	}
	s.report.Checks = checks
	return nil
}

// hasJob reports whether the slot's agent runs a job now.
func (s *trial) hasJob() bool {
	if s.state.Agent.Cgroup == "" {
		return false
	}
	job, err := slot.CurrentJob("/", s.state.Agent.Cgroup, s.state.Agent.MainPID)
	return err == nil && job != nil
}

// hint returns what to type if nothing better is known.
func (s *trial) hint() string {
	return fmt.Sprintf("sudo kbnode reconcile; until it holds, keep jobs away: sudo systemctl stop %s", plan.AgentUnit(s.plan.Index))
}

// readDevices finds devices: GPUs, whether in a slot or not, disks, and what gives power
// over the kernel. It leaves watchdogs alone, because opening one starts it.
func readDevices(p *plan.Plan) (list []string) {
	for _, s := range p.Slots {
		for _, g := range s.GPUs {
			list = append(list, g.Devices...)
		}
	}
	for _, pattern := range []string{"/dev/nvidia[0-9]*", "/dev/nvidia-caps/*", "/dev/dri/renderD*", "/dev/dri/card*"} {
		found, _ := filepath.Glob(pattern) // the pattern is well formed
		list = append(list, found...)
	}
	disks, _ := os.ReadDir("/sys/block")
	for _, d := range disks {
		if !strings.HasPrefix(d.Name(), "ram") {
			list = append(list, "/dev/"+d.Name())
		}
	}
	list = append(list, "/dev/mem", "/dev/port", "/dev/kmsg", "/dev/loop-control", "/dev/fuse", "/dev/kvm", "/dev/net/tun",
		"/dev/vhost-net", "/dev/vhost-vsock", "/dev/nvram", "/dev/mapper/control", "/dev/uinput", "/dev/vfio/vfio", "/dev/cuse")
	slices.Sort(list)
	list = slices.DeleteFunc(slices.Compact(list), func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || info.Mode()&fs.ModeDevice == 0
	})
	return list
}

// foreignDevices returns the devices that a slot must not open.
func (t *tester) foreignDevices(s plan.Slot) []string {
	return slices.DeleteFunc(slices.Clone(t.devices), func(path string) bool {
		return slices.ContainsFunc(s.GPUs, func(g plan.SlotGPU) bool { return slices.Contains(g.Devices, path) })
	})
}

// numbers returns devices by their numbers, for places without nodes.
func numbers(paths []string) []probe.Number {
	var list []probe.Number
	for _, path := range paths {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		list = append(list, probe.Number{
			Name: path, Block: st.Mode&unix.S_IFMT == unix.S_IFBLK, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev),
		})
	}
	return list
}

func readFacts(text []byte) (*probe.Facts, error) {
	f := &probe.Facts{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("read probe's result: %w", err)
	}
	return f, nil
}
