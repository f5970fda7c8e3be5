package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// drain stores drains as kbnode drain does.
func (n *fakeNode) drain(t *testing.T, drains ...plan.Drain) {
	t.Helper()
	text, err := plan.RenderDrains(drains)
	must.Do(t, err)
	must.Do(t, os.WriteFile(filepath.Join(n.root, plan.DrainsPath), []byte(text), 0o600))
	n.set(func() { n.stamp += "." })
}

// skewed is the clock of a machine in a boot, off by what skew returns.
func skewed(boot string, skew func() time.Duration) func() (health.Moment, error) {
	booted := time.Now().Add(-time.Minute)
	return func() (health.Moment, error) {
		return health.Moment{Now: time.Now().Add(skew()), Up: time.Since(booted), Boot: boot}, nil
	}
}

func right() time.Duration { return 0 }

func TestDrainUntil(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.clock = twoGPUs(), health.ClockSynchronised
		n.drain(t, plan.Drain{Slot: 0, By: plan.ByOperator, Until: time.Now().Add(time.Hour)}, plan.Drain{Slot: 1, By: plan.ByOperator})
		log, _ := running(t, n, Options{})
		later(59 * time.Minute)
		n.serves(t)
		later(90 * time.Second)
		n.serves(t, 0)
		if drains := n.drains(); len(drains) != 1 || drains[0].Slot != 1 {
			t.Errorf("left %+v", drains)
		}
		if !slices.Contains(kinds(t, log), "resume: gpu0 may take jobs again: it was drained until 2000-01-01 01:00 UTC") {
			t.Errorf("events %q", kinds(t, log))
		}
	})
}

// TestDrainOutlastsAWrongClock has a clock without NTP that is in the future for five minutes.
func TestDrainOutlastsAWrongClock(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		began := time.Now()
		n.drain(t, plan.Drain{Slot: 0, By: plan.ByOperator, Until: time.Now().Add(time.Hour)})
		running(t, n, Options{Clock: skewed("1", func() time.Duration {
			if time.Since(began) < 5*time.Minute {
				return 1000 * time.Hour
			}
			return 0
		})})
		later(65 * time.Minute)
		n.serves(t, 1)
		later(7 * time.Minute)
		n.released(t)
	})
}

func TestLoanEnds(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.clock, n.loanEnd = twoGPUs(), health.ClockSynchronised, time.Now().Add(time.Hour)
		skew := time.Duration(0)
		log, _ := running(t, n, Options{Clock: skewed("1", func() time.Duration { return skew })})
		later(50 * time.Minute)
		n.released(t)
		must.Do(t, n.sd.RunJob(1, "0192"))
		later(11 * time.Minute)
		if job := n.sd.FinishJob(1); job != nil {
			t.Error("the loan's end ended a job: ", job)
		}
		later(time.Minute)
		n.serves(t)
		if drains := n.drains(); len(drains) != 2 || drains[0].String() != "drained: loan ended at 2000-01-01 01:00 UTC; sudo kbnode uninstall" {
			t.Errorf("drains %+v", drains)
		}
		n.set(func() { n.clock, skew = health.ClockAdrift, -1000*time.Hour })
		later(10 * time.Minute)
		n.serves(t)
		n.set(func() { n.loanEnd, n.stamp = time.Time{}, "another date" })
		later(time.Minute)
		n.released(t)
		var levels []string
		must.Do(t, log.Read(func(e events.Event) {
			if e.Kind == "loan" {
				levels = append(levels, e.Level)
			}
		}))
		must.Equal(t, []string{events.Warn, events.Info}, levels)
	})
}

// TestLoanEndedWhileOff boots a machine after its loan's end, before anything sets its clock: no job begins, and that is told
// when the clock has said so for a while. After another boot, it is not told again.
func TestLoanEndedWhileOff(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.clock, n.loanEnd = twoGPUs(), health.ClockAdrift, time.Now().Add(-time.Hour)
		log, _ := running(t, n, Options{Clock: skewed("1", right)})
		later(time.Second)
		n.serves(t)
		must.Equal(t, "drained: loan ended at 1999-12-31 23:00 UTC; the clock, which says so, is not synchronized yet", n.drains()[0].String())
		later(clockTrial - 2*time.Minute)
		must.Equal(t, 0, len(levels(t, log, "loan")))
		later(4 * time.Minute)
		must.Equal(t, []string{"loan -1 warn: loan ended at 1999-12-31 23:00 UTC: sudo kbnode uninstall"}, levels(t, log, "loan"))
		running(t, n, Options{Clock: skewed("2", right)})
		later(20 * time.Minute)
		n.serves(t)
		must.Equal(t, 1, len(levels(t, log, "loan")))
	})
}

