package daemon

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// proofTime bounds an evaluation, in two profiles, with all that starts and ends it but hooks.
	proofTime = 30 * time.Minute
	// stopTime is how long one may take to end with the daemon.
	stopTime = 20 * time.Second
	// maxWhy bounds why one did not end, in characters.
	maxWhy = 300
)

// evaluations are what GPUs owe before they take jobs again. One runs at a time, beside the loop.
type evaluations struct {
	wait  sync.WaitGroup
	mu    sync.Mutex
	stop  context.CancelFunc  // of the one that runs; nil if none does
	ended []health.Evaluation // to be judged
}

// take returns those that ended since the last call.
func (e *evaluations) take() []health.Evaluation {
	e.mu.Lock()
	defer e.mu.Unlock()
	ended := e.ended
	e.ended = nil
	return ended
}

// close ends the one that runs. The next daemon begins it again.
func (e *evaluations) close() {
	e.mu.Lock()
	if e.stop != nil {
		e.stop()
	}
	e.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		e.wait.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopTime): // a disk or a driver hangs
	}
}

// begin calls run beside the loop, with a time limit, and then done, unless another one runs or is to be judged.
func (e *evaluations) begin(within time.Duration, run func(context.Context) health.Evaluation, done func()) (began bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil || len(e.ended) > 0 {
		return false
	}
	ctx, stop := context.WithTimeout(context.Background(), within)
	e.stop = stop
	e.wait.Go(func() {
		result := run(ctx)
		stop()
		e.mu.Lock()
		e.stop, e.ended = nil, append(e.ended, result)
		e.mu.Unlock()
		done()
	})
	return true
}

// evaluate begins the evaluation of a slot whose GPUs owe one, if a slot is free for it. A pass does so at its end, when
// nothing of the slot is about to be changed.
func (d *daemonLoop) evaluate() {
	if d.plan == nil || d.snapshot.State == nil {
		return
	}
	now := d.clocks.Up
	for _, k := range health.Due(d.health.state, d.health.Verdicts) {
		if !canEvaluate(k, d.plan, d.snapshot.State.Slots, d.drains, d.health.Verdicts) {
			continue
		}
		if d.stampOf(d.plan) != d.stamp { // an operator may have drained the slot since the drains were read; the next pass reads them
			return
		}
		within := proofTime
		if p, err := slot.ReadPolicy(d.Root, k); err == nil { // else it does not run
			within += 6 * p.HookLimit() // in each profile, an epilog may be due, and a job has both
		}
		began := d.evaluations.begin(within, func(ctx context.Context) health.Evaluation {
			result, err := limit.Call(d.Root, "the evaluation in "+plan.SlotName(k), within+stopTime, func() (health.Evaluation, error) {
				passed, says, err := d.Node.Evaluate(ctx, k)
				return health.Evaluation{Slot: k, Began: now, Ended: true, Passed: passed, Text: says}, err
			})
			if err != nil {
				result = health.Evaluation{Slot: k, Began: now, Text: text.Line(strings.ReplaceAll(err.Error(), "\n", "; "), maxWhy)}
			}
			return result
		}, func() { d.wake("an evaluation") })
		if began {
			d.Log.Info("evaluation begins", "slot", plan.SlotName(k))
		}
		return
	}
}

// canEvaluate reports whether an evaluation can run in a slot: nothing but that it owes one keeps jobs from it, and nothing
// runs in it. While an operator has it drained, its GPU may be in repair. Where it is parked for what a job left, it looks
// again at that.
func canEvaluate(k int, p *plan.Plan, states []slot.State, drains []plan.Drain, verdicts []health.Verdict) bool {
	i := slices.IndexFunc(p.Slots, func(s plan.Slot) bool { return s.Index == k })
	j := slices.IndexFunc(states, func(s slot.State) bool { return s.Index == k })
	if i < 0 || j < 0 || p.Slots[i].Parked != "" {
		return false
	}
	owed := func(check string) bool { return check == health.CheckProof || check == health.CheckRepeats }
	return states[j].Busy() == "" && !states[j].Agent.Running() &&
		slices.ContainsFunc(drains, func(d plan.Drain) bool { return d.Slot == k && d.By == health.CheckProof }) &&
		!slices.ContainsFunc(drains, func(d plan.Drain) bool {
			return d.Slot == k && !owed(d.By)
		}) &&
		!slices.ContainsFunc(verdicts, func(v health.Verdict) bool { // of several, only one is a drain
			return v.Effect > health.None && !owed(v.Check) && slices.Contains(v.Slots, k)
		})
}

// faultsOf returns the checks for which the stored drains keep slots out of service, if the health state that says what
// their GPUs owe is lost.
func (d *daemonLoop) faultsOf(drains []plan.Drain) map[int]string {
	if d.health.state.Boot != "" {
		return nil
	}
	faults := map[int]string{}
	for _, drain := range drains {
		if strings.HasPrefix(drain.By, "gpu.") && drain.By != health.CheckRepeats {
			faults[drain.Slot] = drain.By
		}
	}
	return faults
}
