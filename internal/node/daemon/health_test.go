package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

// fellOff is the kernel's line about a GPU that fell off the bus.
const fellOff = "4,900,1000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"

func twoGPUs() []inventory.GPU {
	return []inventory.GPU{
		{Vendor: "nvidia", UUID: "GPU-a", PCI: "0000:1b:00.0", Healthy: true, NUMANode: -1},
		{Vendor: "nvidia", UUID: "GPU-b", PCI: "0000:1c:00.0", Healthy: true, NUMANode: -1},
	}
}

// serving returns the slots whose agents run.
func (n *fakeNode) serving(t *testing.T) (slots []int) {
	t.Helper()
	for i := range n.gpus {
		units, err := n.sd.Units(t.Context(), plan.AgentUnit(i))
		must.Do(t, err)
		if units[0].Running() {
			slots = append(slots, i)
		}
	}
	return slots
}

// serves checks which slots' agents run.
func (n *fakeNode) serves(t *testing.T, slots ...int) {
	t.Helper()
	if diff := cmp.Diff(slots, n.serving(t)); diff != "" {
		t.Errorf("slots that serve: %s; drains %+v", diff, n.drains())
	}
}

// released checks that both slots serve, and that none is drained.
func (n *fakeNode) released(t *testing.T) {
	t.Helper()
	n.serves(t, 0, 1)
	if len(n.drains()) > 0 {
		t.Errorf("drains %+v", n.drains())
	}
}

// TestVerdictDrainsItsSlot checks that a kernel's message drains a slot, also after a
// restart, without affecting the drains of an operator.
func TestVerdictDrainsItsSlot(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		kmsg := filepath.Join(n.root, "kmsg")
		must.Do(t, os.WriteFile(kmsg, []byte(fellOff), 0o600))
		log, wake := running(t, n, Options{Kmsg: signals.Kmsg{Path: kmsg}})
		later(31 * time.Second)
		n.serves(t, 1)
		drains := n.drains()
		if len(drains) != 1 || drains[0].Slot != 0 || drains[0].By != "gpu.lost" || !strings.Contains(drains[0].Reason, "; ") {
			t.Errorf("drains: %+v", drains)
		}
		if got := kinds(t, log); !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "health: gpu.lost raised: ") }) {
			t.Errorf("events: %q", got)
		}
		// The kernel's line, from which it follows, is an event without a level.
		must.Equal(t, []string{"health 0 fatal: gpu.lost raised: the GPU at 0000:1b:00.0 has fallen off the bus (Xid 79)"}, levels(t, log, "health"))
		stored, err := ReadHealth(n.root)
		if err != nil || len(stored.Verdicts) == 0 || stored.Verdicts[0].Check != "gpu.lost" {
			t.Errorf("kept: %+v, %v", stored, err)
		}

		text, err := plan.RenderDrains(plan.AddDrain(drains, plan.Drain{Slot: 1, By: plan.ByOperator}))
		must.Do(t, err)
		must.Do(t, os.WriteFile(filepath.Join(n.root, plan.DrainsPath), []byte(text), 0o600))
		wake <- struct{}{}
		synctest.Wait()
		if got := n.serving(t); len(got) > 0 {
			t.Errorf("slots %v serve after the operator drained the other", got)
		}
		if got := n.drains(); len(got) != 2 {
			t.Errorf("drains: %+v", got)
		}
	})
}

// TestOperatorsWord checks that a slot whose GPU an operator has reset is released once the
// GPU answers.
func TestOperatorsWord(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.started = twoGPUs(), time.Hour
		n.gpus[0].Vendor, n.gpus[1].Vendor = "amd", "amd"
		n.gpus[0].Healthy, n.gpus[0].Error = false, "no answer"
		kmsg := filepath.Join(n.root, "kmsg")
		must.Do(t, os.WriteFile(kmsg, []byte(fellOff), 0o600))
		_, wake := running(t, n, Options{Kmsg: signals.Kmsg{Path: kmsg}})
		must.Do(t, os.MkdirAll(filepath.Join(n.root, "/run/kbnode"), 0o755))
		later(31 * time.Second)
		for _, step := range []struct {
			healthy bool
			want    []int
		}{{false, []int{1}}, {true, []int{0, 1}}} {
			n.set(func() { n.gpus[0].Healthy = step.healthy })
			must.Do(t, ReportReset(n.root, []string{"GPU-a"}, 2*time.Second))
			wake <- struct{}{}
			synctest.Wait()
			if ReportPending(n.root) {
				t.Error("the report was not read")
			}
			if diff := cmp.Diff(step.want, n.serving(t)); diff != "" {
				t.Errorf("healthy %t: slots that serve: %s; drains %+v", step.healthy, diff, n.drains())
			}
		}
	})
}

