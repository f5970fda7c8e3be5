package health

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

// Each row changes one reading of the fourth GPU or of the node, and states the verdict
// and how long after the repair it ends. The other seven slots must not be affected.
func TestReadings(t *testing.T) {
	t.Parallel()
	third := func(change func(*inventory.GPU)) func(*Signals) {
		return func(in *Signals) { change(&in.GPUs.List[3]) }
	}
	withNVML := func(change func(*nvml.GPU)) func(*Signals) { return third(func(g *inventory.GPU) { change(g.NVML) }) }
	bus := func(b Bus) func(*Signals) { return func(in *Signals) { in.GPUs.Bus[pci(3)] = b } }
	all := "[0 1 2 3 4 5 6 7]"
	silent := func(in *Signals) {
		in.GPUs.NVIDIA.NVMLError = "the NVML probe did not answer and was killed"
	}
	for _, row := range []struct {
		name   string
		amd    bool
		busy   bool // a job computes on all GPUs
		change func(*Signals)
		lasts  time.Duration // before it becomes a verdict
		want   string        // "" for none
		quiet  time.Duration // after the cause is gone
		says   string
	}{
		{name: "recovery action reset", change: withNVML(func(g *nvml.GPU) { g.RecoveryAction = new(int64(1)) }), want: "gpu.recovery fatal drain [3]", says: "requests a reset"},
		{name: "recovery action reboot", change: withNVML(func(g *nvml.GPU) { g.RecoveryAction = new(int64(2)) }), want: "gpu.recovery fatal park [3]", says: "requests a reboot"},
		{name: "recovery action drain P2P", change: withNVML(func(g *nvml.GPU) { g.RecoveryAction = new(int64(3)) }), want: "gpu.recovery degraded drain [3]"},
		{name: "recovery action drain and reset", change: withNVML(func(g *nvml.GPU) { g.RecoveryAction = new(int64(4)) }), want: "gpu.recovery fatal drain [3]"},
		{name: "recovery action IMEX", change: withNVML(func(g *nvml.GPU) { g.RecoveryAction = new(int64(5)) }), want: "gpu.recovery degraded drain [3]"},
		{name: "a recovery action to come", change: withNVML(func(g *nvml.GPU) { g.RecoveryAction = new(int64(9)) }), want: "gpu.recovery fatal drain [3]", says: "action 9"},
		{name: "NVML says reset required", change: third(func(g *inventory.GPU) { g.Healthy, g.Error, g.NVML.Code = false, "GPU requires reset", 16 }), want: "gpu.recovery fatal drain [3]"},
		{name: "NVML says lost", change: third(func(g *inventory.GPU) { g.Healthy, g.Error, g.NVML = false, "GPU is lost", &nvml.GPU{Code: 15} }), want: "gpu.lost fatal park [3]", says: "is lost: NVML says so"},
		{name: "lost, and its UUID with it", change: third(func(g *inventory.GPU) {
			g.Healthy, g.Error, g.UUID, g.NVML = false, "GPU is lost", "", &nvml.GPU{Code: 15}
		}), want: "gpu.lost fatal park [3]"},
		{name: "PCI configuration of ones", change: bus(Bus{Dead: true}), want: "gpu.lost fatal park [3]", says: "ones"},
		{name: "an answer that is none", change: third(func(g *inventory.GPU) { g.Healthy, g.Error = false, "it is bound to the driver vfio-pci, not nvidia" }), want: "gpu.error fatal park [3]", says: "vfio"},
		{name: "gone", change: func(in *Signals) { in.GPUs.List = slices.Delete(in.GPUs.List, 3, 4) }, want: "gpu.missing fatal park [3]"},
		{name: "another GPU in its place", change: third(func(g *inventory.GPU) { g.UUID = uuid(77) }), want: "gpu.missing fatal park [3]"},
		{name: "uncorrectable ECC errors", change: withNVML(func(g *nvml.GPU) { g.ECC = &nvml.ECC{VolatileUncorrected: new(uint64(2))} }), want: "gpu.ecc fatal drain [3]", says: "2 uncorrectable"},
		{name: "too many errors of caches", change: withNVML(func(g *nvml.GPU) { g.ECC = &nvml.ECC{SRAMThreshold: new(true)} }), want: "gpu.ecc fatal drain [3]"},
		{name: "row remapping failed", change: withNVML(func(g *nvml.GPU) { g.RemappedRows = &nvml.Remapped{Failed: true} }), want: "gpu.remap fatal drain [3]"},
		{name: "row remapping pending", change: withNVML(func(g *nvml.GPU) { g.RemappedRows = &nvml.Remapped{Pending: true} }), want: "gpu.remap degraded drain [3]"},
		{name: "many rows remapped", change: withNVML(func(g *nvml.GPU) { g.RemappedRows = &nvml.Remapped{Uncorrectable: 512} }), want: "gpu.remap warn none [3]"},
		{name: "no spare rows", change: withNVML(func(g *nvml.GPU) { g.RemappedRows = &nvml.Remapped{Banks: &nvml.Banks{None: 1}} }), want: "gpu.remap warn none [3]"},
		{name: "hardware slowdown", change: withNVML(func(g *nvml.GPU) { g.ClockReasons = new(uint64(0x8)) }), lasts: time.Minute, want: "gpu.throttle degraded none [3]", quiet: 5 * time.Minute},
		{name: "power brake", change: withNVML(func(g *nvml.GPU) { g.ClockReasons = new(uint64(0x80)) }), lasts: time.Minute, want: "gpu.throttle degraded none [3]", quiet: 5 * time.Minute, says: "power brake"},
		{name: "power cap", change: withNVML(func(g *nvml.GPU) { g.ClockReasons = new(uint64(0x4)) }), lasts: time.Minute},
		{name: "hardware thermal slowdown", change: withNVML(func(g *nvml.GPU) { g.ClockReasons = new(uint64(0x40)) }), lasts: time.Minute, want: "gpu.thermal degraded none [3]", quiet: 5 * time.Minute},
		{name: "software thermal slowdown", change: withNVML(func(g *nvml.GPU) { g.ClockReasons = new(uint64(0x20)) }), lasts: time.Minute, want: "gpu.thermal degraded none [3]", quiet: 5 * time.Minute, says: "60 °C"},
		{name: "5 degrees left", change: withNVML(func(g *nvml.GPU) { g.Temperature = &nvml.Temperature{Margin: new(int32(5))} }), lasts: time.Minute, want: "gpu.thermal degraded none [3]", quiet: 5 * time.Minute},
		{name: "a margin that is not measured", change: withNVML(func(g *nvml.GPU) { g.Temperature = &nvml.Temperature{Margin: new(int32(0))} }), lasts: time.Minute},
		{name: "fabric in progress", change: withNVML(func(g *nvml.GPU) { g.Fabric = &nvml.Fabric{State: "in progress"} }), want: "gpu.fabric degraded park [3]"},
		{name: "fabric not started for long", change: withNVML(func(g *nvml.GPU) { g.Fabric = &nvml.Fabric{State: "not started"} }), lasts: 5 * time.Minute, want: "gpu.fabric fatal park [3]"},
		{name: "fabric failed", change: withNVML(func(g *nvml.GPU) { g.Fabric = &nvml.Fabric{State: "completed", Status: 999} }), want: "gpu.fabric fatal park [3]"},
		{name: "no fabric", change: withNVML(func(g *nvml.GPU) { g.Fabric = &nvml.Fabric{State: "not supported"} })},
		{name: "an NVLink down", change: withNVML(func(g *nvml.GPU) { g.NVLinksUp = new(17) }), lasts: time.Minute, want: "gpu.nvlink fatal drain [3]", says: "17 of 18"},
		{name: "PCIe lanes", change: withNVML(func(g *nvml.GPU) { g.PCIe = &nvml.PCIe{Width: new(8), MaxWidth: new(16)} }), lasts: time.Minute, want: "gpu.pcie warn none [3]", quiet: 5 * time.Minute},
		{name: "PCIe generation under load", busy: true, change: withNVML(func(g *nvml.GPU) { g.PCIe = &nvml.PCIe{Gen: new(3), MaxGen: new(5)} }), lasts: time.Minute, want: "gpu.pcie warn none [3]", quiet: 5 * time.Minute},
		{name: "PCIe generation at rest", change: withNVML(func(g *nvml.GPU) {
			g.PCIe, g.Clocks = &nvml.PCIe{Gen: new(1), MaxGen: new(5)}, &nvml.Clocks{SM: new(uint32(120)), MaxSM: new(uint32(1965))}
		}), lasts: time.Minute},
		{name: "AMD: uncorrectable errors", amd: true, change: bus(Bus{RAS: map[string]uint64{"umc": 1, "gfx": 0}}), want: "gpu.ras fatal drain [3]", says: "umc 1"},
		{name: "AMD: lanes are missing", amd: true, lasts: time.Minute, quiet: 5 * time.Minute, change: bus(Bus{Link: &nvml.PCIe{Width: new(8), MaxWidth: new(16)}}), want: "gpu.pcie warn none [3]", says: "8 of 16 PCIe lanes"},
		{name: "AMD: all lanes", amd: true, lasts: time.Minute, change: bus(Bus{Link: &nvml.PCIe{Width: new(16), MaxWidth: new(16), Replays: new(900)}})},
		{name: "AMD: lost", amd: true, change: bus(Bus{Dead: true}), want: "gpu.lost fatal park [3]"},

		{name: "driver upgraded under way", change: func(in *Signals) {
			in.GPUs.NVIDIA.Source, in.GPUs.NVIDIA.NVMLCode, in.GPUs.NVIDIA.NVMLError = "proc", 18, "NVML: the driver was upgraded"
		}, want: "node.driver fatal park " + all},
		{name: "CDI names another driver", change: func(in *Signals) { in.Node.CDIDriver = "570.1.2" }, lasts: time.Minute, want: "node.driver fatal park " + all, says: "570.1.2"},
		{name: "no CDI specification", change: func(in *Signals) { in.Node.CDIDriver = "" }, lasts: time.Minute},
		{name: "NVML hangs", change: func(in *Signals) {
			in.GPUs.NVIDIA.NVMLError = "the NVML probe did not answer and was killed"
			for i := range in.GPUs.List {
				in.GPUs.List[i].NVML = nil
			}
		}, lasts: 2 * time.Minute, want: "node.nvml warn none []", says: "killed"},
		{name: "NVML hangs for long", change: silent, lasts: 5 * time.Minute, want: "node.nvml fatal drain " + all, says: "killed"},
		{name: "little disk", change: func(in *Signals) { in.Node.Disks[0].FreeBytes = 15 << 30 }, want: "node.disk warn none []", says: "20480 MiB"},
		{name: "no disk", change: func(in *Signals) { in.Node.Disks[0].FreeBytes = 900 << 20 }, want: "node.disk fatal drain " + all},
		{name: "Docker", change: func(in *Signals) { in.Node.Docker = "connection refused" }, lasts: time.Minute, want: "node.docker fatal drain " + all, says: "refused"},
		{name: "the clock", change: func(in *Signals) { in.Node.Clock = ClockAdrift }, lasts: 10 * time.Minute, want: "node.clock warn none []"},
		{name: "a clock that cannot be read", change: func(in *Signals) { in.Node.Clock = ClockUnknown }, lasts: 10 * time.Minute},
		{name: "the fabric manager", change: func(in *Signals) { in.Node.Down = []string{"nvidia-fabricmanager.service"} }, lasts: time.Minute, want: "node.unit warn none []", says: "fabricmanager"},
		{name: "an agent", change: func(in *Signals) { in.Slots[3].Agent = "activating" }, lasts: 5 * time.Minute, want: "slot.agent warn none [3]", says: "activating"},
		{name: "limits", change: func(in *Signals) { in.Slots[3].Limits = "cpuset 0-7" }, lasts: time.Minute, want: "slot.limits degraded none [3]", says: "cpuset 0-7"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			start := machine(8)
			if row.amd {
				start = amdMachine(8)
			}
			for i := range start.Slots {
				if row.busy {
					start.Slots[i].Job, start.GPUs.List[i].NVML.Processes = "job-1", []nvml.Process{{PID: 4711}}
				}
			}
			n := newNode(t, start)
			got := n.judgeAfter(30*time.Second, row.change)
			if row.lasts > 0 {
				if len(got) > 0 && !strings.HasPrefix(row.name, "fabric") {
					t.Errorf("at once: %+v", got)
				}
				for passed := time.Duration(0); passed < row.lasts; passed += 30 * time.Second {
					got = n.judgeAfter(30*time.Second, row.change)
				}
			}
			if row.want == "" {
				n.want(got)
				return
			}
			n.want(got, row.want)
			if len(got) > 0 && !strings.Contains(got[0].Reason, row.says) {
				t.Errorf("%q does not say %q", got[0].Reason, row.says)
			}
			if len(n.events) != 1 || n.events[0].Kind == "cleared" {
				t.Errorf("events: %+v", n.events)
			}
			// Nothing new was read: the verdict stays.
			sick := machine(8)
			if !row.amd {
				row.change(&sick)
			}
			n.want(n.judgeAfter(time.Second, func(in *Signals) {
				in.GPUs, in.Node = nil, nil
				for i, was := range sick.Slots { // these are always known
					in.Slots[i].Agent, in.Slots[i].Limits = was.Agent, was.Limits
				}
			}), row.want)
			if row.quiet > 0 {
				n.want(n.judgeAfter(30*time.Second, nil), row.want)
			}
			got = n.judgeAfter(row.quiet+30*time.Second, nil)
			n.want(got)
			if len(n.events) != 1 || n.events[0].Kind != "cleared" {
				t.Errorf("events at the end: %+v", n.events)
			}
		})
	}
}

