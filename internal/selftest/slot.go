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
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/systemd"
)

// trial is one slot's part of a run.
type trial struct {
	t      *tester
	plan   plan.Slot
	policy plan.JobPolicy
	state  slot.State
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
	return ""
}

// errJob ends the test of a slot whose agent gets a job.
var errJob = errors.New("a job came")

// step is a part of the test of a slot.
type step struct {
	doing string
	try   func(context.Context) ([]Check, error)
}

// try runs all steps in one slot. A job that comes in the meantime goes first: the slot's service ends
// what is tried, and what did not hold may be the job's doing.
func (s *trial) try(ctx context.Context) error {
	if s.t.Quick {
		return s.steps(ctx, []step{{"running a container", s.plain}})
	}
	return s.steps(ctx, []step{
		{"comparing it with the plan", s.planned},
		{"checking its agent", s.agent},
		{"opening devices", s.devices},
		{"running containers that try to escape", s.containers},
	})
}

func (s *trial) steps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		s.t.Progress(s.plan.Name, step.doing)
		checks, err := step.try(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, errJob) {
			checks = append(checks, Check{Group: "selftest", Tried: step.doing, Saw: err.Error(), Do: s.hint()})
		}
		failed := slices.ContainsFunc(checks, func(c Check) bool { return !c.Held })
		if errors.Is(err, errJob) || failed && s.hasJob() {
			s.report.Skipped = "a job came and goes first; run kbnode selftest again when it is done"
			return nil
		}
		s.report.Checks = append(s.report.Checks, checks...)
	}
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
	k := s.plan.Index
	return fmt.Sprintf("sudo kbnode reconcile && sudo systemctl restart %s; until it holds, keep jobs away: sudo systemctl stop %s", plan.GuardUnit(k), plan.AgentUnit(k))
}

// planned returns the differences that kbnode reconcile would fix.
func (s *trial) planned(context.Context) ([]Check, error) {
	return comparison(s.t.Changes, s.plan.Index, "the slot's files, units and limits"), nil
}

func comparison(changes []reconcile.Change, slot int, what string) []Check {
	t := &tries{group: "plan", do: "sudo kbnode reconcile"}
	for _, c := range changes {
		if c.Slot == slot && c.Deferred == "" {
			t.add(false, c.Subject, "not as planned: "+c.String())
		}
	}
	if len(t.checks) == 0 {
		t.add(true, what, "as planned")
	}
	return t.checks
}

// programTime limits a probe outside a container.
const programTime = time.Minute

// machine is what the probes need to know of this machine.
type machine struct {
	users   map[string]host.User
	devices []string // paths that a job could want to open
}

// readMachine finds devices: GPUs, whether in a slot or not, disks, and what gives power
// over the kernel. It leaves watchdogs alone, because opening one starts it.
func readMachine(p *plan.Plan) machine {
	var m machine
	m.users, _ = host.Tree{Root: "/"}.Users()
	for _, s := range p.Slots {
		for _, g := range s.GPUs {
			m.devices = append(m.devices, g.Devices...)
		}
	}
	for _, pattern := range []string{"/dev/nvidia[0-9]*", "/dev/nvidia-caps/*", "/dev/dri/renderD*", "/dev/dri/card*"} {
		found, _ := filepath.Glob(pattern) // the pattern is well formed
		m.devices = append(m.devices, found...)
	}
	disks, _ := os.ReadDir("/sys/block")
	for _, d := range disks {
		if !strings.HasPrefix(d.Name(), "ram") {
			m.devices = append(m.devices, "/dev/"+d.Name())
		}
	}
	m.devices = append(m.devices, "/dev/mem", "/dev/port", "/dev/kmsg", "/dev/loop-control", "/dev/fuse", "/dev/kvm", "/dev/net/tun",
		"/dev/vhost-net", "/dev/vhost-vsock", "/dev/nvram", "/dev/mapper/control", "/dev/uinput", "/dev/vfio/vfio", "/dev/cuse")
	slices.Sort(m.devices)
	m.devices = slices.DeleteFunc(slices.Compact(m.devices), func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || info.Mode()&fs.ModeDevice == 0
	})
	return m
}

// foreignDevices returns the devices that a slot must not open.
func (m machine) foreignDevices(s plan.Slot) []string {
	return slices.DeleteFunc(slices.Clone(m.devices), func(path string) bool {
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

// devices runs a probe as root in the slot's slice, where only the slice keeps it from a device.
func (s *trial) devices(ctx context.Context) ([]Check, error) {
	ask := probe.Ask{Open: s.t.machine.foreignDevices(s.plan)}
	text, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("ask a probe: %w", err)
	}
	out, err := s.t.Program(ctx, systemd.Program{
		Unit: name + "-" + s.plan.Name + ".service", Slice: s.policy.Slice, Argv: []string{s.t.Binary, "probe", string(text)}, Limit: programTime,
	})
	if err != nil {
		return nil, err
	}
	f, err := readFacts(out)
	if err != nil {
		return nil, err
	}
	return judgeDevices(s.plan, ask, f), nil
}

func readFacts(text []byte) (*probe.Facts, error) {
	f := &probe.Facts{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("read probe's result: %w", err)
	}
	return f, nil
}
