package health

import (
	"testing"
	"time"
)

const (
	switchFatal = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
	switchData  = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Data {0x00000000, 0x00000000}"
)

func TestSwitchLines(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		record string
		xid    int // 0: no fact
	}{
		{"3,7,1000000,-;" + switchFatal, 20034},
		{"3,7,1000000,-;nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal", 23001},
		{"11,7,1000000,-;" + switchFatal, 0}, // written by a program
		{"3,7,1000000,-;" + switchData, 0},
		{"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00", 0},
		{"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt", 0},
		{"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:x): 20034, Fatal, Link 30", 0},
		{"3,7,1000000,-;nvidia-nvswitch3: using MSI", 0},
		{"6,7,1000000,-;nvidia-nvswitch[812]: segfault at 0 ip 0 sp 0 error 4", 0}, // program name
		{"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): , Fatal", 0},
	} {
		f, ok := Parse([]byte(row.record))
		if ok != (row.xid != 0) || ok && (f.Kind != KindSwitch || f.Xid != row.xid || f.PCI == "") {
			t.Errorf("%s: %+v, %t", row.record, f, ok)
		}
	}
}

// A fatal error of an NVSwitch keeps jobs from all slots until all of their GPUs were
// reset, the driver was loaded again, or the node was rebooted.
func TestSwitch(t *testing.T) {
	t.Parallel()
	const bad = "node.nvswitch fatal drain [0 1 2 3 4 5 6 7]"
	word := func(gpus int) func(in *Signals) {
		return func(in *Signals) {
			in.ResetByHand = map[string]time.Duration{}
			for i := range gpus {
				in.ResetByHand[uuid(i)] = in.Up
			}
		}
	}
	for _, row := range []struct {
		name   string
		change func(n *node) []Verdict
		clears bool
	}{
		{"time", func(n *node) []Verdict { return n.judgeAfter(48*time.Hour, nil) }, false},
		{"the driver is loaded", func(n *node) []Verdict {
			return n.lines(time.Minute, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05")
		}, true},
		{"all GPUs are reset", func(n *node) []Verdict { return n.judgeAfter(time.Minute, word(8)) }, true},
		{"one is not", func(n *node) []Verdict { return n.judgeAfter(time.Minute, word(7)) }, false},
		{"one does not answer", func(n *node) []Verdict {
			return n.judgeAfter(time.Minute, func(in *Signals) { word(8)(in); in.GPUs.List[7].NVML = nil })
		}, false},
		{"a reboot", func(n *node) []Verdict {
			n.in.Boot, n.in.Up = "boot-2", 0
			return n.judgeAfter(time.Minute, nil)
		}, true},
		{"a reset before it", func(n *node) []Verdict {
			n.judgeAfter(time.Minute, word(8))
			n.lines(time.Second, switchFatal)
			return n.judgeAfter(time.Minute, nil)
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, machine(8))
			n.want(n.lines(time.Second, switchFatal), bad)
			n.want(n.judgeAfter(time.Second, nil), bad)
			want := []string{bad}
			if row.clears {
				want = nil
			}
			n.want(row.change(n), want...)
		})
	}
}
