package doctor

import (
	"encoding/json"
	"os"

	"github.com/gpu-mode/kbnode/internal/guard"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// gpuProcesses leaves out a slot's own: those are a job's, or slot-processes tells.
func (m *Machine) gpuProcesses() Answer {
	owner := health.OwnerOf(m.Root)
	var all []Finding
	for _, s := range m.Plan.Slots {
		g := m.gpu(s)
		if g == nil {
			continue
		}
		if g.NVML == nil && g.Processes > 0 && !m.wasInstalled() { // whose they are is not known
			all = append(all, fail("%d processes compute on %s", g.Processes, g.PCI).of(s.Index).advise("end them; rocm-smi --showpids names them"))
		}
		if g.NVML == nil {
			continue
		}
		var list []process
		for _, p := range g.NVML.Processes {
			pid := int(p.PID)
			switch who, name := owner(pid), m.comm(pid); {
			case who != nil && who.Slot == s.Index:
			case name == "": // it ended meanwhile; if the GPU is still held, the guard parks the slot
			default:
				list = append(list, process{pid: pid, name: name})
			}
		}
		if len(list) > 0 {
			f := ofProcesses(list, "computes on "+g.PCI)
			f.Status = Fail
			all = append(all, f.of(s.Index))
		}
	}
	if len(all) == 0 {
		all = []Finding{ok("%d GPUs", len(m.Plan.Slots))}
	}
	return Answer{Findings: all}
}

func (m *Machine) wasInstalled() bool {
	_, err := os.Stat(m.path(plan.BindingsPath))
	return err == nil
}

// gpu is a slot's GPU, nil if it is not on the machine.
func (m *Machine) gpu(s plan.Slot) *inventory.GPU {
	for i, g := range m.Inventory.GPUs {
		if of := s.GPUs[0]; of.UUID != "" && g.UUID == of.UUID || of.UUID == "" && g.PCI == of.PCI {
			return &m.Inventory.GPUs[i]
		}
	}
	return nil
}

// gpuMemory compares with what the guard saw in use when the GPU was idle, as the
// guard does before each job.
func (m *Machine) gpuMemory() Answer {
	var all []Finding
	looked := 0
	for _, s := range m.Plan.Slots {
		g, run := m.gpu(s), plan.RunDir(s.Index)
		var idle struct {
			UsedBytes int64 `json:"used_bytes"`
		}
		text, err := m.read(run + "/" + guard.IdleFile)
		// The memory of a GPU that is a NUMA node is the kernel's, that of a
		// partition everybody's.
		if g == nil || err != nil || json.Unmarshal([]byte(text), &idle) != nil || g.MemoryNode >= 0 || g.ComputePartition != "" && g.ComputePartition != "SPX" {
			continue
		}
		looked++
		if m.slotState(s.Index).Busy() == "" && g.Processes == 0 && g.MemoryUsedBytes > idle.UsedBytes+guard.GPUSlack {
			all = append(all, warn("%d MiB of its GPU's memory are in use without a process, %d MiB were when it was idle", g.MemoryUsedBytes>>20, idle.UsedBytes>>20).of(s.Index).
				advise("reset the GPU as docs/health.md says under \"Resetting a GPU\", or delete %s/%s if that is its idle state now", run, guard.IdleFile))
		}
	}
	switch {
	case looked == 0:
		return none("no driver tells what GPUs use when they are idle")
	case len(all) == 0:
		all = []Finding{ok("%d GPUs", looked)}
	}
	return Answer{Findings: all}
}
