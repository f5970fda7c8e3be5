package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// trials are the evaluations of a fakeNode: each runs until it is answered, or its context ends.
type trials struct {
	asked   atomic.Int32
	running atomic.Int32
	answers chan error
}

func (n *fakeNode) tries(t *testing.T) *trials {
	all := &trials{answers: make(chan error)}
	n.proof, n.gpus = true, twoGPUs()
	n.evaluate = func(ctx context.Context, k int) (bool, string, error) {
		all.asked.Add(1)
		if all.running.Add(1) > 1 {
			t.Error("two evaluations run at once")
		}
		defer all.running.Add(-1)
		units, err := n.sd.Units(t.Context(), plan.AgentUnit(k))
		if err != nil || units[0].Running() {
			t.Errorf("the agent of slot %d runs beside an evaluation: %+v, %v", k, units, err)
		}
		select {
		case err := <-all.answers:
			if errors.Is(err, errFails) {
				return false, err.Error(), nil
			}
			return err == nil, "it multiplied", err
		case <-ctx.Done():
			return false, "", ctx.Err()
		}
	}
	return all
}

var errFails = errors.New("it multiplies wrongly")

// fail lets a GPU fail and recover.
func (n *fakeNode) fail(t *testing.T, i int) {
	t.Helper()
	n.lose(i)
	later(2 * time.Minute)
	n.set(func() { n.gpus[i].Healthy, n.gpus[i].Error = true, "" })
	later(2 * time.Minute)
}

func (a *trials) check(t *testing.T, asked, running int32) {
	t.Helper()
	must.Equal(t, []int32{asked, running}, []int32{a.asked.Load(), a.running.Load()})
}

// owes checks what the only drain says, which is for the proof of slot 1.
func (n *fakeNode) owes(t *testing.T, says string) {
	t.Helper()
	n.serves(t, 0)
	if drains := n.drains(); len(drains) != 1 || drains[0].Slot != 1 || drains[0].By != health.CheckProof || !strings.Contains(drains[0].Reason, says) {
		t.Errorf("drains %+v do not say %q", drains, says)
	}
}

// TestProof lets a GPU fail: its slot serves when an evaluation has passed.
func TestProof(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		all := n.tries(t)
		must.Write(t, n.root, plan.SlotPolicyPath(1), `{"slot": 1, "hooks": {"limit_seconds": 600}}`)
		log, _ := running(t, n, Options{})
		n.serves(t, 0, 1)
		n.fail(t, 1)
		all.check(t, 1, 1)
		n.owes(t, "takes jobs again when a short evaluation has passed")
		later(80 * time.Minute) // with six hooks of ten minutes
		all.check(t, 1, 1)
		all.answers <- errFails
		later(time.Second)
		n.owes(t, "which is tried again: it multiplies wrongly")
		all.check(t, 1, 0)
		later(11 * time.Minute)
		all.check(t, 2, 1)
		all.answers <- errors.New("the image\nis missing")
		later(time.Second)
		n.owes(t, "which is tried again: the image; is missing")
		later(11 * time.Minute)
		all.check(t, 3, 1)
		all.answers <- nil
		later(time.Second)
		n.released(t)
		must.Contain(t, strings.Join(levels(t, log, "health"), "\n"),
			"health 1 info: gpu.proof raised: ", "health 1 warn: gpu.proof changed: ", "health 1 info: gpu.proof cleared: ", "a short evaluation passed: it multiplied")
		later(time.Hour)
		all.check(t, 3, 0)
	})
}

// TestProofThatHangs lets an evaluation never return, whatever ends it: the next slot has its turn, and the daemon ends.
func TestProofThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.proof, n.gpus = true, twoGPUs()
		hang := make(chan struct{})
		t.Cleanup(func() { close(hang) }) // after the end of the daemon
		n.evaluate = func(_ context.Context, k int) (bool, string, error) {
			if k == 1 {
				<-hang
			}
			return true, "it multiplied", nil
		}
		running(t, n, Options{})
		n.fail(t, 1)
		n.fail(t, 0)
		later(10 * time.Minute)
		n.serves(t)
		later(30 * time.Minute)
		n.owes(t, "which could not run: the evaluation in gpu1")
	})
}

// TestProofsInTurn lets both GPUs fail, and one fail for good.
func TestProofsInTurn(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		all := n.tries(t)
		running(t, n, Options{})
		n.lose(0)
		n.fail(t, 1)
		n.set(func() { n.gpus[0].Healthy, n.gpus[0].Error = true, "" })
		later(2 * time.Minute)
		all.check(t, 1, 1)
		all.answers <- nil
		later(time.Second)
		n.serves(t, 1)
		all.check(t, 2, 1)
		for range 3 {
			all.answers <- errFails
			later(25 * time.Minute)
		}
		all.check(t, 4, 0)
		later(2 * time.Hour)
		all.check(t, 4, 0)
		n.serves(t, 1)
	})
}