// Every Xid has the effect of its class, first with a job and then without.
func TestXids(t *testing.T) {
	t.Parallel()
	verdict := map[XidClass]string{
		XidLost: "gpu.lost fatal park [3]", XidMemory: "gpu.xid fatal drain [3]", XidReset: "gpu.xid fatal drain [3]",
		XidDegraded: "gpu.xid degraded none [3]", XidPower: "gpu.xid degraded none [3]",
		XidLink: "gpu.xid degraded none [3]",
	}
	for number := range XidLast + 1 {
		x := LookupXid(number)
		if x.Class == XidRecovery || x.Class == XidUnknown {
			continue
		}
		for _, job := range []string{"job-1", ""} {
			want := verdict[x.Class]
			if x.Number == 109 && job == "" {
				want = "gpu.xid fatal drain [3]"
			}
			start := machine(8)
			start.Slots[3].Job = job
			n := newNode(t, start)
			got := n.lines(time.Second, xidLineOf(3, x.Number, "pid=4711, name=python3, words"))
			if want == "" {
				n.want(got)
			} else {
				n.want(got, want)
			}
			if len(n.events) == 0 || n.events[0].Job != job || n.events[0].Slot != 3 || !strings.Contains(n.events[0].Text, fmt.Sprint(x.Number)) {
				t.Errorf("Xid %d: events %+v", x.Number, n.events)
			}
		}
	}
	n := newNode(t, machine(8))
	n.want(n.lines(time.Second, xidLineOf(3, 149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 10 (0x0)")), "gpu.xid fatal drain [3]")
	n = newNode(t, machine(8))
	n.want(n.lines(time.Second, xidLineOf(3, 145, "pid=4711, name=ray::WorkerDict, RLW_SRC_TRACK Fatal XC0 i0 Link 13 (0x0)")), "gpu.xid fatal drain [3]")
	for number, says := range map[int]string{
		118: "Xid 118, undefined in the catalog of r580, on", 172: "Xid 172, uncorrectable SRAM error, on", 173: "Xid 173, newer than the catalog of r580, which ends at 172, on",
		999: "Xid 999, newer than the catalog of r580, which ends at 172, on", 163: "Xid 163, power smoothing is off, on",
	} {
		n = newNode(t, machine(8))
		if got := n.lines(time.Second, xidLineOf(3, number, "something")); len(got) != 1 || !strings.HasPrefix(got[0].Reason, says) {
			t.Errorf("%+v, want %q", got, says)
		}
	}
	n = newNode(t, machine(8))
	n.want(n.lines(time.Second, xidLineOf(3, 999, "something")), "gpu.xid warn none [3]")
}

// An error that jobs cause belongs to the job that ran, and no number of them is held
// against the GPU.
func TestApplicationErrors(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(8))
	xid31 := xidLineOf(3, 31, "pid=4711, name=python3, x")
	for i := range 3 {
		job := fmt.Sprint("job-", i)
		n.in.Slots[3].Job = job
		n.want(n.judgeAfter(0, nil))
		n.want(n.lines(time.Minute, xid31, xid31, xid31)) // three lines at once are one event
		if len(n.events) != 1 || n.events[0].Job != job || !strings.Contains(n.events[0].Text, "by job "+job) {
			t.Errorf("events %+v", n.events)
		}
	}

	// A late line belongs to the job that has just ended.
	n = newNode(t, machine(8))
	n.in.Slots[3].Job = "job-1"
	n.judgeAfter(0, nil)
	n.in.Slots[3].Job = ""
	n.want(n.lines(time.Minute, xidLineOf(3, 109, "pid=4711, name=python3, x")))
	n.want(n.lines(2*time.Minute, xid31))
	must.Contain(t, n.events[0].Text, "while no job ran")

	// A line from before the first look does not concern today's job.
	n = newNode(t, machine(8))
	n.in.Slots[3].Job = "job-1"
	n.want(n.judgeAfter(0, func(in *Signals) { in.Kernel = n.facts(in.Up-10*time.Minute, xid31) }))
	if e := n.events[0]; e.Job != "" || strings.Contains(e.Text, ";") {
		t.Errorf("event %+v", e)
	}
}

// The driver's recovery action decides, whatever the table says about the Xid.
func TestRecoveryActionOverridesXids(t *testing.T) {
	t.Parallel()
	change := func(from, to string) string {
		return xidLineOf(3, 154, "pid='<unknown>', name=<unknown>, GPU recovery action changed from "+from+" to "+to)
	}
	n := newNode(t, machine(8))
	n.in.GPUs.List[3].NVML.RecoveryAction = nil // a driver that reports it only in its log
	n.want(n.lines(time.Second, xidLineOf(3, 119, "x")), "gpu.xid fatal drain [3]")
	got := n.lines(time.Second, change("0x0 (None)", "0x3 (Drain P2P)"))
	n.want(got, "gpu.recovery degraded drain [3]", "gpu.xid info none [3]")
	must.Equal(t, got[1].Fix, got[0].Fix)
	n.want(n.lines(time.Second, change("0x3 (Drain P2P)", "0x2 (OS Reboot)")), "gpu.recovery fatal park [3]", "gpu.xid info none [3]")
	n.want(n.judgeAfter(48*time.Hour, nil), "gpu.recovery fatal park [3]", "gpu.xid info none [3]") // quiet ends nothing
	// None ends it, and ends its cause as soon as the GPU answers.
	n.want(n.lines(time.Second, change("0x2 (OS Reboot)", "0x0 (None)")), "gpu.xid fatal drain [3]")
	n.want(n.judgeAfter(time.Second, func(in *Signals) { in.GPUs.List[3].Healthy = false }), "gpu.error fatal park [3]", "gpu.xid fatal drain [3]")
	n.want(n.judgeAfter(time.Second, nil))

	// NVML's report counts as much, unless it is older than the line.
	n = newNode(t, machine(8))
	n.want(n.judgeAfter(30*time.Second, func(in *Signals) {
		in.Kernel = n.facts(in.Up, xidLineOf(3, 119, "x"), change("0x0 (None)", "0x1 (PF FLR)"))
		in.GPUs.Started = in.Up - 5*time.Second
	}), "gpu.recovery fatal drain [3]", "gpu.xid info none [3]")
	n.want(n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].NVML.RecoveryAction = new(int64(1)) }), "gpu.recovery fatal drain [3]", "gpu.xid info none [3]")
	n.want(n.judgeAfter(30*time.Second, nil))

	// None alone does not concern an Xid.
	n = newNode(t, machine(8))
	n.lines(time.Second, xidLineOf(3, 119, "x"))
	n.want(n.judgeAfter(24*time.Hour, nil), "gpu.xid fatal drain [3]")
	// An unreadable line changes nothing.
	n.want(n.lines(time.Second, change("0x0 (None)", "reboot, please")), "gpu.xid fatal drain [3]")
}

