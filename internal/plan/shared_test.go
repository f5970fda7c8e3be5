package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

// TestSharedMemory checks the warning about GPUs that allocate from the node's memory.
func TestSharedMemory(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{"1002:74a0": true, "1002:74a1": false, "10de:2e12": true, "": false} {
		inv := readMachine(t, machinetest.MI300X())
		for i := range inv.GPUs {
			inv.GPUs[i].PCIID = id
		}
		for _, cfg := range []config.Config{{}, {MemoryPerSlot: 64 << 30}} {
			p := build(t, inv, cfg, nil, false)
			warned := slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.Contains(w, "has no memory of its own") })
			if warned != (want && cfg.MemoryPerSlot == 0) {
				t.Errorf("%q, memory_per_slot %d: %q", id, cfg.MemoryPerSlot, p.Warnings)
			}
		}
	}
}
