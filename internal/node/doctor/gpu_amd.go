package doctor

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// ofAMD runs a check on AMD GPUs.
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

func partitionModes(m *Machine, f fleet) Answer {
	wrong := lostPartitions(m, f)
	if len(wrong) > 0 {
		return found(wrong...) // then they are not alike either
	}
	for _, kind := range f.kinds() {
		modes := kind.group(func(g inventory.GPU) string { return g.ComputePartition })
		// On a tie, whole GPUs count.
		slices.SortStableFunc(modes, func(a, b gpuGroup) int {
			return cmp.Or(cmp.Compare(len(b.gpus), len(a.gpus)), strings.Compare(b.value, a.value))
		})
		for _, g := range modes[min(1, len(modes)):] {
			most := modes[0].value
			wrong = append(wrong, fail("%s is partitioned as %s, others as %s, so their slots differ", g.where(), g.value, most).
				By("%s", g.each("echo "+most+" >/sys/bus/pci/devices/%s/current_compute_partition")).Of(g.slots...).
				Advise("nothing may run on it meanwhile; then run sudo kbnode install, since its slots change"))
		}
	}
	for _, d := range f.differing("divisions of their memory", func(g inventory.GPU) string { return g.MemoryPartition },
		"write the same mode to current_memory_partition of each GPU below /sys/bus/pci/devices, then reload amdgpu or reboot") {
		d.Status = Fail
		wrong = append(wrong, d)
	}
	g := f.gpus[0]
	modes := slices.DeleteFunc([]string{g.ComputePartition, g.MemoryPartition}, func(s string) bool { return s == "" })
	if len(modes) == 0 {
		return none("these GPUs have no partitions")
	}
	return foundOr(wrong, ok("%s", strings.Join(modes, ", ")))
}

// lostPartitions finds GPUs whose slots were made for another partition mode.
func lostPartitions(m *Machine, f fleet) []Finding {
	then := map[string]string{} // by UUID, else address
	for _, b := range slotBindings(m) {
		for _, member := range b.Members() {
			then[cmp.Or(member.UUID, member.PCI)] = member.Mode
		}
	}
	var wrong []Finding
	for _, g := range f.group(func(g inventory.GPU) string {
		if was := then[cmp.Or(g.UUID, g.PCI)]; was != "" && was != g.ComputePartition && g.ComputePartition != "" {
			return g.ComputePartition + ", but the slots were made for " + was
		}
		return ""
	}) {
		_, mode, _ := strings.Cut(g.value, "made for ")
		wrong = append(wrong, fail("the mode is %s (%s)", g.value, g.where()).Of(g.slots...).
			By("%s", g.each("echo "+mode+" >/sys/bus/pci/devices/%s/current_compute_partition")).
			Advise("nothing may run on it meanwhile. A reboot or reloading amdgpu resets the mode: let a unit with Before=kbnode.service write it. To change the slots instead, run sudo kbnode install"))
	}
	return wrong
}

// amdPower compares the power limits of the GPUs, which hwmon has in microwatts, and the
// firmware that enforces them.
func amdPower(m *Machine, f fleet) Answer {
	watts := func(name string) func(inventory.GPU) int64 {
		return func(g inventory.GPU) (n int64) {
			for _, file := range m.List(host.PCI(g.PCI) + "/hwmon/hwmon*/" + name) {
				n, _ = strconv.ParseInt(m.Value(file), 10, 64)
			}
			return n / 1_000_000
		}
	}
	limit := watts("power1_cap")
	wrong := slices.Concat(f.power(limit, watts("power1_cap_default"),
		"echo WATTS000000 | tee /sys/bus/pci/devices/%s/hwmon/hwmon*/power1_cap",
		"echo WATTS000000 | sudo tee /sys/bus/pci/devices/GPU/hwmon/hwmon*/power1_cap"),
		f.differing("firmware", func(g inventory.GPU) string { return m.Value(host.PCI(g.PCI) + "/vbios_version") }, "upgrade the older ones"))
	if len(wrong) == 0 && limit(f.gpus[0]) == 0 {
		return none("amdgpu does not report it")
	}
	return foundOr(wrong, ok("%s", inUnits(limit(f.gpus[0]), "W")))
}

func performanceLevels(m *Machine, f fleet) Answer {
	levels := f.group(func(g inventory.GPU) string { return g.PerformanceLevel })
	switch h := m.Config.Hygiene; {
	case len(levels) == 0:
		return none("amdgpu does not report it")
	case !h.Disabled && h.Clocks != config.ClocksDefault:
		return none("hygiene.clocks sets it")
	}
	var wrong []Finding
	for _, g := range levels {
		if g.value != "auto" {
			wrong = append(wrong, warn("someone set it to %s (%s)", g.value, g.where()).Of(g.slots...).
				Safely("%s", g.each("echo auto >/sys/bus/pci/devices/%s/power_dpm_force_performance_level")))
		}
	}
	return foundOr(wrong, ok("auto"))
}
