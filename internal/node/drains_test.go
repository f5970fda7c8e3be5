package node

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// TestSlotlessDrains checks that drains without a slot can be resumed, by name and with all.
func TestSlotlessDrains(t *testing.T) {
	t.Parallel()
	p := &plan.Plan{Slots: wantedSlots(2)}
	with := withSlots(p, slotless(p, []plan.Drain{{Slot: 1, By: plan.ByOperator}, {Slot: 5, By: plan.ByOperator}, {Slot: 6, By: "gpu.ecc"}}))
	if got := with.Slots; len(got) != 3 || got[2].Name != "gpu5" || got[2].Index != 5 || got[2].User != "" {
		t.Errorf("resume knows %+v", got) // and not what health has drained
	}
	if len(p.Slots) != 2 {
		t.Errorf("the plan has %d slots now", len(p.Slots))
	}
}
