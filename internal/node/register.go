package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// registerPoll is the time between two looks at agents that start.
const registerPoll = 300 * time.Millisecond

// LateError names slots whose agents have not registered in time.
type LateError struct{ Slots []plan.Slot }

func (e *LateError) Error() string {
	return fmt.Sprintf("%s not registered yet; kbnode status and journalctl -u %s show more", SlotNames(e.Slots), plan.AgentUnit(e.Slots[0].Index))
}

// WaitRegistered waits until every agent that should run has registered with Buildkite, except
// agents of slots that wait for a job or are parked. If one was refused, the error quotes the
// agent. It is a *LateError if none has registered for within while some are missing: eight agents share the CPUs
// when they start, and one that registers shows that the others may. It calls registered whenever done or total
// changes, and parked for a slot that it no longer waits for.
func WaitRegistered(ctx context.Context, p *plan.Plan, host *reconcile.Host, deferred []reconcile.Change, within time.Duration, registered func(done, total int), parked func(s plan.Slot, why string)) error {
	var wait []plan.Slot
	for _, s := range p.Slots {
		later := slices.ContainsFunc(deferred, func(c reconcile.Change) bool { return c.Slot == s.Index })
		if s.Serves() && !later {
			wait = append(wait, s)
		}
	}
	total, reported := len(wait), -1
	for deadline := time.Now().Add(within); len(wait) > 0; {
		state, err := host.Observe(ctx, p)
		if err != nil && ctx.Err() == nil && time.Now().Before(deadline) { // the plan was applied; only this look failed
			if err := limit.Sleep(ctx, registerPoll); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("everything is set up, but kbnode cannot see whether the agents have registered: %w; see kbnode status", err)
		}
		var errs []error
		wait = slices.DeleteFunc(wait, func(s plan.Slot) bool {
			now := state.Slot(s.Index)
			if now.Failed() {
				errs = append(errs, agentFailure(ctx, s))
			}
			if len(now.Parked) > 0 {
				parked(s, now.Parked[0].Reason)
				total--
				return true
			}
			return UsesBuildkite(now)
		})
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
		if done := total - len(wait); done != reported {
			reported, deadline = done, time.Now().Add(within)
			registered(done, total)
		}
		if len(wait) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return &LateError{wait}
		}
		if err := limit.Sleep(ctx, registerPoll); err != nil {
			return err
		}
	}
	return nil
}

// UsesBuildkite reports whether a slot's agent has registered, or will when it has finished its
// job.
func UsesBuildkite(s slot.State) bool { return s.Agent.Stopping() || s.Job != nil || s.Registered }

// agentFailure returns an error with the last words of an agent that gave up.
func agentFailure(ctx context.Context, s plan.Slot) error {
	unit := plan.AgentUnit(s.Index)
	lines, err := agent.Journal(ctx, unit, journalLines)
	if err != nil {
		return fmt.Errorf("agent of slot %s ended at once; journalctl -u %s shows why", s.Name, unit)
	}
	return fmt.Errorf("agent of slot %s ended at once: %s; journalctl -u %s shows more", s.Name, cmp.Or(agent.LastWords(lines), "it logged nothing"), unit)
}
