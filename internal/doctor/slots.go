package doctor

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// ofLimits reports whether a change is of the limits of a running slice. The checks of this
// group report more about it than as-planned could.
func (m *Machine) ofLimits(c reconcile.Change) bool {
	return (c.Kind == reconcile.Set || c.Kind == reconcile.Partition) && m.State.Units[c.Subject].Running()
}

func slotLimits(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, c := range m.Changes {
		if c.Kind != reconcile.Set || !m.ofLimits(c) {
			continue
		}
		why := c.Why
		if i := slices.IndexFunc(m.Plan.Slices, func(s plan.Slice) bool { return s.Unit == c.Subject }); i >= 0 {
			var lines []string
			for _, mis := range reconcile.Compare(m.Plan.Slices[i], m.State.Slices[c.Subject]) {
				mis.File = path.Base(mis.File) // without the slot, so that slots can be reported together
				lines = append(lines, mis.String())
			}
			if len(lines) > 0 {
				why = strings.Join(lines, "; ")
			}
		}
		f := fail("%s", why).Safely("kbnode reconcile")
		if c.Deferred != "" {
			f = warn("%s, %s", why, c.Deferred).Advise("it is then done automatically")
		}
		if c.Slot >= 0 {
			f = f.Of(c.Slot)
		} else {
			f.Detail = c.Subject + ": " + f.Detail
		}
		all = append(all, f)
	}
	return otherwise(together(all), ok("%d slices", len(m.Plan.Slices)))
}

// slotCPUs returns the CPUs that the kernel lets each slot use.
func (m *Machine) slotCPUs() map[int]cpuset.Set {
	all := map[int]cpuset.Set{}
	for _, s := range m.Plan.Slots {
		text := m.State.Slices[plan.SliceName(s.Index)].Files["cpuset.cpus.effective"]
		if set, err := cpuset.Parse(text); err == nil && set.Len() > 0 {
			all[s.Index] = set
		}
	}
	return all
}

func slotCores(_ context.Context, m *Machine) Answer {
	cpus := m.slotCPUs()
	reserved, _ := cpuset.Parse(m.Plan.Reserved.CPUs)
	var all []Finding
	core := map[int][]int{} // slots, by core; -1 means no slot
	owner := func(cpu int) (slots []int) {
		for _, s := range m.Plan.Slots {
			if cpus[s.Index].Contains(cpu) {
				slots = append(slots, s.Index)
			}
		}
		if len(slots) == 0 {
			slots = []int{-1}
		}
		return slots
	}
	for _, c := range m.Inventory.CPU.List {
		core[c.Core] = append(core[c.Core], owner(c.ID)...)
	}
	for _, s := range m.Plan.Slots {
		if both := cpus[s.Index].Intersect(reserved); both.Len() > 0 {
			all = append(all, fail("CPUs %s are reserved for the system", both).Of(s.Index))
		}
	}
	shared := map[string]cpuset.Set{}
	for id, slots := range core {
		slices.Sort(slots)
		if slots = slices.Compact(slots); len(slots) > 1 {
			shared[fmt.Sprint(slots)] = shared[fmt.Sprint(slots)].Union(cpuset.Of(id))
			core[id] = slots
		}
	}
	for _, cores := range shared {
		slots := core[cores.Ints()[0]]
		if slots[0] < 0 {
			all = append(all, fail("the cores of CPUs %s are shared with the system", cores).Of(slots[1:]...))
		} else {
			all = append(all, fail("the cores of CPUs %s are shared", cores).Of(slots...))
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return strings.Compare(a.Detail, b.Detail) })
	for i := range all {
		all[i] = all[i].Advise("see what kbnode plan says, and report it with the file that sudo kbnode inventory --capture node.txtar writes")
	}
	return otherwise(all, ok("%d slots, CPUs %s for the system", len(cpus), m.Plan.Reserved.CPUs))
}

func slotMemory(_ context.Context, m *Machine) Answer {
	const advice = "see what kbnode plan says, and lower memory_per_slot in the configuration"
	var all []Finding
	var sum int64
	var alone = map[string]int64{} // of slots with one NUMA node, by node
	var of = map[string][]int{}
	for _, s := range m.Plan.Slots {
		files := m.State.Slices[plan.SliceName(s.Index)].Files
		bytes, _ := strconv.ParseInt(files["memory.max"], 10, 64)
		nodes, _ := cpuset.Parse(files["cpuset.mems.effective"])
		sum += bytes
		if nodes.Len() == 1 {
			alone[nodes.String()] += bytes
			of[nodes.String()] = append(of[nodes.String()], s.Index)
		}
		for _, n := range m.Inventory.Memory.Nodes {
			if nodes.Contains(n.ID) && n.CPUs == "" && n.MemoryBytes > 0 && !ownMemory(m.Inventory, s, n) {
				all = append(all, fail("it may use the memory of NUMA node %d, which has no CPUs", n.ID).Of(s.Index).Advise(advice))
			}
		}
	}
	for _, n := range m.Inventory.Memory.Nodes {
		id := strconv.Itoa(n.ID)
		if alone[id] > n.MemoryBytes {
			all = append(all, fail("together they may use %s of NUMA node %d, which has %s", config.Size(alone[id]), n.ID, config.Size(n.MemoryBytes)).Of(of[id]...).Advise(advice))
		}
	}
	if total := m.Inventory.Memory.TotalBytes; sum > total && len(all) == 0 {
		all = append(all, fail("all slots together may use %s, and the machine has %s", config.Size(sum), config.Size(total)).Advise(advice))
	}
	return otherwise(together(all), ok("%s of %s", config.Size(sum), config.Size(m.Inventory.Memory.TotalBytes)))
}

// ownMemory reports whether a NUMA node is the memory of the slot's own GPU.
func ownMemory(inv *inventory.Inventory, s plan.Slot, n inventory.NUMANode) bool {
	return slices.ContainsFunc(s.GPUs, func(g plan.SlotGPU) bool {
		return g.PCI == n.GPU || slices.ContainsFunc(inv.GPUs, func(i inventory.GPU) bool { return i.PCI == g.PCI && i.MemoryNode == n.ID })
	})
}
