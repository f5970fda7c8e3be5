package health

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func uuid(i int) string { return fmt.Sprintf("GPU-b2000000-0000-4000-8000-%012d", i) }

func pci(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x1a+i) }

// machine returns a healthy node with n B200 GPUs, all with a slot.
func machine(n int) Signals {
	in := Signals{
		Moment: Moment{Now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Up: time.Hour, Boot: "boot-1"},
		GPUs:   &GPUs{NVIDIA: &inventory.NVIDIA{Source: "nvml", DriverVersion: "580.95.05"}, Bus: map[string]Bus{}},
		Node: &Node{
			Clock: ClockSynchronised, CDIDriver: "580.95.05",
			Disks: []inventory.DiskFree{{Path: "/var/lib/docker", TotalBytes: 1 << 40, FreeBytes: 1 << 39}},
		},
	}
	for i := range n {
		in.Slots = append(in.Slots, Slot{Index: i, UUID: uuid(i), PCI: pci(i)})
		in.GPUs.List = append(in.GPUs.List, inventory.GPU{
			Vendor: "nvidia", UUID: uuid(i), PCI: pci(i), Model: "NVIDIA B200", Healthy: true, PersistenceMode: "on", MIGMode: "off",
			NVML: &nvml.GPU{
				UUID: uuid(i), PCI: pci(i), Persistence: "on",
				MIGMode: &nvml.Mode{Current: "off", Pending: "off"}, ECCMode: &nvml.Mode{Current: "on", Pending: "on"},
				ECC:          &nvml.ECC{VolatileUncorrected: new(uint64(0)), SRAMThreshold: new(false)},
				RemappedRows: &nvml.Remapped{Banks: &nvml.Banks{}}, RecoveryAction: new(int64(0)),
				Clocks: &nvml.Clocks{SM: new(uint32(1900)), MaxSM: new(uint32(1965))}, ClockReasons: new(uint64(1)),
				Temperature: &nvml.Temperature{GPU: new(uint32(60)), Margin: new(int32(40))},
				PCIe:        &nvml.PCIe{Gen: new(5), MaxGen: new(5), Width: new(16), MaxWidth: new(16), Replays: new(7)},
				Fabric:      &nvml.Fabric{State: "completed"}, NVLinks: new(int64(18)), NVLinksUp: new(18),
				EnergyMillijoules: new(uint64(1000)),
			},
		})
	}
	in.GPUs.Started = in.Up
	return in
}

// amdMachine is like machine with MI300X GPUs.
func amdMachine(n int) Signals {
	in := machine(n)
	in.GPUs.NVIDIA, in.Node.CDIDriver = nil, ""
	for i := range in.GPUs.List {
		g := &in.GPUs.List[i]
		*g = inventory.GPU{Vendor: "amd", UUID: g.UUID, PCI: g.PCI, Model: "AMD Instinct MI300X", Healthy: true}
		in.GPUs.Bus[g.PCI] = Bus{RAS: map[string]uint64{"umc": 0, "gfx": 0}, Link: &nvml.PCIe{Width: new(16), MaxWidth: new(16)}}
	}
	return in
}

// node keeps a State over simulated time.
type node struct {
	t      *testing.T
	state  State
	seq    uint64
	in     Signals // as of the last look
	events []Event // of the last look
}

func newNode(t *testing.T, in Signals) *node {
	t.Helper()
	n := &node{t: t, in: in}
	if v := n.judgeAfter(0, nil); len(v) > 0 {
		t.Fatalf("a healthy machine has %+v", v)
	}
	return n
}

// judgeAfter judges the signals, modified by change, after the time later. The State goes
// through JSON each time, as over a restart of the daemon.
func (n *node) judgeAfter(later time.Duration, change func(*Signals)) []Verdict {
	n.t.Helper()
	n.in.Up += later
	n.in.Now = n.in.Now.Add(later)
	in := n.in
	if in.GPUs != nil {
		g := *in.GPUs
		g.Started, g.List, g.Bus = in.Up, slices.Clone(g.List), map[string]Bus{}
		maps.Copy(g.Bus, in.GPUs.Bus)
		for i, list := range g.List {
			if list.NVML != nil {
				copied := *list.NVML
				g.List[i].NVML = &copied
			}
		}
		if g.NVIDIA != nil {
			g.NVIDIA = new(*g.NVIDIA)
		}
		in.GPUs = &g
	}
	if in.Node != nil {
		in.Node = new(*in.Node)
		in.Node.Disks = slices.Clone(in.Node.Disks)
	}
	in.Slots = slices.Clone(in.Slots)
	if change != nil {
		change(&in)
	}
	before, err := json.Marshal(n.state)
	must.Do(n.t, err)
	state, verdicts, events := Judge(n.state, in)
	if after, _ := json.Marshal(n.state); string(after) != string(before) {
		n.t.Fatal("Judge changed the State that it was given")
	}
	text, err := json.Marshal(state)
	must.Do(n.t, err)
	read, err := ParseState(text)
	must.Do(n.t, err)
	if again, err := json.Marshal(read); err != nil || string(again) != string(text) {
		n.t.Fatalf("the State does not survive: %v\n%s\n%s", err, text, again)
	}
	n.state, n.events = read, events
	for _, v := range verdicts {
		if !slices.Contains(Checks, v.Check) || v.Reason == "" || v.Fix == "" || v.Since.IsZero() || v.Level == OK {
			n.t.Errorf("incomplete verdict %+v", v)
		}
	}
	for _, e := range events {
		if !slices.Contains(Checks, e.Check) || e.Text == "" || e.Time.IsZero() {
			n.t.Errorf("incomplete event %+v", e)
		}
	}
	return verdicts
}

// lines judges only lines of the kernel; GPUs and node are not read.
func (n *node) lines(later time.Duration, lines ...string) []Verdict {
	n.t.Helper()
	return n.judgeAfter(later, func(in *Signals) {
		in.GPUs, in.Node = nil, nil
		in.Kernel = n.facts(in.Up, lines...)
	})
}

func (n *node) facts(up time.Duration, lines ...string) []Fact {
	n.t.Helper()
	var list []Fact
	for _, text := range lines {
		n.seq++
		f, ok := Parse(fmt.Appendf(nil, "3,%d,%d,-;%s", n.seq, up.Microseconds(), text))
		if !ok {
			n.t.Fatalf("not understood: %s", text)
		}
		list = append(list, f)
	}
	return list
}

func xidLineOf(gpu, xid int, rest string) string {
	return fmt.Sprintf("NVRM: Xid (PCI:%.10s): %d, %s", pci(gpu), xid, rest)
}

// short formats verdicts as "gpu.lost fatal park [3]".
func short(verdicts []Verdict) []string {
	list := []string{}
	for _, v := range verdicts {
		list = append(list, fmt.Sprint(v.Check, " ", v.Level, " ", v.Effect, " ", v.Slots))
	}
	return list
}

func (n *node) want(verdicts []Verdict, want ...string) {
	n.t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, short(verdicts)); diff != "" {
		n.t.Errorf("verdicts (-want +got):\n%s%+v", diff, verdicts)
	}
}
