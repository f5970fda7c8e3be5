package guard

import (
	"context"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
)

// endPoll is the time between two checks of whether the agent still runs a job.
const endPoll = 2 * time.Second

// watch clears the slot after each job, however it ended, until ctx is done: when the agent has no
// process for it any more, or there is no agent.
func (k *cleaner) watch(ctx context.Context) {
	k.mu.Lock()
	if runs, err := k.procs.runsJob(); runs || err != nil {
		k.running = true // a restarted guard saw no begin
	}
	k.mu.Unlock()
	for limit.Sleep(ctx, endPoll) == nil {
		k.mu.Lock()
		if k.running {
			if _, err := k.afterJob(ctx); err != nil {
				k.log.Warn("slot not cleaned up", "err", err)
			}
		}
		k.mu.Unlock()
	}
}

// afterJob reports whether the agent runs a job, and clears the slot if that has ended since the last
// check.
func (k *cleaner) afterJob(ctx context.Context) (runs bool, err error) {
	if runs, err = k.procs.runsJob(); runs || err != nil || !k.running {
		return runs, err
	}
	why, err := k.clean(ctx, retryTime)
	if why != "" {
		k.log.Warn("slot takes no jobs", "reason", why)
	}
	return false, err
}
