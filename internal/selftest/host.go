package selftest

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/systemd"
)

// programTime limits a probe on the host.
const programTime = time.Minute

// machine is what the probes need to know of this machine.
type machine struct {
	users   map[string]reconcile.UserState
	devices []string // paths that a job could want to open
}

// readMachine finds devices: GPUs, whether in a slot or not, disks, and what gives power
// over the kernel. It leaves watchdogs alone, because opening one starts it.
func readMachine(p *plan.Plan) machine {
	var m machine
	m.users, _ = reconcile.ReadUsers("/")
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

// others returns the devices that a slot must not open.
func (m machine) others(s plan.Slot) []string {
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

// host runs two probes in the slot's slice, where commands of jobs run: one as the slot's
// user, with all groups that the system gives it, and one as root, whom only the slice
// keeps from a device.
func (s *trial) host(ctx context.Context) ([]Check, error) {
	ask := s.hostAsk()
	user, err := s.program(ctx, "user", s.plan.User, ask)
	if err != nil {
		return nil, err
	}
	rootAsk := probe.Ask{Open: s.t.machine.others(s.plan)}
	root, err := s.program(ctx, "root", "", rootAsk)
	if err != nil {
		return nil, err
	}
	id, err := userOf(s.t.machine, s.plan.User)
	if err != nil {
		return nil, err
	}
	return append(judgeHost(s.plan, s.policy, id, ask, user), judgeDevices(s.plan, rootAsk, root)...), nil
}

func userOf(m machine, name string) (reconcile.UserState, error) {
	u, ok := m.users[name]
	if !ok {
		return u, fmt.Errorf("the slot's user %s does not exist; run kbnode reconcile", name)
	}
	return u, nil
}

// program runs a probe in the slot's slice.
func (s *trial) program(ctx context.Context, what, user string, ask probe.Ask) (*probe.Facts, error) {
	text, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("ask a probe: %w", err)
	}
	out, err := s.t.Program(ctx, systemd.Program{
		Unit: fmt.Sprintf("kbnode-selftest-%s-%s.service", s.plan.Name, what), Slice: s.policy.Slice, User: user,
		Argv: []string{s.t.Binary, "probe", string(text)}, Limit: programTime,
	})
	if err != nil {
		return nil, err
	}
	return readFacts(out)
}

func readFacts(text []byte) (*probe.Facts, error) {
	f := &probe.Facts{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("read probe's result: %w", err)
	}
	return f, nil
}

// hostAsk returns what a hostile command of a job on the host would try.
func (s *trial) hostAsk() probe.Ask {
	k, agent := s.plan.Index, strconv.Itoa(s.state.Agent.MainPID)
	ask := probe.Ask{
		Open: []string{
			plan.WorkDir(k), // its own, to prove that it sees anything
			plan.TokenPath, "/run/credentials/" + plan.AgentUnit(k) + "/token", "/etc/shadow", plan.AgentCopy,
			"/proc/" + agent + "/environ", "/proc/" + agent + "/mem", "/proc/1/environ",
			plan.RunDir(k) + "/mounts", "/var/lib/docker",
		},
		Unix: []string{s.policy.Socket, s.policy.DockerSocket, "/run/docker.sock", "/run/containerd/containerd.sock"},
		TCP:  []string{metadata},
	}
	if s.policy.DiskBytes > 0 {
		ask.Open = append(ask.Open, plan.DiskDir(k))
		ask.Disks = []string{plan.WorkDir(k)}
	}
	for _, other := range s.t.Plan.Slots {
		if other.Index != k {
			ask.Open = append(ask.Open, plan.WorkDir(other.Index), plan.RunDir(other.Index)+"/agent")
			ask.Unix = append(ask.Unix, plan.SocketPath(other.Index))
		}
	}
	for _, f := range s.t.Plan.Files {
		if f.Slot == k || f.Slot < 0 {
			ask.Write = append(ask.Write, f.Path, filepath.Dir(f.Path))
		}
	}
	ask.Write = append(ask.Write, plan.BindingsPath, s.t.Binary, filepath.Dir(s.t.Binary), "/etc", "/etc/cron.d", plan.UnitDir, plan.RunDir(k),
		"/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/bus/pci/rescan")
	for _, dir := range []string{s.state.Slice.Cgroup, filepath.Dir(s.state.Slice.Cgroup)} {
		for _, file := range []string{"cpuset.cpus", "memory.max", "cgroup.procs"} {
			ask.Write = append(ask.Write, filepath.Join("/sys/fs/cgroup", dir, file))
		}
	}
	slices.Sort(ask.Write)
	ask.Write = slices.Compact(ask.Write)
	return ask
}
