package acceptance

import (
	"context"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// restart kills the agent of an idle slot, and waits for the next one.
func restart(ctx context.Context, r *run) Item {
	slot, ok, err := r.Idle(ctx)
	if err != nil {
		return failed("sudo kbnode status", "%v", err)
	}
	if !ok {
		return untried(typeAgain, "no slot is idle")
	}
	name, unit := plan.SlotName(slot), plan.AgentUnit(slot)
	logs := "journalctl -u " + unit
	before, err := r.Agent(ctx, slot)
	if err == nil && before.PID == 0 {
		err = fmt.Errorf("no agent runs in %s", name)
	}
	if err == nil {
		err = r.Kill(ctx, slot)
	}
	if err != nil {
		return failed(logs, "%v", err)
	}
	began := time.Now()
	back := time.Duration(0)
	for {
		now, err := r.Agent(ctx, slot)
		since := time.Since(began)
		// systemd may still report the killed agent.
		if err == nil && now.PID != 0 && now.PID != before.PID {
			if back == 0 {
				back = since
			}
			if now.Registered {
				break
			}
		}
		switch {
		case back == 0 && since > r.back:
			if err != nil {
				return failed(logs, "%s: %v", name, err)
			}
			return failed(logs, "the agent of %s is not back after %s", name, r.back)
		case since > r.register:
			return failed(logs, "the agent of %s was back after %.1f s, but has not registered", name, back.Seconds())
		}
		if limit.Sleep(ctx, r.poll) != nil {
			return Item{}
		}
	}
	if back > r.back {
		return failed(logs, "the agent of %s was back after %.1f s", name, back.Seconds())
	}
	return passed("%s: back after %.1f s, registered after %.1f s", name, back.Seconds(), time.Since(began).Seconds())
}
