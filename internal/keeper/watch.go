package keeper

import (
	"context"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
)

const (
	// endPoll is the time between two checks of whether the agent still runs a job.
	endPoll = 2 * time.Second
	// endLooks is how many checks in a row must find that it does not; startLooks more are
	// needed before a new job was first seen. Between the hook that reports a job and the job
	// itself there is a moment without a process, and a long one on a busy machine.
	endLooks   = 2
	startLooks = 13
)

// watchEnd cleans up after a job when the agent's process for it, or the agent, is gone, until
// ctx is done. No report meanwhile, by hooks or by the job in their place, ends this watch.
func (k *Keeper) watchEnd(ctx context.Context) {
	agent := 0
	// runs reports whether the agent has a process for a job; true if unknown.
	runs := func() bool {
		if agent == 0 || k.procs.cgroupOf(agent) != k.procs.agent {
			var err error
			if agent, err = k.agentPID(ctx); err != nil {
				return true
			}
			if agent == 0 {
				return false
			}
		}
		is, err := k.procs.runsJob(agent)
		return is || err != nil
	}
	if runs() && agent != 0 {
		k.watched.Store(true) // a restarted guard heard of no begin
	}
	for limit.Sleep(ctx, endPoll) == nil {
		if !k.watched.Load() {
			continue
		}
		if runs() {
			k.alone.Store(0)
			continue
		}
		if k.alone.Add(1) < endLooks && agent != 0 {
			continue
		}
		k.mu.Lock()
		if k.watched.Load() && (k.alone.Load() >= endLooks || agent == 0) && !runs() {
			k.watched.Store(false)
			k.untold(ctx, agent)
		}
		k.mu.Unlock()
	}
}

// untold cleans up after a job that the agent no longer runs. Without an agent (0), systemd ends
// its unit, and may start the next one at the same time.
func (k *Keeper) untold(ctx context.Context, agent int) {
	keep := func(pid int) bool { return agent > 0 && k.procs.below(agent, pid) || k.procs.ofRoot(pid) }
	within, err1 := k.procs.within(keep)
	beside, err2 := k.procs.beside()
	if n := len(within) + len(beside); n > 0 || err1 != nil || err2 != nil {
		k.log.Warn("job ended without a report", "processes", n)
	}
	if why, err := k.ended(ctx, keep); err != nil {
		k.log.Warn("slot not cleaned up", "err", err)
	} else if why != "" {
		k.log.Warn("slot takes no jobs", "reason", why)
	}
}

// agentPID returns the agent's process, 0 without one.
func (k *Keeper) agentPID(ctx context.Context) (int, error) {
	if k.mainPID == nil {
		return 0, nil
	}
	pid, err := k.mainPID(ctx)
	if err != nil || k.procs.cgroupOf(pid) != k.procs.agent {
		return 0, err
	}
	return pid, nil
}
