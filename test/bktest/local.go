package bktest

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"time"
)

// Submit creates a build as REST would. Commit and Branch default to HEAD and main.
func (s *Server) Submit(nb NewBuild) (Build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nb.Commit, nb.Branch = cmp.Or(nb.Commit, "HEAD"), cmp.Or(nb.Branch, "main")
	b, err := s.create(nb)
	if err != nil {
		return Build{}, fmt.Errorf("submit build: %w", err)
	}
	return s.view(b, s.url, true), nil
}

// WaitBuild waits until a build has finished. If ctx ends first, it returns the build's last state
// with an error.
func (s *Server) WaitBuild(ctx context.Context, number int) (Build, error) {
	tick := time.NewTicker(200 * time.Millisecond) // for changes that depend on the clock
	defer tick.Stop()
	for {
		b, wake, err := s.buildState(number)
		if err != nil || b.Finished() {
			return b, err
		}
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			return b, fmt.Errorf("wait for build %d, which is %s: %w", number, b.State, ctx.Err())
		}
	}
}

func (s *Server) buildState(number int) (Build, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	for _, b := range s.builds {
		if b.Number == number {
			return s.view(b, s.url, true), s.wake, nil
		}
	}
	return Build{}, nil, fmt.Errorf("there is no build %d", number)
}

// Builds returns every build, oldest first, with retried jobs.
func (s *Server) Builds() []Build {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Build, len(s.builds))
	for i, b := range s.builds {
		out[i] = s.view(b, s.url, true)
	}
	return out
}

// Agents returns every agent that ever registered, oldest first.
func (s *Server) Agents() []Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	out := make([]Agent, len(s.agents))
	for i, a := range s.agents {
		out[i] = s.viewAgent(a, s.url)
	}
	return out
}

// Cancel cancels a build.
func (s *Server) Cancel(number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		if b.Number == number && !b.Finished() {
			s.cancel(b)
			return nil
		}
	}
	return fmt.Errorf("no build %d is under way", number)
}

// Log returns the output of a job so far, as its agent sent it; "" if there is no such job.
func (s *Server) Log(jobID string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(jobID)
	if j == nil {
		return ""
	}
	return string(j.log())
}

var timestamp = regexp.MustCompile("\x1b_bk;t=[0-9]+\x07")

// Plain removes the timestamps that an agent puts into a log.
func Plain(log string) string { return timestamp.ReplaceAllString(log, "") }
