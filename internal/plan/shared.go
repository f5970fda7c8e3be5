package plan

import (
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// sharingGPUs have no memory of their own, by PCI ID: of AMD MI300A, Strix Halo, Strix and Phoenix, of NVIDIA GB10.
var sharingGPUs = []string{"1002:74a0", "1002:1586", "1002:150e", "1002:15bf", "10de:2e12"}

// sharedMemory returns a warning if GPUs of slots allocate from the node's memory, which the kernel does not count
// in the slot's cgroup, unless the operator has chosen what slots get.
func (p *Plan) sharedMemory(inv *inventory.Inventory, cfg config.Config) string {
	if cfg.MemoryPerSlot > 0 {
		return ""
	}
	for _, s := range p.Slots {
		for _, g := range s.GPUs {
			i := slices.IndexFunc(inv.GPUs, func(o inventory.GPU) bool { return o.PCI == g.PCI && slices.Contains(sharingGPUs, o.PCIID) })
			if i < 0 {
				continue
			}
			half := s.MemoryBytes / 2 >> 30
			return fmt.Sprintf("%s has no memory of its own: what jobs allocate on it comes from the node's memory, and slots' limits (%s for %s) do not count it, so both together may be more than there is; leave it its part with memory_per_slot, such as %dGiB (--memory-per-slot)",
				g.Model, config.Size(s.MemoryBytes), s.Name, max(1, half))
		}
	}
	return ""
}
