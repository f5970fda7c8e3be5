package bktest

import (
	"cmp"
	"fmt"
	"regexp"
)

// Submit creates a build as REST would. Commit and Branch default to HEAD and main.
func (s *Server) Submit(nb NewBuild) (Build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	nb.Commit, nb.Branch = cmp.Or(nb.Commit, "HEAD"), cmp.Or(nb.Branch, "main")
	b, err := s.create(nb)
	if err != nil {
		return Build{}, fmt.Errorf("submit build: %w", err)
	}
	return view(b, s.url, true), nil
}

// Builds returns every build, oldest first, with retried jobs.
func (s *Server) Builds() []Build {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Build, len(s.builds))
	for i, b := range s.builds {
		out[i] = view(b, s.url, true)
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
		out[i] = viewAgent(a, s.url)
	}
	return out
}

// Cancel cancels a build.
func (s *Server) Cancel(number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		if b.Number == number && !b.Finished() {
			cancel(b)
			return nil
		}
	}
	return fmt.Errorf("no build %d is under way", number)
}

var timestamp = regexp.MustCompile("\x1b_bk;t=[0-9]+\x07")

// Plain removes the timestamps that an agent puts into a log.
func Plain(log string) string { return timestamp.ReplaceAllString(log, "") }
