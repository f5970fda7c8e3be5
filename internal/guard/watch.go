package guard

import (
	"context"
	"time"
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
// ctx is done. No report meanwhile, by hooks or by the job in their place, ends this watch. It
// also ends a job that takes too long, or that stops its agent.
func (s *cleaner) watchEnd(ctx context.Context) {
	agent := 0
	// runs reports whether the agent has a process for a job; true if unknown.
	runs := func() bool {
		if agent == 0 || s.procs.cgroupOf(agent) != s.procs.agent {
			var err error
			if agent, err = s.agentPID(ctx); err != nil {
				return true
			}
			if agent == 0 {
				return false
			}
		}
		is, err := s.procs.runsJob(agent)
		return is || err != nil
	}
	if runs() && agent != 0 {
		s.watched.Store(true) // a restarted guard heard of no begin
	}
	var e enforcer
	for pause(ctx, endPoll) == nil {
		if !s.watched.Load() {
			continue
		}
		if runs() {
			s.alone.Store(0)
			e.look(ctx, s, agent)
			continue
		}
		if s.alone.Add(1) < endLooks && agent != 0 {
			continue
		}
		s.mu.Lock()
		if s.watched.Load() && (s.alone.Load() >= endLooks || agent == 0) && !runs() {
			s.watched.Store(false)
			s.untold(ctx, agent)
		}
		s.mu.Unlock()
	}
}

// untold cleans up after a job that the agent no longer runs. Without an agent (0), systemd ends
// its unit, and may start the next one at the same time.
func (s *cleaner) untold(ctx context.Context, agent int) {
	keep := func(pid int) bool { return agent > 0 && s.procs.below(agent, pid) || s.procs.ofRoot(pid) }
	within, err1 := s.procs.within(keep)
	beside, err2 := s.procs.beside()
	if n := len(within) + len(beside); n > 0 || err1 != nil || err2 != nil {
		s.log.Warn("job ended without a report", "processes", n)
	}
	if agent > 0 && s.procs.isStopped(agent) {
		s.resume(agent)
	}
	if why, err := s.ended(ctx, keep); err != nil {
		s.log.Warn("slot not cleaned up", "err", err)
	} else if why != "" {
		s.log.Warn("slot takes no jobs", "reason", why)
	}
}
