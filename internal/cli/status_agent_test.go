package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// TestAgentProblem checks how status explains a crash loop: the last end, the count, and the
// agent's own words.
func TestAgentProblem(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	says := func(lines []string, err error) func(context.Context, string, int) ([]string, error) {
		return func(context.Context, string, int) ([]string, error) { return lines, err }
	}
	words := says([]string{"starting", "fatal: invalid token", "bye"}, nil)
	loop := slot.Unit{Active: "activating", Sub: "auto-restart", Result: "exit-code", ExitStatus: 1, Restarts: 12}
	for _, row := range []struct {
		name    string
		agent   slot.Unit
		slot    plan.Slot
		journal func(context.Context, string, int) ([]string, error)
		want    []string // nil means no problem
	}{
		{"a loop", loop, plan.Slot{}, words, []string{"keeps failing", "exit-code, exit status 1", "12 times", "fatal: invalid token", "journalctl -u buildkite-agent-gpu0"}},
		{"no journal", loop, plan.Slot{}, says(nil, errors.New("no journalctl")), []string{"exit status 1", "12 times"}},
		{"an empty journal", loop, plan.Slot{}, says(nil, nil), []string{"its last message: nothing"}},
		{"not registered", slot.Unit{Active: "active", Result: "success", Since: now.Add(-time.Hour)}, plan.Slot{}, words, []string{"has not registered", "invalid token"}},
		{"just started", slot.Unit{Active: "active", Since: now, Restarts: 3}, plan.Slot{}, words, nil},
		{"drained", loop, plan.Slot{Drains: []plan.Drain{{By: plan.ByOperator}}}, words, nil},
	} {
		got := agentProblem(t.Context(), row.slot, slot.State{Agent: row.agent}, now, row.journal)
		if len(row.want) == 0 && got != "" {
			t.Errorf("%s: %q", row.name, got)
		}
		for _, want := range row.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q lacks %q", row.name, got, want)
			}
		}
	}
}