// TestLoanByAWrongClock boots a machine whose clock is in the future until NTP sets it: the loan has not ended.
func TestLoanByAWrongClock(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.loanEnd = twoGPUs(), time.Now().Add(1000*time.Hour)
		skew := 9999 * time.Hour
		log, _ := running(t, n, Options{Clock: skewed("1", func() time.Duration { return skew })})
		later(5 * time.Minute)
		n.serves(t)
		n.set(func() { n.clock, skew = health.ClockSynchronised, 0 })
		later(6 * time.Minute)
		n.released(t)
		must.Equal(t, 0, len(levels(t, log, "loan")))
	})
}

// TestLoanEndsUnplanned has a configuration with a typo when the loan ends.
func TestLoanEndsUnplanned(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus, n.clock, n.loanEnd = twoGPUs(), health.ClockSynchronised, time.Now().Add(time.Hour)
		running(t, n, Options{})
		n.set(func() { n.err, n.stamp = os.ErrInvalid, "typo" })
		later(62 * time.Minute)
		n.serves(t)
	})
}

func TestReboot(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		rebooted := func() (times int) { // since the last call
			for _, w := range n.sd.Words() {
				if w == "reboot reboot.target" {
					times++
				}
			}
			return times
		}
		running(t, n, Options{Clock: skewed("1", right)})
		must.Do(t, n.sd.RunJob(1, "0192"))
		n.drain(t, plan.Drain{Slot: 0, By: plan.ByOperator, Reboot: "1", Stays: true}, plan.Drain{Slot: 1, By: plan.ByOperator, Reboot: "1"})
		later(time.Hour)
		must.Equal(t, 0, rebooted())
		n.set(func() { n.err, n.stamp = os.ErrInvalid, "typo" }) // a reboot may help
		must.Do(t, n.sd.FinishJob(1))
		later(time.Minute)
		locked := func() bool {
			release, err := (&reconcile.Host{Root: n.root}).Lock()
			if err == nil {
				release()
			}
			return err != nil
		}
		if !locked() {
			t.Error("kbnode resume can start agents before the reboot comes")
		}
		must.Equal(t, 1, rebooted())
		later(holdTime + time.Minute)
		if locked() {
			t.Error("no one can cancel a reboot that is lost")
		}
		later(rebootTime - holdTime - 3*time.Minute)
		must.Equal(t, 0, rebooted()) // it takes a while
		later(3 * time.Minute)
		must.Equal(t, 1, rebooted()) // and was lost
		n.drain(t)
		later(rebootTime + time.Minute)
		must.Equal(t, 0, rebooted())
		if locked() {
			t.Error("the lock is held for a reboot that does not come")
		}
	})
}

// TestNewSlotWhileARebootWaits has a slot appear that no one drained: it must not hold the reboot up.
func TestNewSlotWhileARebootWaits(t *testing.T) {
	t.Parallel()
	d := &daemonLoop{}
	d.clocks.Boot = "1"
	p := &plan.Plan{Slots: []plan.Slot{{Index: 0}, {Index: 1}, {Index: 2}}}
	waits := []plan.Drain{{Slot: 0, By: plan.ByOperator, Reboot: "1"}, {Slot: 2, By: plan.ByOperator, Reason: "fan"}}
	must.Equal(t, []plan.Drain{waits[0], {Slot: 2, By: plan.ByOperator, Reason: "fan", Reboot: "1", Stays: true}, {Slot: 1, By: plan.ByOperator, Reboot: "1"}}, sinceless(d.withReboot(waits, p)))
	d.clocks.Boot = "2"
	must.Equal(t, waits, d.withReboot(waits, p))
}

func sinceless(drains []plan.Drain) []plan.Drain {
	for i := range drains {
		drains[i].Since = time.Time{}
	}
	return drains
}

func TestAfterReboot(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode) {
		n.gpus = twoGPUs()
		n.drain(t, plan.Drain{Slot: 0, By: plan.ByOperator, Reboot: "1", Stays: true}, plan.Drain{Slot: 1, By: plan.ByOperator, Reboot: "1"})
		running(t, n, Options{Clock: skewed("2", right)})
		later(time.Minute)
		n.serves(t, 1)
		must.Equal(t, []plan.Drain{{Slot: 0, By: plan.ByOperator}}, n.drains())
		if slices.Contains(n.sd.Words(), "reboot reboot.target") {
			t.Error("it reboots again")
		}
	})
}
