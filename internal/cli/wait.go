package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// waitRegistered waits until every agent that should run has registered with Buildkite, except
// agents of slots that wait for a job or are parked. If one was refused, the error quotes the
// agent.
func waitRegistered(ctx context.Context, s Streams, p *plan.Plan, host *reconcile.Host, deferred []reconcile.Change) error {
	var wait []plan.Slot
	for _, slot := range p.Slots {
		later := slices.ContainsFunc(deferred, func(c reconcile.Change) bool { return c.Slot == slot.Index })
		if slot.Serves() && !later {
			wait = append(wait, slot)
		}
	}
	total, told, width := len(wait), -1, cursor(s.Err)
	end := func() { // of the line that is rewritten
		if width > 0 && told >= 0 {
			printf(s.Err, "\n")
			told = -1
		}
	}
	defer end()
	deadline := time.Now().Add(slot.RegisterTime)
	for len(wait) > 0 {
		state, err := host.Observe(ctx, p)
		if err != nil && ctx.Err() == nil && time.Now().Before(deadline) { // the plan was applied; only this look failed
			s.logger().Debug("agents not checked", "err", err)
			if err := pause(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("everything is set up, but kbnode cannot see whether the agents have registered: %w; see kbnode status", err)
		}
		var refused []error
		wait = slices.DeleteFunc(wait, func(slot plan.Slot) bool {
			ss := state.Slot(slot.Index)
			if failedToStart(ss) {
				refused = append(refused, agentFailure(ctx, slot))
			}
			if len(ss.Parked) > 0 {
				end()
				s.warn("slot %s is parked: %s", slot.Name, ss.Parked[0].Reason)
				total--
				return true
			}
			return registered(ss)
		})
		if len(refused) > 0 {
			return errors.Join(refused...)
		}
		if done := total - len(wait); done != told {
			if told = done; width > 0 {
				rewriteLine(s.Err, width, fmt.Sprintf("  %d of %d agents registered", done, total))
			} else {
				s.progress("%d of %d agents registered", done, total)
			}
		}
		if len(wait) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			end()
			s.warn("%s not registered yet; kbnode status and journalctl -u %s show more", slotNames(wait), plan.AgentUnit(wait[0].Index))
			return &exitError{code: exitNo}
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(300 * time.Millisecond):
		return nil
	}
}

// registered reports whether the running agent has registered, or will when it has finished its
// job.
func registered(ss slot.State) bool { return ss.Agent.Stopping() || ss.Job != nil || ss.Registered }

func failedToStart(ss slot.State) bool {
	return ss.Agent.Active == "failed" || ss.Agent.Failing() && ss.Agent.ExitStatus != 0
}

// agentFailure returns an error with the last words of an agent that gave up.
func agentFailure(ctx context.Context, slot plan.Slot) error {
	unit := plan.AgentUnit(slot.Index)
	lines, err := agent.Journal(ctx, unit, 40)
	if err != nil {
		return fmt.Errorf("agent of slot %s ended at once; journalctl -u %s shows why", slot.Name, unit)
	}
	return fmt.Errorf("agent of slot %s ended at once: %s; journalctl -u %s shows more", slot.Name, cmp.Or(agent.LastWords(lines), "it logged nothing"), unit)
}

func slotNames(slots []plan.Slot) string {
	names := make([]string, len(slots))
	for i, s := range slots {
		names[i] = s.Name
	}
	return strings.Join(names, ", ")
}
