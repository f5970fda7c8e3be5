package systemdtest

import (
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Started is when the units of Agent began to be as they are.
var Started = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Agent is the unit of an agent.
func Agent(active, sub string) slot.Unit {
	return slot.Unit{Load: "loaded", Active: active, Sub: sub, Since: Started, Started: Started}
}

// Slots are the slots of a plan with one GPU each.
func Slots(n int) []plan.Slot {
	var slots []plan.Slot
	for k := range n {
		slots = append(slots, plan.Slot{
			Index: k, Name: plan.SlotName(k), Queue: "b200", CPUs: "4-7", MemoryNodes: "0", MemoryBytes: 64 << 30,
			GPUs: []plan.SlotGPU{{UUID: fmt.Sprintf("GPU-%d", k), PCI: "0000:1b:00.0", Vendor: "nvidia", Model: "NVIDIA B200"}},
		})
	}
	return slots
}