// TestOutUntilReturned checks that a slot whose GPU failed too often stays out when the state that says so
// cannot be read, until an operator returns it.
func TestOutUntilReturned(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.started = twoGPUs(), time.Hour
		file := filepath.Join(n.root, HealthPath)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.Do(t, os.WriteFile(file, []byte("{torn"), 0o600))
		out := plan.Drain{Slot: 0, By: health.CheckRepeats, Reason: "3 faults; sudo kbnode resume gpu0"}
		must.Do(t, (&reconcile.Host{Root: n.root}).WriteDrains([]plan.Drain{out}))
		must.Do(t, os.MkdirAll(filepath.Join(n.root, "/run/kbnode"), 0o755))
		running(t, n, Options{})
		for range 2 {
			later(10 * time.Minute)
			n.serves(t, 1)
		}
		later(50 * time.Second) // a look that reads the GPUs comes before anyone wakes the daemon
		must.Do(t, ReportReturn(n.root, []string{"GPU-a"}, time.Hour))
		n.set(func() {
			n.onRead = func() {
				if !ReportPending(n.root) { // kbnode resume would say that the slot is drained
					t.Error("it is answered before the drain is taken back")
				}
			}
		})
		later(20 * time.Second)
		n.set(func() { n.onRead = nil })
		if ReportPending(n.root) {
			t.Error("nobody has heard it")
		}
		later(10 * time.Minute)
		n.serves(t, 0, 1)
	})
}

// TestReturnedBeforeItsAgentStarts checks that a report is answered while agents start, which takes longer than kbnode resume waits.
func TestReturnedBeforeItsAgentStarts(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		all := n.tries(t)
		_, wake := running(t, n, Options{})
		n.fail(t, 1)
		all.answers <- errFails
		later(time.Second)
		start := make(chan struct{})
		n.set(func() { n.hang = map[string]chan struct{}{"Start": start} })
		must.Do(t, os.MkdirAll(filepath.Join(n.root, "/run/kbnode"), 0o755))
		must.Do(t, ReportReturn(n.root, []string{"GPU-b"}, 100*time.Hour))
		wake <- struct{}{}
		later(time.Second)
		n.serves(t, 0)
		if ReportPending(n.root) || len(n.drains()) > 0 {
			t.Errorf("it waits for the agent; drains %+v", n.drains())
		}
		close(start)
		later(time.Minute)
		n.released(t)
	})
}

// TestOutBesideAStrongerVerdict checks that repeated faults are stored also while another verdict drains the slot: they must hold
// after that, even if the health state is lost.
func TestOutBesideAStrongerVerdict(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	verdicts := []health.Verdict{
		{Check: "gpu.lost", Slots: []int{0}, Level: health.Fatal, Effect: health.Park, Since: since, Reason: "lost", Fix: "reboot"},
		{Check: health.CheckRepeats, Slots: []int{0}, Level: health.Fatal, Effect: health.Drain, Since: since, Reason: "3 faults", Fix: "resume"},
	}
	must.Equal(t, []plan.Drain{
		{By: "gpu.lost", Reason: "lost; reboot", Since: since}, {By: health.CheckRepeats, Reason: "3 faults; resume", Since: since},
	}, drainsOf(verdicts, &plan.Plan{Slots: []plan.Slot{{Index: 0}, {Index: 1}}}, since))
}

