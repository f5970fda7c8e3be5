package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// agentProblem returns why a slot's agent does not come up: how its last run ended, how often
// systemd has restarted it, and what it said last. It returns "" if nothing is wrong.
func agentProblem(ctx context.Context, sl plan.Slot, ss slot.State, now time.Time, journal func(context.Context, string, int) ([]string, error)) string {
	why := ss.Disconnected(sl, now)
	if why == "" {
		return ""
	}
	a := ss.Agent
	if a.Result != "" && a.Result != "success" {
		why += fmt.Sprintf("; it ended with %s, exit status %d", a.Result, a.ExitStatus)
	}
	if a.Restarts > 0 {
		why += fmt.Sprintf("; restarted %d times", a.Restarts)
	}
	lines, err := journal(ctx, plan.AgentUnit(sl.Index), 40)
	if err != nil {
		return why // it names journalctl
	}
	return why + "; its last message: " + cmp.Or(agent.LastWords(lines), "nothing")
}
