package bktest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Submit creates a build as REST would. Commit and Branch default to HEAD and main.
func (s *Server) Submit(nb NewBuild) (Build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nb.Commit, nb.Branch = cmpOr(nb.Commit, "HEAD"), cmpOr(nb.Branch, "main")
	b, err := s.create(nb)
	if err != nil {
		return Build{}, fmt.Errorf("submit build: %w", err)
	}
	return s.view(b, s.url, true), nil
}

// WaitBuild waits until a build has finished.
func (s *Server) WaitBuild(ctx context.Context, number int) (Build, error) {
	return s.WaitFor(ctx, number, Build.Finished)
}

// WaitFor waits until done returns true for a build. If ctx ends first, it returns the
// build's last state with an error.
func (s *Server) WaitFor(ctx context.Context, number int, done func(Build) bool) (Build, error) {
	tick := time.NewTicker(200 * time.Millisecond) // for changes that depend on the clock
	defer tick.Stop()
	for {
		b, wake, err := s.look(number)
		if err != nil || done(b) {
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

func (s *Server) look(number int) (Build, <-chan struct{}, error) {
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

// WaitAgents waits until done returns true for the agents, and returns them.
func (s *Server) WaitAgents(ctx context.Context, done func([]Agent) bool) ([]Agent, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		s.sweep()
		agents, wake := s.agentsLocked(), s.wake
		s.mu.Unlock()
		if done(agents) {
			return agents, nil
		}
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			return agents, fmt.Errorf("wait for agents, of which there are %d: %w", len(agents), ctx.Err())
		}
	}
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
	return s.agentsLocked()
}

func (s *Server) agentsLocked() []Agent {
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
	i := slices.IndexFunc(s.builds, func(b *build) bool { return b.Number == number && !b.Finished() })
	if i < 0 {
		return fmt.Errorf("no build %d is under way", number)
	}
	s.cancel(s.builds[i])
	return nil
}

// Artifact returns the file that a job of the build uploaded under path, the latest one if
// there are several.
func (s *Server) Artifact(number int, path string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		if b.Number != number {
			continue
		}
		for _, j := range slices.Backward(b.jobs) {
			for _, f := range slices.Backward(j.files) {
				if data, ok := s.blobs[f.key]; ok && f.Path == path && f.State == "finished" {
					return slices.Clone(data), nil
				}
			}
		}
	}
	return nil, fmt.Errorf("build %d has no artifact %s", number, path)
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
