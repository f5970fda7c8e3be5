package reconcile_test

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// TestDrain drains the agents of two slots, one of them busy: its job runs to its end,
// the guards stay, and both agents come back.
func TestDrain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	serving := slots(3).plan(t)
	m.apply(serving)
	m.run(0)
	drained := slots(3).plan(t)
	for i, u := range drained.Units {
		if u.Name == plan.AgentUnit(0) || u.Name == plan.AgentUnit(1) {
			drained.Units[i].Active = false
		}
	}

	_, words := m.apply(drained)
	equal(t, "words", []string{"drain buildkite-agent-gpu0.service", "stop buildkite-agent-gpu1.service"}, words)
	_, words = m.apply(drained)
	equal(t, "words while the job runs on", nil, words)
	m.finish(0)
	_, changes := m.diff(drained)
	equal(t, "changes after the job", nil, changes)
	equal(t, "jobs killed", nil, m.sd.Killed())

	_, words = m.apply(serving)
	equal(t, "words", []string{"start buildkite-agent-gpu0.service buildkite-agent-gpu1.service"}, words)
}