// TestManyLines checks that what a job can cause hides nothing else.
func TestManyLines(t *testing.T) {
	t.Parallel()
	c := &healthState{}
	lost := health.Fact{Kind: health.KindXid, Xid: 79}
	for i := range 2 * maxFacts {
		if i == maxFacts/2 || i == maxFacts+7 {
			c.addFact(lost)
		}
		c.addFact(health.Fact{Kind: health.KindXid, Xid: 13, Seq: uint64(i)})
	}
	if !c.alarmed() {
		t.Error("a lost GPU is no reason to read everything")
	}
	facts := c.take()
	for _, f := range []health.Fact{{Kind: health.KindXid, Xid: 13}, {Kind: health.KindFault}, {Kind: health.KindRing}} {
		c.addFact(f)
		if c.alarmed() {
			t.Errorf("a job makes the daemon read everything as often as it likes, with %s", f.Kind)
		}
	}
	c.take()
	n := 0
	for _, f := range facts {
		if f.Xid == 79 {
			n++
		}
	}
	if len(facts) != maxFacts || n != 2 || c.alarmed() {
		t.Errorf("%d facts, %d of them of a lost GPU", len(facts), n)
	}
}

// TestHealthIsKeptOnce checks that the verdicts are not written again if nothing changed.
func TestHealthIsKeptOnce(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		n.lose(1)
		running(t, n, Options{})
		later(2 * time.Minute)
		file := filepath.Join(n.root, HealthPath)
		stored, err := os.Stat(file)
		must.Do(t, err)
		later(2 * time.Minute)
		if now, err := os.Stat(file); err != nil || !os.SameFile(stored, now) || !stored.ModTime().Equal(now.ModTime()) {
			t.Errorf("it is written again: %v", err)
		}
	})
}

// TestFaultIsStored checks that a fault counts after a reboot, which ends it, though it begins to count without an event.
func TestFaultIsStored(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		running(t, n, Options{})
		n.set(func() {
			n.gpus[1].Healthy, n.gpus[1].Error, n.gpus[1].NVML = false, "GPU is lost", &nvml.GPU{Code: nvml.CodeLost}
		})
		faults := func() int {
			stored, err := ReadHealth(n.root)
			must.Do(t, err)
			state, err := health.ParseState(stored.State)
			must.Do(t, err)
			return state.FaultCount()
		}
		later(89 * time.Second)
		n.serves(t, 0)
		must.Equal(t, 0, faults())
		later(3 * time.Minute)
		must.Equal(t, 1, faults())
	})
}

// TestLimitsReachHealth checks that health names a slot whose limits stay wrong for longer
// than a repair takes.
func TestLimitsReachHealth(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{Slots: []plan.Slot{{Index: 0, GPUs: []plan.SlotGPU{{}}}, {Index: 1, GPUs: []plan.SlotGPU{{}}}}}
	changes := []reconcile.Change{
		{Kind: reconcile.Start, Subject: plan.AgentUnit(0), Slot: 0, Why: "it failed"},
		{Kind: reconcile.Set, Subject: plan.SliceName(1), Slot: 1, Why: "memory.max is max"},
	}
	slots := healthSlots(p, nil, changes, time.Time{})
	if slots[0].Limits != "" || slots[1].Limits != "memory.max is max" {
		t.Errorf("%+v", slots)
	}
}

func TestOperatorsDrainsAreKept(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	mine := plan.Drain{Slot: 1, By: plan.ByOperator, Reason: "new fan", Since: at}
	old := plan.Drain{Slot: 2, By: "gpu.ecc", Since: at}
	now := plan.Drain{Slot: 3, By: "gpu.lost", Since: at}
	must.Equal(t, []plan.Drain{mine, now}, withHealth([]plan.Drain{old, mine}, []plan.Drain{now}))
	later := now
	later.Since = at.Add(time.Hour)
	if !sameDrains([]plan.Drain{mine, now}, []plan.Drain{later, mine}) {
		t.Error("the time or the order of a drain makes it another")
	}
	later.Reason = "worse"
	if sameDrains([]plan.Drain{now}, []plan.Drain{later}) || sameDrains([]plan.Drain{now}, nil) {
		t.Error("other drains are taken for the same")
	}
}