// What ends a fatal Xid, and what does not.
func TestClearing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		change func(*node) []Verdict
		clears bool
	}{
		{"a week of quiet", func(n *node) []Verdict { return n.judgeAfter(7*24*time.Hour, nil) }, false},
		{"a restart of the daemon that reads the log again", func(n *node) []Verdict {
			return n.judgeAfter(time.Second, func(in *Signals) {
				in.Kernel = []Fact{{Seq: 1, Up: in.Up, Kind: KindXid, PCI: pci(3), Xid: 48, Text: "x"}}
			})
		}, false},
		{"a reset, by the energy it used", func(n *node) []Verdict {
			return n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].NVML.EnergyMillijoules = new(uint64(5)) })
		}, true},
		{"less energy without persistence", func(n *node) []Verdict {
			return n.judgeAfter(30*time.Second, func(in *Signals) {
				g := in.GPUs.List[3].NVML
				g.Persistence, g.EnergyMillijoules = "off", new(uint64(5))
			})
		}, false},
		{"the driver loaded anew", func(n *node) []Verdict {
			n.lines(time.Second, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
			return n.judgeAfter(30*time.Second, nil)
		}, true},
		{"a reset that it does not survive", func(n *node) []Verdict {
			n.lines(time.Second, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
			return slices.DeleteFunc(n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].Healthy = false }), func(v Verdict) bool { return v.Check == checkError })
		}, false},
		{"NVML loses it and has it again", func(n *node) []Verdict {
			n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].Healthy, in.GPUs.List[3].NVML.Code = false, 15 })
			return n.judgeAfter(30*time.Second, nil)
		}, true},
		{"it vanishes and is back", func(n *node) []Verdict {
			n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List = slices.Delete(in.GPUs.List, 3, 4) })
			return n.judgeAfter(30*time.Second, nil)
		}, true},
		{"NVML wants a reset and then no more", func(n *node) []Verdict {
			n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].Healthy, in.GPUs.List[3].NVML.Code = false, 16 })
			return n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].NVML.RecoveryAction = nil })
		}, true},
		{"NVML falls silent when it is lost", func(n *node) []Verdict {
			n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].Healthy, in.GPUs.List[3].NVML.Code = false, 15 })
			return slices.DeleteFunc(n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[3].NVML = nil }), func(v Verdict) bool { return v.Check == checkLost })
		}, false},
		{"a reboot", func(n *node) []Verdict {
			n.in.Boot, n.in.Up = "boot-2", 0
			return n.judgeAfter(time.Minute, nil)
		}, true},
		{"an operator's word", func(n *node) []Verdict {
			return n.judgeAfter(time.Second, func(in *Signals) { in.ResetByHand = map[string]time.Duration{strings.ToUpper(pci(3)): in.Up} })
		}, true},
		{"an operator's word, and it answers later", func(n *node) []Verdict {
			n.judgeAfter(time.Second, func(in *Signals) { in.GPUs, in.ResetByHand = nil, map[string]time.Duration{uuid(3): in.Up} })
			return n.judgeAfter(time.Second, nil)
		}, true},
		{"an operator's word for another", func(n *node) []Verdict {
			return n.judgeAfter(time.Second, func(in *Signals) { in.ResetByHand = map[string]time.Duration{uuid(4): in.Up} })
		}, false},
		{"an operator's word from before it", func(n *node) []Verdict {
			return n.judgeAfter(time.Minute, func(in *Signals) {
				in.ResetByHand = map[string]time.Duration{uuid(3): in.Up - time.Minute - time.Second}
			})
		}, false},
		{"an operator's word, and nobody looks", func(n *node) []Verdict {
			return n.judgeAfter(time.Second, func(in *Signals) { in.GPUs, in.ResetByHand = nil, map[string]time.Duration{uuid(3): in.Up} })
		}, false},
		{"an operator's word, and NVML is silent", func(n *node) []Verdict {
			return n.judgeAfter(time.Second, func(in *Signals) {
				in.GPUs.List[3].NVML, in.ResetByHand = nil, map[string]time.Duration{uuid(3): in.Up}
			})
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, machine(8))
			n.want(n.lines(time.Second, xidLineOf(3, 48, "pid='<unknown>', name=<unknown>, DBE")), "gpu.xid fatal drain [3]")
			n.want(n.judgeAfter(time.Second, nil), "gpu.xid fatal drain [3]")
			if row.clears {
				n.want(row.change(n))
			} else {
				n.want(row.change(n), "gpu.xid fatal drain [3]")
			}
		})
	}
}

