package health

import (
	"testing"
	"time"
)

const switchFatal = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"

// Only a fatal error, written by the driver, is one.
func TestSwitchLines(t *testing.T) {
	t.Parallel()
	f, ok := Parse([]byte("3,7,1000000,-;" + switchFatal))
	if !ok || f.Kind != KindSwitch || f.Xid != 20034 || f.PCI != "0000:c1:00.0" {
		t.Errorf("%+v, %t", f, ok)
	}
	for _, record := range []string{
		"11,7,1000000,-;" + switchFatal, // written by a program
		"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Data {0x00000000, 0x00000000}",
		"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
		"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:x): 20034, Fatal, Link 30",
		"6,7,1000000,-;nvidia-nvswitch[812]: segfault at 0 ip 0 sp 0 error 4", // program name
		"3,7,1000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): , Fatal",
	} {
		if f, ok := Parse([]byte(record)); ok {
			t.Errorf("%s: believed as %+v", record, f)
		}
	}
}

// A fatal error of an NVSwitch keeps jobs from all slots until the driver was loaded again, or
// the node was rebooted.
func TestSwitch(t *testing.T) {
	t.Parallel()
	const bad = "node.nvswitch fatal drain [0 1 2 3 4 5 6 7]"
	load := func(n *node) []Verdict {
		return n.lines(time.Minute, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05")
	}
	for _, row := range []struct {
		name   string
		change func(n *node) []Verdict
		want   []string
	}{
		{"time", func(n *node) []Verdict { return n.judgeAfter(48*time.Hour, nil) }, []string{bad}},
		{"the driver is loaded", load, nil},
		{"and before that", func(n *node) []Verdict { load(n); return n.lines(time.Second, switchFatal) }, []string{bad}},
		{"a reboot", func(n *node) []Verdict {
			n.in.Boot, n.in.Up = "boot-2", 0
			return n.judgeAfter(time.Minute, nil)
		}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, machine(8))
			n.want(n.lines(time.Second, switchFatal), bad)
			n.want(n.judgeAfter(time.Second, nil), bad)
			n.want(row.change(n), row.want...)
		})
	}
}
