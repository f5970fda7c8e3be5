package selftest

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// testedSlot returns slot 1 of two.
func testedSlot() *trial {
	p, pol := testSlot()
	text, _ := json.Marshal(pol)
	t := &tester{Options: Options{Say: func(string, ...any) {}}}
	t.Plan = &plan.Plan{
		Slots: []plan.Slot{p, {Index: 2, Name: "gpu2"}},
		Files: []plan.File{{Path: plan.SlotPolicyPath(1), Content: string(text), Slot: 1}, {Path: "/etc/buildkite-agent/agent-2/x", Slot: 2}, {Path: plan.TokenPath, Slot: -1}},
	}
	t.State = &reconcile.State{Slots: []slot.State{{Index: 1, Slice: slot.Slice{Cgroup: "/buildkite.slice/buildkite-gpu1.slice"}}}}
	return &trial{t: t, plan: p, policy: pol, state: t.State.Slot(1)}
}

// TestAsks tests that the probe tries what belongs to other slots, the node and Docker, and also what a
// container has, without which it would prove nothing.
func TestAsks(t *testing.T) {
	t.Parallel()
	s := testedSlot()
	has := func(what string, list []string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !slices.Contains(list, w) {
				t.Errorf("%s: does not try %s of %q", what, w, list)
			}
		}
	}
	c := s.containerAsk([]string{"192.0.2.1:9"}, "198.18.2.2:4711")
	has("open", c.Open, plan.ContainerBinary, plan.TokenPath, "/proc/1/root/etc/shadow", plan.WorkDir(1))
	has("write", c.Write, "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup/memory.max")
	has("unix", c.Unix, "/run/docker.sock", s.policy.Socket)
	has("tcp", c.TCP, "192.0.2.1:9", "198.18.2.2:4711", metadata)
	has("windows", c.Windows, "/proc/bus/pci/devices")
	has("disks", c.Disks, "/", "/work")
	if !c.Calls || !c.Proc || !c.Daemon {
		t.Errorf("tries %+v", c)
	}
	s.policy.Profile, s.policy.DiskBytes = "strict", 0
	if c := s.containerAsk(nil, ""); len(c.Disks) > 0 || slices.Contains(c.TCP, "") {
		t.Errorf("without a disk: %+v", c)
	}
}

// TestOfThePlan finds what belongs to a slot.
func TestOfThePlan(t *testing.T) {
	t.Parallel()
	s := testedSlot()
	if pol, err := policyOf(s.t.Plan, 1); err != nil || pol.Slice != "buildkite-gpu1.slice" {
		t.Errorf("policy is %+v, %v", pol, err)
	}
	if _, err := policyOf(s.t.Plan, 2); err == nil || !strings.Contains(err.Error(), "no policy for slot gpu2") {
		t.Errorf("got %v", err)
	}
	if got := s.t.State.Slot(2); got.Slice.Cgroup != "" {
		t.Errorf("state is %+v", got)
	}
	for want, p := range map[string]plan.Slot{"it is parked: its GPU is lost": {Index: 4095, Parked: "its GPU is lost"}, "": {Index: 4095}} {
		must.Equal(t, want, (&trial{t: s.t, plan: p}).skipReason())
	}
	must.Equal(t, "it is not as planned yet: its change waits for job 7", (&trial{t: s.t, plan: plan.Slot{Index: 4095}, waits: "waits for job 7"}).skipReason())
	for _, address := range hostAddresses(&net.TCPAddr{Port: 4711}) {
		if !strings.HasSuffix(address, ":4711") || strings.HasPrefix(address, "127.") {
			t.Errorf("containers could not reach %s", address)
		}
	}
}

func TestEmptyRoot(t *testing.T) {
	t.Parallel()
	archive, err := emptyRoot()
	must.Do(t, err)
	var got []string
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
		if h.Typeflag != tar.TypeDir {
			t.Errorf("%s is no directory", h.Name)
		}
		got = append(got, h.Name)
	}
	if !slices.Contains(got, "tmp/") || !slices.Contains(got, "usr/local/bin/") {
		t.Errorf("has %q", got)
	}
}

func TestReadDevices(t *testing.T) {
	t.Parallel()
	own := plan.Slot{Index: 0, GPUs: []plan.SlotGPU{{Devices: []string{"/dev/null"}}}}
	m := tester{devices: readDevices(&plan.Plan{Slots: []plan.Slot{own, {Index: 1, GPUs: []plan.SlotGPU{{Devices: []string{"/dev/zero", "/dev/nonexistent"}}}}}})}
	others := m.foreignDevices(own)
	if slices.Contains(others, "/dev/null") || !slices.Contains(others, "/dev/zero") || slices.Contains(others, "/dev/nonexistent") {
		t.Errorf("of others are %q", others)
	}
	for _, n := range numbers(others) {
		if n.Name == "/dev/zero" && (n.Major != 1 || n.Minor != 5 || n.Block) {
			t.Errorf("%+v", n)
		}
		if strings.Contains(n.Name, "watchdog") {
			t.Error("a watchdog would be started")
		}
	}
}

// TestWindowsAsked asks for a device's files by every path that leads to them.
func TestWindowsAsked(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	device := sys + "/devices/pci0000:00/0000:1a:00.0"
	for _, name := range []string{"config", "resource0", "numa_node"} {
		must.Write(t, device, name, "")
	}
	must.Do(t, os.MkdirAll(sys+"/bus/pci/devices", 0o700))
	must.Do(t, os.Symlink(device, sys+"/bus/pci/devices/0000:1a:00.0"))
	want := []string{
		device + "/resource0", device + "/config", sys + "/bus/pci/devices/0000:1a:00.0/config",
		"/proc/bus/pci/1a/00.0", "/proc/bus/pci/devices", "/proc/kpageflags",
	}
	got := windows(sys)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("asks for %q, want %q", got, want)
	}
}
