package guard

import (
	"context"
	"time"
)

const (
	// endPoll lies between two looks at whether the agent still runs a job.
	endPoll = 2 * time.Second
	// endLooks in a row have to find that it does not, and so many more where it was
	// not yet seen to: between the hook that tells of a job and the job itself there
	// is a moment without a process, and a long one on a machine that has much to do.
	endLooks   = 2
	startLooks = 13
)

// watchEnd clears away what jobs left of whose end nobody told, until ctx is done.
// An agent kills the hooks of a job that was cancelled and takes too long, and the
// kernel what runs the job where memory ran out. Without this, what such a job has
// started would go on until the next one comes.
func (s *cleaner) watchEnd(ctx context.Context) {
	agent := 0
	runs := func() bool {
		if agent == 0 || s.procs.cgroupOf(agent) != s.procs.agent {
			var err error
			if agent, err = s.agentPID(ctx); err != nil {
				return true
			}
			if agent == 0 { // its unit has ended all, and the next one asks
				s.watched.Store(false)
				return true
			}
		}
		is, err := s.procs.runsJob(agent)
		return is || err != nil
	}
	if runs() && agent != 0 {
		s.watched.Store(true) // a guard that was restarted heard of no begin
	}
	for pause(ctx, endPoll) == nil {
		if !s.watched.Load() {
			continue
		}
		if runs() {
			s.alone.Store(0)
			continue
		}
		if s.alone.Add(1) < endLooks {
			continue
		}
		s.mu.Lock()
		if s.alone.Load() >= endLooks && !runs() {
			s.watched.Store(false)
			s.untold(ctx, agent)
		}
		s.mu.Unlock()
	}
}

// untold ends a job that the agent does not run any more, unless that was done.
func (s *cleaner) untold(ctx context.Context, agent int) {
	keep := func(pid int) bool { return s.procs.below(agent, pid) }
	within, err1 := s.procs.within(keep)
	beside, err2 := s.procs.beside()
	if s.swept && err1 == nil && err2 == nil && len(within)+len(beside) == 0 {
		return
	}
	s.log.Warn("job ended without a word", "processes", len(within)+len(beside))
	if why, err := s.ended(ctx, keep); err != nil {
		s.log.Warn("slot not cleared", "err", err)
	} else if why != "" {
		s.log.Warn("slot takes no jobs", "reason", why)
	}
}
