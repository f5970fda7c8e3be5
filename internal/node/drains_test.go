package node

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// TestSlotlessDrains checks that drains without a slot can be resumed, by name and with all.
func TestSlotlessDrains(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{Slots: systemdtest.Slots(2)}
	got := slotless(p, []plan.Drain{{Slot: 1, By: plan.ByOperator}, {Slot: 5, By: plan.ByOperator}, {Slot: 6, By: "gpu.ecc"}})
	if len(got) != 1 || got[0].Name != "gpu5" || got[0].Index != 5 || got[0].User != "" {
		t.Errorf("resume knows %+v", got) // and not what health has drained
	}
}
