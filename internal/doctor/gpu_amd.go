package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/inventory"
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
	const compute, memory = "current_compute_partition", "current_memory_partition"
	wrong := lostPartitions(m, f)
	if len(wrong) > 0 {
		return found(wrong...) // then they are not alike either
	}
	for _, kind := range f.kinds() {
		if modes := kind.group(func(g inventory.GPU) string { return g.ComputePartition }); len(modes) > 1 {
			most := commonest(modes)
			for _, g := range modes {
				if g.value != most.value {
					wrong = append(wrong, fail("%s is partitioned as %s, others as %s, so their slots differ", g.where(), g.value, most.value).
						By("%s", g.each("echo "+most.value+" >/sys/bus/pci/devices/%s/"+compute)).Of(g.slots...).
						Advise("nothing may run on it meanwhile; then run sudo kbnode install, since its slots change"))
				}
			}
		}
		if modes := kind.group(func(g inventory.GPU) string { return g.MemoryPartition }); len(modes) > 1 {
			wrong = append(wrong, fail("equal GPUs divide their memory differently: %s", whoHas(modes)).
				Advise("write the same mode to %s of each GPU below /sys/bus/pci/devices, then reload amdgpu or reboot", memory))
		}
	}
	g := f.gpus[0]
	modes := slices.DeleteFunc([]string{g.ComputePartition, g.MemoryPartition}, func(s string) bool { return s == "" })
	if len(modes) == 0 {
		return none("these GPUs have no partitions")
	}
	return otherwise(wrong, ok("%s", strings.Join(modes, ", ")))
}

// lostPartitions finds GPUs whose slots were made for another partition mode.
func lostPartitions(m *Machine, f fleet) []Finding {
	then := map[string]string{} // by UUID, else address
	for _, b := range slotBindings(m) {
		for _, member := range b.Members() {
			then[cmp.Or(member.UUID, member.PCI)] = member.Mode
		}
	}
	lost := f.group(func(g inventory.GPU) string {
		was := then[cmp.Or(g.UUID, g.PCI)]
		if was == "" || was == g.ComputePartition || g.ComputePartition == "" {
			return ""
		}
		return fmt.Sprintf("%s, but the slots were made for %s", g.ComputePartition, was)
	})
	var wrong []Finding
	for _, g := range lost {
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
	monitor := func(g inventory.GPU, name string) string {
		for _, file := range m.List(host.PCI(g.PCI) + "/hwmon/hwmon*/" + name) {
			n, _ := strconv.ParseInt(m.Value(file), 10, 64)
			return inUnits(n/1_000_000, "W")
		}
		return ""
	}
	limit := func(g inventory.GPU) string { return monitor(g, "power1_cap") }
	firmware := func(g inventory.GPU) string { return m.Value(host.PCI(g.PCI) + "/vbios_version") }
	var wrong []Finding
	for _, kind := range f.kinds() {
		low := kind.group(func(g inventory.GPU) string {
			if is, normal := limit(g), monitor(g, "power1_cap_default"); is != normal && is != "" {
				return normal
			}
			return ""
		})
		for _, g := range low {
			watts, _, _ := strings.Cut(g.value, " ")
			wrong = append(wrong, warn("the power limit is %s instead of the default %s (%s)", limit(g.gpus[0]), g.value, g.where()).Of(g.slots...).
				Safely("%s", g.each("echo "+watts+"000000 | tee /sys/bus/pci/devices/%s/hwmon/hwmon*/power1_cap")))
		}
		if all := kind.group(limit); len(low) == 0 && len(all) > 1 {
			wrong = append(wrong, warn("equal GPUs have different power limits: %s", whoHas(all)).
				Advise("write the same value to power1_cap of each, below /sys/bus/pci/devices; scores of these slots cannot be compared"))
		}
		if all := kind.group(firmware); len(all) > 1 {
			wrong = append(wrong, warn("equal GPUs have different firmware: %s", whoHas(all)).
				Advise("upgrade the older ones; clocks and limits may differ, so scores of these slots cannot be compared"))
		}
	}
	all := f.group(limit)
	if len(all) == 0 && len(wrong) == 0 {
		return none("amdgpu does not report it")
	}
	return otherwise(wrong, ok("%s", append(all, gpuGroup{})[0].value))
}

// commonest returns the group with the most GPUs. On a tie, it prefers whole GPUs.
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
	return otherwise(wrong, ok("auto"))
}