func TestAMDKernel(t *testing.T) {
	t.Parallel()
	line := func(text string) string { return "amdgpu " + pci(3) + ": amdgpu: " + text }
	// A job's hang ends in a successful reset: nothing is held against the GPU.
	n := newNode(t, amdMachine(8))
	n.in.Slots[3].Job = "job-1"
	n.want(n.lines(time.Second, line("ring comp_1.0.0 timeout, signaled seq=1, emitted seq=3"), line("GPU reset begin!")))
	if e := n.events; len(e) != 2 || e[0].Job != "job-1" || e[1].Job != "job-1" {
		t.Errorf("events %+v", e)
	}
	n.want(n.lines(10*time.Second, line("GPU reset(2) succeeded!")))
	n.want(n.judgeAfter(time.Hour, nil))
	// A reset that does not end, or fails.
	n.want(n.lines(0, line("GPU reset begin!")))
	n.want(n.judgeAfter(2*time.Minute, nil), "gpu.reset fatal park [3]")
	n.want(n.lines(time.Second, line("GPU reset(3) succeeded!")))
	n.want(n.lines(0, line("GPU reset begin!"), line("GPU reset(4) failed"), line("GPU reset end with ret = -110")), "gpu.reset fatal park [3]")
	n.want(n.judgeAfter(100*time.Hour, nil), "gpu.reset fatal park [3]")
	n.in.Boot, n.in.Up = "boot-2", 0
	n.want(n.judgeAfter(time.Minute, nil))

	// A reset also resets the GPUs joined by xGMI: jobs there did not cause it.
	n = newNode(t, amdMachine(8))
	n.in.Slots[3].Job, n.in.Slots[5].Job = "job-1", "job-2"
	n.want(n.lines(time.Second, line("GPU reset begin!. Source: 1"), line("GPU reset(7) succeeded!"),
		"amdgpu "+pci(5)+": amdgpu: GPU reset(7) succeeded!", "amdgpu "+pci(5)+": amdgpu: VRAM is lost due to GPU reset!"))
	for i, want := range []string{"job job-1 ran", "job job-1 ran", "job job-2 ran", "job job-2 ran"} {
		if len(n.events) != 4 || !strings.HasSuffix(n.events[i].Text, "; while "+want) {
			t.Errorf("event %d of %+v; want %s", i, n.events, want)
		}
	}
	if e := n.events[len(n.events)-1]; e.Check != checkReset || e.Level != Warn || e.Job != "job-2" || e.Slot != 5 {
		t.Errorf("memory that was lost: %+v", e)
	}

	// Errors that the hardware reports last until a reset; the counters stay.
	n = newNode(t, amdMachine(8))
	n.want(n.lines(time.Second, line("socket: 4, die: 0 1 new uncorrectable hardware errors detected in umc block")), "gpu.ras fatal drain [3]")
	n.in.GPUs.Bus[pci(3)] = Bus{RAS: map[string]uint64{"umc": 1}}
	n.want(n.judgeAfter(time.Second, nil), "gpu.ras fatal drain [3]", "gpu.ras fatal drain [3]")
	n.want(n.lines(time.Second, line("GPU reset begin!"), line("GPU reset(2) succeeded!")), "gpu.ras fatal drain [3]", "gpu.ras fatal drain [3]")
	n.want(n.judgeAfter(time.Second, nil))
	n.in.GPUs.Bus[pci(3)] = Bus{RAS: map[string]uint64{"umc": 2}}
	n.want(n.judgeAfter(time.Second, nil), "gpu.ras fatal drain [3]")
	n.want(n.judgeAfter(time.Second, func(in *Signals) { in.ResetByHand = map[string]time.Duration{uuid(3): in.Up} }))
	n.want(n.lines(time.Second, line("device lost from bus!")), "gpu.lost fatal park [3]")
}

