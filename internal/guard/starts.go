package guard

import (
	"fmt"
	"time"
)

const (
	// calmLife is the shortest life of an agent that works but gets no job. One that ends sooner
	// has failed: its token is refused, or Buildkite sends it away.
	calmLife = time.Minute
	// firstWait follows the second failure in a row. Each further wait is twice as long, up to
	// longestWait.
	firstWait   = 5 * time.Second
	longestWait = time.Minute
)

// starts counts agents that fail in a row. systemd cannot: it also starts the agent again after
// each job.
type starts struct {
	pid      int       // of the process that is about to become the agent
	since    time.Time // when it first asked
	worked   bool      // it was given a job
	failures int       // in a row
	until    time.Time // the next one waits until then
}

// next records who asks. fresh reports whether it is a new process, so that the agent before it
// has ended.
func (s *starts) next(pid int, now time.Time) (fresh bool) {
	if pid == s.pid {
		return false
	}
	switch {
	case s.pid == 0: // the agent before this guard is not known
	case s.worked || now.Sub(s.since) > calmLife:
		s.failures = 0
	default:
		if s.failures++; s.failures > 1 {
			s.until = now.Add(min(firstWait<<min(s.failures-2, 10), longestWait))
		}
	}
	s.pid, s.since, s.worked = pid, now, false
	return true
}

// wait returns why the agent must not start yet, or "". The time that it waits does not count as
// its life.
func (s *starts) wait(now time.Time) string {
	left := s.until.Sub(now)
	if left <= 0 {
		return ""
	}
	s.since = now
	return fmt.Sprintf("the agent exited %d times in a row without a job; it starts again in %s", s.failures, left.Round(time.Second))
}
