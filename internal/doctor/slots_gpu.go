package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// slotGPUProcesses leaves out a slot's own processes: they are a job's, or slot-processes
// reports them.
func slotGPUProcesses(_ context.Context, m *Machine) Answer {
	owner := health.OwnerOf(m.Root)
	var all []Finding
	looked := 0
	for _, g := range m.Inventory.GPUs {
		slots := slotsOn(m.Plan, g)
		if slots == nil {
			continue
		}
		looked++
		pids, err := m.computeOn(g)
		if err != nil {
			all = append(all, skip("%s", err).Of(slots...))
		}
		var list []host.Process
		for _, pid := range pids {
			// If a process that has ended still holds the GPU, the guard parks the slot.
			who, p := owner(pid), m.Process(pid)
			if p.Name != "" && (who == nil || !slices.Contains(slots, who.Slot)) {
				list = append(list, p)
			}
		}
		if len(list) > 0 {
			found := ofProcesses(list, "computes on "+g.PCI)
			found.Status = Fail
			all = append(all, found.Of(slots...))
		}
	}
	return otherwise(all, ok("%d GPUs", looked))
}

// computeOn returns the processes that compute on a GPU or partition, as far as its driver
// knows.
func (m *Machine) computeOn(g inventory.GPU) (pids []int, err error) {
	if g.Vendor == "amd" {
		o, err := inventory.AMDOccupied(m.Root, []string{fmt.Sprintf("/dev/dri/renderD%d", g.RenderMinor)})
		for _, p := range o.Compute {
			pids = append(pids, int(p.PID))
		}
		return pids, err
	}
	if g.NVML != nil {
		for _, p := range g.NVML.Processes {
			pids = append(pids, int(p.PID))
		}
	}
	return pids, nil
}

// slotsOn returns the slots that have a GPU, a partition or MIG instances of it.
func slotsOn(p *plan.Plan, g inventory.GPU) (slots []int) {
	for _, s := range p.Slots {
		if slices.ContainsFunc(s.GPUs, func(own plan.SlotGPU) bool { return isGPU(own, g) }) {
			slots = append(slots, s.Index)
		}
	}
	return slots
}

func isGPU(own plan.SlotGPU, g inventory.GPU) bool {
	return g.Partition == own.Partition && (own.UUID != "" && g.UUID == own.UUID || own.UUID == "" && g.PCI == own.PCI)
}

// slotGPUMemory compares the memory in use with what the guard saw when the GPU was idle, as
// the guard does before each job.
func slotGPUMemory(_ context.Context, m *Machine) Answer {
	var all []Finding
	looked := 0
	for _, s := range m.Plan.Slots {
		if len(s.GPUs) != 1 {
			continue
		}
		i, run := slices.IndexFunc(m.Inventory.GPUs, func(g inventory.GPU) bool { return isGPU(s.GPUs[0], g) }), plan.RunDir(s.Index)
		var idle struct {
			UsedBytes int64 `json:"used_bytes"`
		}
		text, err := m.Read(run + "/" + slot.IdleFile)
		// The memory of a GPU that is a NUMA node belongs to the kernel. All partitions
		// share the GPU's memory.
		if i < 0 || s.GPUs[0].Part != "" || err != nil || json.Unmarshal([]byte(text), &idle) != nil || m.Inventory.GPUs[i].MemoryNode >= 0 {
			continue
		}
		g := m.Inventory.GPUs[i]
		looked++
		if m.State.Slot(s.Index).Busy() == "" && g.Processes == 0 && g.MemoryUsedBytes > idle.UsedBytes+slot.GPUSlack {
			all = append(all, warn("%d MiB of its GPU's memory are in use without a process; %d MiB were in use when it was idle", g.MemoryUsedBytes>>20, idle.UsedBytes>>20).Of(s.Index).
				Advise("reset the GPU as "+Pages+"health.md says under \"Resetting a GPU\", or delete %s/%s if that is its idle state now", run, slot.IdleFile))
		}
	}
	if looked == 0 {
		return none("no driver reports how much memory idle GPUs use")
	}
	return otherwise(all, ok("%d GPUs", looked))
}
