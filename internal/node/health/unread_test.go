package health

import (
	"slices"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// A signal that cannot be read keeps its verdict, and causes none.
func TestUnreadKeepsItsVerdict(t *testing.T) {
	t.Parallel()
	const disk = "/var/lib/docker"
	nothing := func(in *Signals) { in.Node.Disks[0].FreeBytes = 1 }
	for name, tt := range map[string]struct {
		amd         bool
		bad, unread func(*Signals)
		check       string
	}{
		"a disk":            {bad: nothing, unread: func(in *Signals) { in.Node.Disks, in.Node.Unread = nil, []string{disk} }, check: "node.disk"},
		"the engine":        {bad: func(in *Signals) { in.Node.Docker = "no answer" }, unread: func(in *Signals) { in.Node.Unread = []string{CheckDocker} }, check: "node.docker"},
		"services":          {bad: func(in *Signals) { in.Node.Down = []string{"x.service"} }, unread: func(in *Signals) { in.Node.Unread = []string{CheckUnit} }, check: "node.unit"},
		"the specification": {bad: func(in *Signals) { in.Node.CDIDriver = "1.2" }, check: "node.driver", unread: func(in *Signals) { in.Node.CDIDriver, in.Node.Unread = "", []string{"node.driver"} }},
		"an agent":          {bad: func(in *Signals) { in.Slots[0].Agent = "it ends" }, unread: func(in *Signals) { in.Slots[0].Unread = []string{CheckAgent} }, check: "slot.agent"},
		"limits":            {bad: func(in *Signals) { in.Slots[0].Limits = "no" }, unread: func(in *Signals) { in.Slots[0].Unread = []string{CheckLimits} }, check: "slot.limits"},
		"a bus":             {amd: true, bad: func(in *Signals) { in.GPUs.Bus[pci(1)] = Bus{Dead: true} }, check: "gpu.lost", unread: func(in *Signals) { in.GPUs.Bus[pci(1)] = Bus{Unread: true} }},
		"the list of GPUs":  {bad: func(in *Signals) { in.GPUs.List = in.GPUs.List[:1] }, unread: func(in *Signals) { in.GPUs.List, in.GPUs.Unread = nil, []string{inventory.SubjectGPUs} }, check: "gpu.missing"},
		"a GPU": {bad: func(in *Signals) { in.GPUs.List = in.GPUs.List[:1] }, unread: func(in *Signals) {
			in.GPUs.List, in.GPUs.Unread = in.GPUs.List[:1], []string{inventory.GPUSubject(pci(1))}
		}, check: "gpu.missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, machine(2))
			if tt.amd {
				n = newNode(t, amdMachine(2))
			}
			has := func(v []Verdict) bool {
				return slices.ContainsFunc(v, func(v Verdict) bool { return v.Check == tt.check })
			}
			for range 20 {
				if has(n.judgeAfter(time.Minute, tt.unread)) {
					t.Fatal("it makes a verdict")
				}
			}
			n.judgeAfter(0, nil)
			for range 6 {
				n.judgeAfter(time.Minute, tt.bad)
			}
			if !has(n.judgeAfter(0, tt.bad)) || !has(n.judgeAfter(time.Hour, tt.unread)) {
				t.Errorf("verdicts: %+v", n.judgeAfter(0, tt.unread))
			}
			n.judgeAfter(time.Hour, nil)
			if has(n.judgeAfter(time.Hour, nil)) {
				t.Error("it does not end when it is read again")
			}
		})
	}
}

// A list that could not be read is no reset of the GPUs that it lacks.
func TestUnreadListIsNoReset(t *testing.T) {
	t.Parallel()
	n := newNode(t, machine(2))
	n.want(n.lines(time.Second, xidLineOf(1, 95, "words")), "gpu.xid fatal drain [1]")
	for _, change := range []func(*Signals){func(in *Signals) { in.GPUs.List, in.GPUs.Unread = nil, []string{inventory.SubjectGPUs} }, nil} {
		n.want(n.judgeAfter(time.Minute, change), "gpu.xid fatal drain [1]")
	}
}

// A read that hangs is reported if it lasts.
func TestOverdue(t *testing.T) {
	t.Parallel()
	judged := newNode(t, machine(1))
	hangs := func(in *Signals) { in.Node.Overdue = []string{"/run/cdi/nvidia.yaml"} }
	if v := judged.judgeAfter(time.Minute, hangs); len(v) > 0 {
		t.Errorf("at once: %+v", v)
	}
	if v := judged.judgeAfter(time.Minute, hangs); len(v) != 1 || v[0].Check != "node.overdue" || v[0].Effect != None {
		t.Errorf("after a minute: %+v", v)
	}
}