// An operator's report ends nothing that is still seen.
func TestResetByHandAndUnhealthy(t *testing.T) {
	t.Parallel()
	errors := uint64(3)
	reset := int64(1)
	for _, row := range []struct {
		name   string
		change func(g *inventory.GPU)
		want   string
	}{
		{"its memory", func(g *inventory.GPU) { g.NVML.ECC = &nvml.ECC{VolatileUncorrected: &errors} }, "gpu.ecc fatal drain [3]"},
		{"what the driver wants", func(g *inventory.GPU) { g.NVML.RecoveryAction = &reset }, "gpu.recovery fatal drain [3]"},
		{"it does not answer", func(g *inventory.GPU) { g.Healthy, g.NVML.Code = false, 15 }, "gpu.lost fatal park [3]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, machine(8))
			for range 3 {
				n.want(n.judgeAfter(time.Second, func(in *Signals) {
					row.change(&in.GPUs.List[3])
					in.ResetByHand = map[string]time.Duration{uuid(3): in.Up}
				}), row.want)
			}
		})
	}
}

// A GPU that is broken in every way does not affect the others.
func TestOneDeadGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(8))
	got := n.judgeAfter(time.Second, func(in *Signals) {
		in.Kernel = n.facts(in.Up, xidLineOf(3, 48, "x"), xidLineOf(3, 79, "GPU has fallen off the bus."), xidLineOf(3, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"))
		in.GPUs.List = slices.Delete(in.GPUs.List, 3, 4)
	})
	if len(got) < 3 {
		t.Fatalf("%+v", got)
	}
	for slot := range 8 {
		v, held := Holding(got, slot)
		if held != (slot == 3) || held && v.Effect != Park {
			t.Errorf("slot %d: %t %+v", slot, held, v)
		}
	}
	// It comes back under the same name.
	n.in.Boot, n.in.Up = "boot-2", 0
	n.want(n.judgeAfter(time.Minute, nil))
}

// Readings that change every time do not make a slot flap.
func TestNoFlapping(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(8))
	var raised, cleared int
	for i := range 120 {
		n.judgeAfter(30*time.Second, func(in *Signals) {
			if i%3 == 0 {
				in.GPUs.List[3].NVML.ClockReasons = new(uint64(0x40))
			}
			in.Node.Disks[0].FreeBytes = 20<<30 + int64(i%2-1)
		})
		for _, e := range n.events {
			switch e.Kind {
			case "raised":
				raised++
			case "cleared":
				cleared++
			}
		}
	}
	if raised != 2 || cleared != 0 {
		t.Errorf("%d raised, %d cleared", raised, cleared)
	}
}

