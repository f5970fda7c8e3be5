package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
)

var amdChecks = []Check{
	{
		ID: "amd-partitions", Group: "gpu", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "equal GPUs are partitioned alike", Run: ofAMD(partitionModes),
	},
	{
		ID: "amd-performance-level", Group: "gpu", Bare: true, Worst: Warn, Needs: []string{"inventory"},
		About: "the driver chooses the GPUs' clocks by itself, unless clocks are configured", Run: ofAMD(performanceLevels),
	},
}

// ofAMD asks about AMD's GPUs.
func ofAMD(ask func(*Machine, fleet) Answer) func(context.Context, *Machine) Answer {
	return func(_ context.Context, m *Machine) Answer {
		if m.Inventory.AMD == nil {
			return none(noAMD)
		}
		f := fleetOf(m, "amd")
		if len(f.gpus) == 0 {
			return none("no AMD GPU")
		}
		return ask(m, f)
	}
}

func partitionModes(_ *Machine, f fleet) Answer {
	const compute, memory = "current_compute_partition", "current_memory_partition"
	var wrong []Finding
	for _, kind := range f.kinds() {
		if modes := kind.by(func(g inventory.GPU) string { return g.ComputePartition }); len(modes) > 1 {
			most := commonest(modes)
			for _, g := range modes {
				if g.value != most.value {
					wrong = append(wrong, fail("%s is partitioned as %s, and others as %s: their slots are not alike", g.where(), g.value, most.value).
						by("%s", g.each("echo "+most.value+" >/sys/bus/pci/devices/%s/"+compute)).of(g.slots...).
						advise("nothing may run on it meanwhile; then type sudo kbnode install, since its slots change"))
				}
			}
		}
		if modes := kind.by(func(g inventory.GPU) string { return g.MemoryPartition }); len(modes) > 1 {
			wrong = append(wrong, fail("equal GPUs divide their memory in different ways: %s", whoHas(modes)).
				advise("write the same mode into %s of each below /sys/bus/pci/devices, and load amdgpu again or reboot", memory))
		}
	}
	g := f.gpus[0]
	modes := slices.DeleteFunc([]string{g.ComputePartition, g.MemoryPartition}, func(s string) bool { return s == "" })
	if len(modes) == 0 {
		return none("these GPUs have no partitions")
	}
	return otherwise(wrong, ok("%s", strings.Join(modes, ", ")))
}

// commonest is the group of most GPUs; of whole ones, where there are as many.
func commonest(groups []gpuGroup) gpuGroup {
	whole := func(g gpuGroup) int {
		if g.value == "SPX" {
			return 1
		}
		return 0
	}
	return slices.MaxFunc(groups, func(a, b gpuGroup) int {
		return cmp.Or(cmp.Compare(len(a.gpus), len(b.gpus)), cmp.Compare(whole(a), whole(b)))
	})
}

func performanceLevels(m *Machine, f fleet) Answer {
	levels := f.by(func(g inventory.GPU) string { return g.PerformanceLevel })
	switch h := m.Config.Hygiene; {
	case len(levels) == 0:
		return none("amdgpu does not say")
	case !h.Disabled && h.Clocks != config.ClocksDefault:
		return none("hygiene.clocks sets it")
	}
	var wrong []Finding
	for _, g := range levels {
		if g.value != "auto" {
			wrong = append(wrong, warn("somebody has set it to %s (%s)", g.value, g.where()).of(g.slots...).
				safely("%s", g.each("echo auto >/sys/bus/pci/devices/%s/power_dpm_force_performance_level")))
		}
	}
	return otherwise(wrong, ok("auto"))
}
