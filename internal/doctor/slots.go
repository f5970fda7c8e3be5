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

// slotChecks check how the kernel applies the slots' limits, and whether anything is in the
// slots that should not be.
var slotChecks = []Check{
	{
		ID: "slot-limits", Group: "slots", Worst: Fail, Needs: []string{"state"},
		About: "the kernel has the planned limits for each slot",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.limits()...) },
	},
	{
		ID: "slot-partition", Group: "slots", Worst: Warn, Needs: []string{"state"},
		About: "only the slots run on their CPUs",
		Run:   func(_ context.Context, m *Machine) Answer { return m.partition() },
	},
	{
		ID: "slot-cores", Group: "slots", Worst: Fail, Needs: []string{"slot-limits"},
		About: "slots share no cores with each other or the system",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.sharedCores()...) },
	},
	{
		ID: "slot-memory", Group: "slots", Worst: Fail, Needs: []string{"slot-limits"},
		About: "the machine has the memory of all slots, on NUMA nodes with CPUs",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.sharedMemory()...) },
	},
	{
		ID: "slot-disk", Group: "slots", Worst: Fail, Needs: []string{"state"},
		About: "each slot's disk is mounted, has the planned size, and has free space",
		Run:   func(_ context.Context, m *Machine) Answer { return m.disks() },
	},
	{
		ID: "slot-parked", Group: "slots", Worst: Fail, Needs: []string{"plan", "installed"},
		About: "no slot is parked because of what an earlier job left",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.parked()...) },
	},
	{
		ID: "slot-containers", Group: "slots", Worst: Fail, Needs: []string{"state"},
		About: "no container runs in an idle slot, or outside its slice",
		Run:   func(ctx context.Context, m *Machine) Answer { return found(m.leftContainers(ctx)...) },
	},
	{
		ID: "slot-processes", Group: "slots", Worst: Warn, Needs: []string{"state"},
		About: "no process runs in an idle slot, or as its user outside its slice",
		Run:   func(ctx context.Context, m *Machine) Answer { return m.leftProcesses(ctx) },
	},
	{
		ID: "slot-gpu-processes", Group: "slots", Worst: Fail, Needs: []string{"plan"}, Bare: true,
		About: "only the slot uses its GPU",
		Run:   func(_ context.Context, m *Machine) Answer { return m.gpuProcesses() },
	},
	{
		ID: "slot-gpu-memory", Group: "slots", Worst: Warn, Needs: []string{"state"},
		About: "an idle slot's GPU memory is free",
		Run:   func(_ context.Context, m *Machine) Answer { return m.gpuMemory() },
	},
}

// ofLimits reports whether a change is of the limits of a running slice. The checks of this
// group report more about it than as-planned could.
func (m *Machine) ofLimits(c reconcile.Change) bool {
	return (c.Kind == reconcile.Set || c.Kind == reconcile.Partition) && m.State.Units[c.Subject].Running()
}

func (m *Machine) limits() []Finding {
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
		f := fail("%s", why).safely("kbnode reconcile")
		if c.Deferred != "" {
			f = warn("%s, %s", why, c.Deferred).advise("it is then done automatically")
		}
		if c.Slot >= 0 {
			f = f.of(c.Slot)
		} else {
			f.Detail = c.Subject + ": " + f.Detail
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		all = []Finding{ok("%d slices", len(m.Plan.Slices))}
	}
	return together(all)
}

// together merges findings that differ only in their slots.
func together(all []Finding) []Finding {
	var out []Finding
	for _, f := range all {
		i := slices.IndexFunc(out, func(o Finding) bool {
			return o.Status == f.Status && o.Detail == f.Detail && o.Fix == f.Fix && o.Advice == f.Advice && len(o.Slots) > 0 && len(f.Slots) > 0
		})
		if i < 0 {
			out = append(out, f)
		} else {
			out[i].Slots = append(slices.Clone(out[i].Slots), f.Slots...)
		}
	}
	return out
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

func (m *Machine) sharedCores() []Finding {
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
			all = append(all, fail("CPUs %s are reserved for the system", both).of(s.Index))
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
			all = append(all, fail("the cores of CPUs %s are shared with the system", cores).of(slots[1:]...))
		} else {
			all = append(all, fail("the cores of CPUs %s are shared", cores).of(slots...))
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return strings.Compare(a.Detail, b.Detail) })
	for i := range all {
		all[i] = all[i].advise("see what kbnode plan says, and report it with the file that sudo kbnode inventory --capture node.txtar writes")
	}
	if len(all) == 0 {
		all = []Finding{ok("%d slots, CPUs %s for the system", len(cpus), m.Plan.Reserved.CPUs)}
	}
	return all
}

func (m *Machine) sharedMemory() []Finding {
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
				all = append(all, fail("it may use the memory of NUMA node %d, which has no CPUs", n.ID).of(s.Index).advise(advice))
			}
		}
	}
	for _, n := range m.Inventory.Memory.Nodes {
		id := strconv.Itoa(n.ID)
		if alone[id] > n.MemoryBytes {
			all = append(all, fail("together they may use %s of NUMA node %d, which has %s", config.Size(alone[id]), n.ID, config.Size(n.MemoryBytes)).of(of[id]...).advise(advice))
		}
	}
	if total := m.Inventory.Memory.TotalBytes; sum > total && len(all) == 0 {
		all = append(all, fail("all slots together may use %s, and the machine has %s", config.Size(sum), config.Size(total)).advise(advice))
	}
	if len(all) == 0 {
		all = []Finding{ok("%s of %s", config.Size(sum), config.Size(m.Inventory.Memory.TotalBytes))}
	}
	return together(all)
}

// ownMemory reports whether a NUMA node is the memory of the slot's own GPU.
func ownMemory(inv *inventory.Inventory, s plan.Slot, n inventory.NUMANode) bool {
	return slices.ContainsFunc(s.GPUs, func(g plan.SlotGPU) bool {
		return g.PCI == n.GPU || slices.ContainsFunc(inv.GPUs, func(i inventory.GPU) bool { return i.PCI == g.PCI && i.MemoryNode == n.ID })
	})
}