// A restarted daemon reads the log from its beginning.
func TestLinesCountOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(8))
	n.in.Slots[3].Job = "job-1"
	lines := n.facts(n.in.Up, xidLineOf(3, 48, "x"), xidLineOf(3, 31, "pid=4711, name=python3, x"))
	again := func(in *Signals) { in.Kernel = lines }
	n.want(n.judgeAfter(time.Second, again), "gpu.xid fatal drain [3]")
	if len(n.events) != 3 {
		t.Errorf("events %+v", n.events)
	}
	n.want(n.judgeAfter(90*time.Second, again), "gpu.xid fatal drain [3]")
	if len(n.events) != 0 {
		t.Errorf("the second time: %+v", n.events)
	}
	// Sequence numbers start again after a boot.
	n.in.Boot, n.in.Up = "boot-2", 0
	lines = n.facts(time.Minute, xidLineOf(4, 48, "x"))
	lines[0].Seq = 1
	n.want(n.judgeAfter(time.Minute, again), "gpu.xid fatal drain [4]")
}

func TestOverrun(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(8))
	n.want(n.judgeAfter(time.Second, func(in *Signals) {
		in.Kernel = append([]Fact{{Kind: KindOverrun, Text: "lines were lost"}}, n.facts(in.Up, xidLineOf(3, 48, "x"))...)
	}), "gpu.xid fatal drain [3]")
	if len(n.events) != 3 || n.events[0].Text != "lines were lost" || n.events[0].Slot != -1 {
		t.Errorf("events %+v", n.events)
	}
}