// TestProofMeanwhile tries what comes between a fault and its proof.
func TestProofMeanwhile(t *testing.T) {
	t.Parallel()
	drained := func(t *testing.T, n *fakeNode, drains ...plan.Drain) {
		t.Helper()
		text, err := plan.RenderDrains(drains)
		must.Do(t, err)
		must.Do(t, os.WriteFile(filepath.Join(n.root, plan.DrainsPath), []byte(text), 0o600))
		n.set(func() { n.stamp += "." })
	}
	for name, meanwhile := range map[string]func(t *testing.T, n *fakeNode, all *trials, restart func()){
		"an operator's drain": func(t *testing.T, n *fakeNode, all *trials, _ func()) {
			all.answers <- errors.New("not now")
			later(time.Second)
			drained(t, n, append(n.drains(), plan.Drain{Slot: 1, By: plan.ByOperator})...)
			later(time.Hour)
			all.check(t, 1, 0)
			drained(t, n, n.drains()[0])
			later(time.Minute)
			all.check(t, 2, 1)
		},
		"a configuration with a typo": func(t *testing.T, n *fakeNode, all *trials, _ func()) {
			all.answers <- errors.New("not now")
			later(time.Second)
			n.set(func() { n.err, n.stamp = errors.New("a key that no one knows"), "typo" })
			later(20 * time.Minute)
			all.check(t, 1, 0)
			n.set(func() { n.err = nil })
			later(time.Minute)
			all.check(t, 2, 1)
		},
		"a restart": func(t *testing.T, n *fakeNode, all *trials, restart func()) {
			restart()
			all.check(t, 2, 1)
		},
		"a restart without the state": func(t *testing.T, n *fakeNode, all *trials, restart func()) {
			must.Do(t, os.WriteFile(filepath.Join(n.root, HealthPath), []byte("{torn"), 0o600))
			restart()
			all.check(t, 2, 1)
			n.owes(t, "after a fault")
		},
		"a restart without the state, and a systemd that is not ready": func(t *testing.T, n *fakeNode, all *trials, restart func()) {
			must.Do(t, os.WriteFile(filepath.Join(n.root, HealthPath), []byte("{torn"), 0o600))
			n.set(func() { n.loadedErr = errors.New("not yet") })
			restart()
			later(time.Minute)
			n.set(func() { n.loadedErr = nil })
			later(time.Minute)
			all.check(t, 2, 1)
			n.owes(t, "after a fault")
		},
		"a configuration without proofs": func(t *testing.T, n *fakeNode, all *trials, _ func()) {
			n.set(func() { n.proof, n.stamp = false, "none" })
			later(time.Minute)
			n.released(t)
		},
		"an operator who does without": func(t *testing.T, n *fakeNode, all *trials, _ func()) {
			must.Do(t, os.MkdirAll(filepath.Join(n.root, "/run/kbnode"), 0o755))
			now, err := clock()()
			must.Do(t, err)
			must.Do(t, ReportReturn(n.root, []string{"GPU-b"}, now.Up+time.Hour))
			later(2 * time.Minute)
			n.released(t)
		},
		"the fault again": func(t *testing.T, n *fakeNode, all *trials, _ func()) {
			n.fail(t, 1)
			all.answers <- nil // of the first
			later(time.Second)
			n.owes(t, "takes jobs again when")
			all.check(t, 2, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode) {
				all := n.tries(t)
				var replaced atomic.Bool
				o := Options{Clock: clock(), Replaced: replaced.Load}
				running(t, n, o)
				n.fail(t, 1)
				all.check(t, 1, 1)
				meanwhile(t, n, all, func() {
					replaced.Store(true)
					later(time.Minute)
					all.check(t, 1, 0)
					running(t, n, Options{Clock: o.Clock})
				})
				if all.running.Load() > 0 {
					all.answers <- nil
				}
				later(2 * time.Minute)
				n.released(t)
			})
		})
	}
}

// TestProofBesideADrain drains the slot while a look goes on, after it has read the drains: its GPU may be in repair at once.
func TestProofBesideADrain(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		all := n.tries(t)
		_, wake := running(t, n, Options{})
		n.fail(t, 1)
		all.answers <- errors.New("not now")
		later(time.Second)
		answered := time.Now()
		later(4 * time.Minute)
		wake <- struct{}{} // the next whole pass is not at the time of the next evaluation
		var drained bool
		n.set(func() {
			n.onDocker = func() {
				if time.Since(answered) < 5*time.Minute || drained {
					return
				}
				drained = true
				text, err := plan.RenderDrains(append(n.drains(), plan.Drain{Slot: 1, By: plan.ByOperator}))
				must.Do(t, errors.Join(err, os.WriteFile(filepath.Join(n.root, plan.DrainsPath), []byte(text), 0o600)))
				n.stamp += "."
			}
		})
		later(10 * time.Minute)
		all.check(t, 1, 0)
	})
}

