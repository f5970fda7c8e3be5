package node

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/standin"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// TestAbsentSlots checks what Buildkite learns of slots, also after a pass that failed elsewhere, and that it learns nothing
// before the slots were seen.
func TestAbsentSlots(t *testing.T) {
	t.Parallel()
	slots := systemdtest.Slots(4)
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	slots[1].Drains = []plan.Drain{{By: plan.ByOperator, Reason: "new fan", Since: since.Add(time.Hour)}, {By: "gpu.lost", Reason: "it fell off the bus", Since: since}}
	slots[2].Parked = "its GPU is missing"
	states := make([]slot.State, 4)
	for k := range states {
		states[k] = slot.State{Index: k, Agent: systemdtest.Agent("active", "running")}
	}
	states[1].Agent, states[2].Agent, states[3].Agent = systemdtest.Agent("inactive", "dead"), systemdtest.Agent("inactive", "dead"), systemdtest.Agent("failed", "failed")
	s := daemon.Snapshot{
		Plan: &plan.Plan{Node: "n", Slots: slots}, State: &reconcile.State{Slots: states}, Err: errors.New("docker is down"),
		Service: standin.Service{Endpoint: "https://agent.test/v3"},
	}
	got, ok := absentSlots(s)
	must.Equal(t, true, ok)
	must.Equal(t, []standin.Absence{
		{Agent: slots[1].Agent, Tags: slots[1].Tags, State: "drained", Reason: "by operator: new fan; by gpu.lost: it fell off the bus", Since: since},
		{Agent: slots[2].Agent, Tags: slots[2].Tags, State: "parked", Reason: "its GPU is missing"},
		{Agent: slots[3].Agent, Tags: slots[3].Tags, State: "failed", Reason: "its agent fails; sudo kbnode status on the node shows why"},
	}, got)
	for _, a := range got {
		if !slices.Contains(plan.OutStates, a.State) {
			t.Errorf("%s is no value of the tag", a.State)
		}
	}
	s.State = nil
	if _, ok := absentSlots(s); ok {
		t.Error("said without a look at the slots")
	}
}