func TestClockJump(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(1))
	n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[0].NVML.ClockReasons = new(uint64(0x8)) })
	n.in.Now = n.in.Now.Add(-48 * time.Hour)
	// Delays are not measured by the wall clock.
	n.want(n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[0].NVML.ClockReasons = new(uint64(0x8)) }))
	if len(n.events) != 1 || n.events[0].Text != "the clock jumped by -48h0m0s" {
		t.Errorf("events %+v", n.events)
	}
	n.want(n.judgeAfter(30*time.Second, func(in *Signals) { in.GPUs.List[0].NVML.ClockReasons = new(uint64(0x8)) }), "gpu.throttle degraded none [0]")
}

// A GPU known only by its address is the same GPU once its UUID is known.
func TestAddressBecomesUUID(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(2))
	n.in.GPUs.List[1].UUID, n.in.Slots[1].UUID, n.state = "", "", State{}
	n.want(n.lines(time.Second, xidLineOf(1, 48, "x")), "gpu.xid fatal drain [1]")
	n.in.GPUs.List[1].UUID, n.in.Slots[1].UUID = uuid(1), uuid(1)
	got := n.judgeAfter(time.Second, nil)
	n.want(got, "gpu.xid fatal drain [1]")
	if got[0].GPU != uuid(1) || len(n.state.GPUs) != 2 {
		t.Errorf("%+v, %+v", got, n.state.GPUs)
	}
}

// Each verdict about a GPU applies to all its partitions and no others. Errors that jobs
// cause are attributed to none of them if several had a job.
func TestCPX(t *testing.T) {
	t.Parallel()
	in := amdMachine(8)
	whole := in.GPUs.List
	in.GPUs.List, in.Slots = nil, nil
	for k := range 64 {
		g := whole[k/8]
		g.Partition, g.ComputePartition = k%8, "CPX"
		in.GPUs.List = append(in.GPUs.List, g)
		in.Slots = append(in.Slots, Slot{Index: k, UUID: g.UUID, PCI: g.PCI})
	}
	n := newNode(t, in)
	line := func(text string) string { return "amdgpu " + pci(2) + ": amdgpu: " + text }
	const third = "[16 17 18 19 20 21 22 23]"
	n.in.GPUs.Bus[pci(2)] = Bus{RAS: map[string]uint64{"gfx": 1, "xgmi_wafl": 2}}
	got := n.judgeAfter(time.Second, nil)
	n.want(got, "gpu.ras fatal drain "+third)
	if fix := "sudo kbnode drain --all --wait; sudo amd-smi reset -G -g " + pci(2) + "; sudo kbnode resume --all"; got[0].Fix != fix || !strings.Contains(got[0].Reason, "gfx 1, xgmi_wafl 2") {
		t.Errorf("%+v", got[0])
	}
	n.want(n.lines(0, line("GPU reset begin!"), line("GPU reset(2) failed")), "gpu.reset fatal park "+third, "gpu.ras fatal drain "+third)
	n.want(n.lines(time.Second, line("GPU reset(2) succeeded!")), "gpu.ras fatal drain "+third)
	n.in.GPUs.Bus[pci(2)] = Bus{RAS: map[string]uint64{"gfx": 1}}
	n.want(n.judgeAfter(time.Second, nil))
	n.want(n.judgeAfter(time.Second, func(in *Signals) { in.GPUs.List = slices.Delete(in.GPUs.List, 16, 24) }), "gpu.missing fatal park "+third)
	n.want(n.judgeAfter(time.Second, nil))

	n.in.Slots[16].Job, n.in.Slots[21].Job = "job-a", "job-b"
	n.want(n.lines(time.Second, line("ring comp_1.0.0 timeout, signaled seq=1, emitted seq=3")))
	if e := n.events; len(e) != 1 || e[0].Job != "" || e[0].Slot != -1 || !strings.HasSuffix(e[0].Text, "; while jobs ran on several parts of the GPU") {
		t.Errorf("of two jobs: %+v", e)
	}
	n.in.Slots[16].Job = ""
	n.judgeAfter(time.Hour, nil)
	n.want(n.lines(time.Second, line("ring comp_1.0.0 timeout, signaled seq=4, emitted seq=6")))
	if e := n.events; len(e) != 1 || e[0].Job != "job-b" || e[0].Slot != 21 {
		t.Errorf("of one job: %+v", e)
	}
}

// Without bridges, links that were never up are not down.
func TestNVLinkWithoutBridge(t *testing.T) {
	t.Parallel()
	in := machine(4)
	for i := range in.GPUs.List {
		in.GPUs.List[i].NVML.NVLinksUp = new(12 * (i % 2))
	}
	n := newNode(t, in)
	n.want(n.judgeAfter(time.Hour, nil))
	n.in.GPUs.List[1].NVML.NVLinksUp = new(0)
	n.judgeAfter(time.Second, nil)
	n.want(n.judgeAfter(time.Minute, nil), "gpu.nvlink fatal drain [1]")
}