// TestDrainsWithoutAClock starts a daemon that cannot read the clocks, and so judges nothing: what was stored holds.
func TestDrainsWithoutAClock(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		all := n.tries(t)
		var broken atomic.Bool
		broken.Store(true)
		read := clock()
		must.Do(t, (&reconcile.Host{Root: n.root}).WriteDrains([]plan.Drain{{Slot: 1, By: health.CheckProof, Reason: "it owes an evaluation"}}))
		running(t, n, Options{Clock: func() (health.Moment, error) {
			if broken.Load() {
				return health.Moment{}, errors.New("no clock")
			}
			return read()
		}})
		later(10 * time.Minute)
		n.owes(t, "it owes an evaluation")
		broken.Store(false)
		later(time.Minute)
		n.owes(t, "after a fault")
		if all.running.Load() != 1 {
			t.Fatal("no evaluation runs")
		}
		all.answers <- nil
		later(time.Minute)
		n.released(t)
	})
}

// TestCanEvaluate checks that an evaluation runs only where nothing else does or keeps jobs away.
func TestCanEvaluate(t *testing.T) {
	t.Parallel()
	type world struct {
		slot   plan.Slot
		state  slot.State
		drains []plan.Drain
		other  health.Verdict
	}
	owed := plan.Drain{By: health.CheckProof}
	for name, row := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"a drained slot":            {func(*world) {}, true},
		"one that failed too often": {func(w *world) { w.drains = append(w.drains, plan.Drain{By: health.CheckRepeats}) }, true},
		"another slot's drain":      {func(w *world) { w.drains = append(w.drains, plan.Drain{Slot: 1, By: plan.ByOperator}) }, true},
		"an operator's drain":       {func(w *world) { w.drains = append(w.drains, plan.Drain{By: plan.ByOperator}) }, false},
		"the end of a loan":         {func(w *world) { w.drains = append(w.drains, plan.Drain{By: plan.ByLoan}) }, false},
		"a switch that fails": {func(w *world) {
			w.other = health.Verdict{Check: "node.nvswitch", Slots: []int{0}, Effect: health.Drain}
		}, false},
		"what another slot has":        {func(w *world) { w.other = health.Verdict{Check: "gpu.remap", Slots: []int{1}, Effect: health.Drain} }, true},
		"what holds no slot":           {func(w *world) { w.other = health.Verdict{Check: "gpu.heat", Slots: []int{0}} }, true},
		"an engine that is away":       {func(w *world) { w.drains = append(w.drains, plan.Drain{By: health.CheckDocker}) }, false},
		"a GPU that does not answer":   {func(w *world) { w.slot.Parked = "it is lost" }, false},
		"something left of a job":      {func(w *world) { w.state.Parked = []slot.Parked{{Reason: "a process"}} }, true},
		"a job":                        {func(w *world) { w.state.Job = &slot.Job{ID: "1"} }, false},
		"a container of root's":        {func(w *world) { w.state.Containers = []string{"1"} }, false},
		"an agent that runs":           {func(w *world) { w.state.Agent.Active = "active" }, false},
		"an agent that ends":           {func(w *world) { w.state.Agent.Active, w.state.Agent.Sub = "deactivating", "stop-sigterm" }, false},
		"a slot that is not drained":   {func(w *world) { w.drains = nil }, false},
		"a slot that is not planned":   {func(w *world) { w.slot.Index = 7 }, false},
		"a slot that was not observed": {func(w *world) { w.state.Index = 7 }, false},
	} {
		w := world{drains: []plan.Drain{owed}}
		row.change(&w)
		if got := canEvaluate(0, &plan.Plan{Slots: []plan.Slot{w.slot}}, []slot.State{w.state}, w.drains, []health.Verdict{{Check: health.CheckRepeats, Slots: []int{0}, Effect: health.Drain}, w.other}); got != row.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestProofBesideAStrongerVerdict checks that a proof that is owed is stored beside what holds the slot.
func TestProofBesideAStrongerVerdict(t *testing.T) {
	t.Parallel()
	verdict := func(check string, level health.Level) health.Verdict {
		return health.Verdict{Check: check, Slots: []int{0}, Level: level, Effect: health.Drain, Since: time.Unix(1, 0)}
	}
	proof := verdict(health.CheckProof, health.Info)
	for _, verdicts := range [][]health.Verdict{{proof, proof}, {verdict(health.CheckDocker, health.Fatal), proof, proof}} {
		drains := drainsOf(verdicts, &plan.Plan{Slots: []plan.Slot{{}, {Index: 1}}}, time.Unix(2, 0))
		n := len(slices.Compact(slices.Collect(func(yield func(string) bool) {
			for _, d := range drains {
				yield(d.By)
			}
		})))
		if n != len(drains) || drains[n-1].By != health.CheckProof {
			t.Errorf("%+v", drains)
		}
		d := newDaemon(Options{Root: t.TempDir()})
		must.Equal(t, health.CheckProof, d.faultsOf(append(drains, plan.Drain{By: plan.ByOperator}, plan.Drain{By: health.CheckRepeats}))[0])
		d.health.state.Boot = "1"
		must.Equal(t, 0, len(d.faultsOf(drains)))
	}
}
