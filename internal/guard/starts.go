package guard

import (
	"fmt"
	"time"
)

const (
	// An agent that ends sooner than calmLife, and without a job, has failed: its
	// token is refused, or Buildkite sends it away.
	calmLife = time.Minute
	// The second failure in a row waits so long, each further one twice as long.
	firstWait   = 5 * time.Second
	longestWait = time.Minute
)

// starts counts agents that fail one after the other. systemd cannot: it starts the
// agent again after each job, too.
type starts struct {
	pid      int       // of the process that is about to become the agent
	since    time.Time // when it asked first
	worked   bool      // it was given a job
	failures int       // in a row
	until    time.Time // the next one waits until then
}

// next notes who asks. fresh says that it did not before, so that the agent before
// it has ended.
func (s *starts) next(pid int, now time.Time) (fresh bool) {
	if pid == s.pid {
		return false
	}
	switch {
	case s.pid == 0: // what was before this guard is not known
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

// wait says why the agent is not to start yet; "" lets it. The time that it waits is
// none of its life.
func (s *starts) wait(now time.Time) string {
	left := s.until.Sub(now)
	if left <= 0 {
		return ""
	}
	s.since = now
	return fmt.Sprintf("the agent ended %d times in a row without a job; it starts again in %s", s.failures, left.Round(time.Second))
}