func TestReplays(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(1))
	var got []Verdict
	for i := range 5 {
		n.in.GPUs.List[0].NVML.PCIe.Replays = new(7 + 20*i) // 40 a minute
		n.in.GPUs.List[0].NVML.PCIe = new(*n.in.GPUs.List[0].NVML.PCIe)
		got = n.judgeAfter(30*time.Second, nil)
	}
	n.want(got, "gpu.pcie warn none [0]")
	n.want(n.judgeAfter(10*time.Minute, nil))
}

func TestStateIsBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(8))
	for i := range 30 {
		in := n.in
		in.GPUs, in.Node = nil, nil
		in.Up += time.Duration(i) * time.Second
		in.Slots[0].Job = fmt.Sprint(i)
		var lines []string
		for k := range 100 {
			lines = append(lines, xidLineOf((i*100+k)%200, (i*100+k)%1000+1, "x"))
		}
		in.Kernel = n.facts(in.Up, lines...)
		n.state, _, _ = Judge(n.state, in)
	}
	text, err := json.Marshal(n.state)
	if err != nil || len(text) > maxState/2 || len(n.state.Marks) > maxMarks || len(n.state.GPUs) > maxGPUs {
		t.Errorf("%d bytes, %d marks, %d GPUs: %v", len(text), len(n.state.Marks), len(n.state.GPUs), err)
	}
}

func TestParseState(t *testing.T) {
	t.Parallel()
	if s, err := ParseState([]byte(`{"schema":1,"marks":[{"check":"gpu.other"},{"check":"gpu.fabric"},{"check":"gpu.throttle"}]}`)); err != nil || len(s.Marks) != 2 {
		t.Errorf("of another version: %+v, %v", s.Marks, err)
	}
	for _, text := range []string{"", "{}", `{"schema":2}`, `{"schema":1,"marks":[{"level":"bad"}]}`, `{"schema":1,"marks":[{"effect":"kill"}]}`, strings.Repeat(" ", maxState) + `{"schema":1}`} {
		if s, err := ParseState([]byte(text)); err == nil || s.Schema != 0 {
			t.Errorf("%.40q was taken", text)
		}
	}
	// Without a State, the log of the boot is judged again.
	n := newNode(t, machine(8))
	line := n.facts(time.Minute, xidLineOf(3, 48, "x"))
	_, got, _ := Judge(State{}, func() Signals { in := machine(8); in.Kernel = line; return in }())
	n.want(got, "gpu.xid fatal drain [3]")
}

// TestUVM checks the line of a memory manager that needs a reboot, in the forms of drivers.
func TestUVM(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
		"NVRM nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
		"NVRM: uvm encountered global fatal error 0x1e, requiring os reboot to recover.",
		"NVRM: GPU0 nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
	} {
		n := newNode(t, machine(8))
		n.want(n.lines(time.Second, line), "node.driver fatal park [0 1 2 3 4 5 6 7]")
		n.want(n.judgeAfter(time.Hour, nil), "node.driver fatal park [0 1 2 3 4 5 6 7]")
		n.want(n.lines(time.Second, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.15"))
	}
	if f, ok := Parse([]byte("3,9,1,-;NVRM: API mismatch: the client has the version uvm encountered global fatal error , but")); ok {
		t.Errorf("believed: %+v", f)
	}
}

// TestSilentDriver checks a driver that hangs in its files or in NVML: one answer within five minutes is enough, none drains
// the node, and an answer ends that.
func TestSilentDriver(t *testing.T) {
	t.Parallel()
	const drained = "fatal drain [0 1 2 3 4 5 6 7]"
	for name, row := range map[string]struct {
		silent func(*Signals)
		want   []string
	}{
		"NVML": {func(in *Signals) {
			in.GPUs.NVIDIA.NVMLError = "the NVML probe (process 7) cannot be killed"
		}, []string{"node.nvml " + drained}},
		"NVML, of one GPU":           {func(in *Signals) { in.GPUs.List[3].NVML, in.GPUs.List[3].Unread = nil, true }, []string{"gpu.nvml fatal drain [3]"}},
		"NVML answers with an error": {func(in *Signals) { in.GPUs.NVIDIA.NVMLError, in.GPUs.NVIDIA.NVMLCode = "no permission", 4 }, []string{"node.nvml warn none []"}},
		"there is no NVML": {func(in *Signals) {
			in.GPUs.NVIDIA.NVMLError, in.GPUs.NVIDIA.NVMLCode = "it does not run", inventory.NVMLNotAsked
		}, []string{"node.nvml warn none []"}},
		"files": {func(in *Signals) { in.GPUs, in.Node.Overdue = nil, []string{ReadGPUs} }, []string{"node.overdue " + drained, "node.overdue warn none []"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, machine(8))
			for range 3 { // it answers now and then
				for range 9 {
					for _, v := range n.judgeAfter(30*time.Second, row.silent) {
						if v.Effect > None {
							t.Fatalf("drained: %+v", v)
						}
					}
				}
				n.want(n.judgeAfter(30*time.Second, nil))
			}
			var got []Verdict
			for range 12 {
				got = n.judgeAfter(30*time.Second, row.silent)
			}
			n.want(got, row.want...)
			n.want(n.judgeAfter(30*time.Second, row.silent), row.want...)
			n.want(n.judgeAfter(30*time.Second, nil))
		})
	}
}
