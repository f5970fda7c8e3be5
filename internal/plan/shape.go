package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/split"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// title returns a member's name for display: "NVIDIA B200 1g.23gb".
func title(m Member) string { return strings.TrimSpace(m.Model + " " + m.Part()) }

// shapeKey returns the name of a slot's shape in queues and tags: b200, b200x4,
// b200-1g-23gb, mi300-cpx, cpu.
func shapeKey(s Slot) string {
	if len(s.GPUs) == 0 {
		return "cpu"
	}
	key := GPUKey(s.GPUs[0].Model)
	if part := s.GPUs[0].Part; part != "" {
		key += "-" + partKey(part)
	}
	if n := len(s.GPUs); n > 1 {
		key = fmt.Sprintf("%sx%d", key, n)
	}
	return key
}

const mib = 1 << 20

// memorySlice is the weight of a memory slice. Up to eight compute instances in one GPU
// instance share its slices, and 840 is divisible by 1 to 8.
const memorySlice = 840

// blockPart is a slot's part of a block of the split: all of it, or by weight.
type blockPart struct{ block, weight int }

// splitGPUs returns what the split gives blocks to, the weight of the MIG instances in each block
// (0 if it is whole), and each slot's parts. All MIG instances of a GPU share its block.
func splitGPUs(slots []assignment) (list []split.GPU, weights []int, parts [][]blockPart) {
	instance := func(m Member) [3]string { return [3]string{m.UUID, m.PCI, strconv.Itoa(m.MIG.Start)} }
	within := map[[3]string]int{} // compute instances of a GPU instance
	for _, s := range slots {
		for _, m := range s.members {
			if m.MIG != nil && !m.twice {
				within[instance(m)]++
			}
		}
	}
	parts = make([][]blockPart, len(slots))
	shared := map[[2]string]int{} // by the card of GPUs with instances
	for k, s := range slots {
		name := "slot " + s.Name
		if len(s.members) == 0 {
			parts[k] = []blockPart{{block: len(list)}}
			list, weights = append(list, split.GPU{NUMANode: -1, MemoryNode: -1, Name: name, None: true}), append(weights, 0)
		}
		for _, m := range s.members {
			i, ok := shared[m.card()]
			if !ok || m.MIG == nil {
				i = len(list)
				list, weights = append(list, split.GPU{NUMANode: m.NUMANode, MemoryNode: m.MemoryNode, Name: name}), append(weights, 0)
			}
			part := blockPart{block: i}
			if m.MIG != nil {
				shared[m.card()] = i
				part.weight = memorySlice * max(1, m.MIG.Size) / max(1, within[instance(m)])
				weights[i] += part.weight
			}
			parts[k] = append(parts[k], part)
		}
	}
	return list, weights, parts
}

// splitSlots splits the machine for slots of any shape. GPUs get blocks of one size.
// A slot of several GPUs has all their blocks, and MIG instances share their GPU's in
// proportion to their memory slices.
func splitSlots(inv *inventory.Inventory, memory inventory.Memory, cfg config.Config, slots []assignment) (split.Result, error) {
	list, weights, parts := splitGPUs(slots)
	res, err := split.Machine(split.Input{
		CPU: inv.CPU, Memory: memory, GPUs: list,
		CPUsPerSlot: cfg.CPUsPerSlot, MemoryPerSlot: int64(cfg.MemoryPerSlot),
		ReserveCPUs: int(cfg.Reserve.CPUs), ReserveMemory: int64(cfg.Reserve.Memory),
		Virt: inv.OS.Virt,
	})
	if err != nil {
		return split.Result{}, err
	}
	whole := res.Blocks
	res.Blocks = make([]split.Block, len(slots))
	left := make([][][]cpuset.Set, len(list)) // cores that no instance has yet, those together that may be one
	cores, pairs := make([]int, len(list)), make([]bool, len(list))
	for i, b := range whole {
		left[i] = split.Together(inv.CPU.List, b.CPUs, inv.OS.Virt)
		for _, unit := range left[i] {
			cores[i], pairs[i] = cores[i]+len(unit), pairs[i] || len(unit) > 1
		}
		res.ReservedCPUs = res.ReservedCPUs.Union(b.CPUs)
		res.ReservedMemory += b.MemoryBytes
	}
	for k, s := range slots {
		b := &res.Blocks[k]
		for j, p := range parts[k] {
			i, part := p.block, whole[p.block]
			if w := weights[i]; w > 0 {
				n := cores[i] * p.weight / w
				if n == 0 {
					return split.Result{}, fmt.Errorf("GPU %d is divided into more instances than it has cores: %s for %s; make fewer instances, choose fewer GPUs with --gpus (gpus), or leave instances out (--gpus %[1]d:0,%[1]d:1)",
						s.members[j].GPU, text.Count(cores[i], "core"), text.Count(w/memorySlice, "memory slice"))
				}
				if n > 1 && pairs[i] {
					n -= n % 2
				}
				part.CPUs, left[i] = takeCores(left[i], n)
				part.MemoryBytes = part.MemoryBytes / mib * int64(p.weight) / int64(w) * mib
				part.ReserveBytes = part.ReserveBytes / mib * int64(p.weight) / int64(w) * mib
			}
			b.CPUs = b.CPUs.Union(part.CPUs)
			b.MemoryNodes = b.MemoryNodes.Union(part.MemoryNodes)
			b.MemoryBytes += part.MemoryBytes
			b.ReserveBytes += part.ReserveBytes
		}
		res.ReservedMemory -= b.MemoryBytes
	}
	for i := range whole {
		unshare(res.Blocks, split.Together(inv.CPU.List, whole[i].CPUs, inv.OS.Virt), left[i])
	}
	for _, b := range res.Blocks {
		res.ReservedCPUs = res.ReservedCPUs.Difference(b.CPUs)
	}
	return res, nil
}

// unshare gives slots that may share a core another one that no slot has, while there is one. together are all cores of
// their GPU, and left those that no slot has, each with those that it may be one with.
func unshare(blocks []split.Block, together, left [][]cpuset.Set) {
	idle := slices.DeleteFunc(slices.Clone(left), func(rest []cpuset.Set) bool {
		return !slices.ContainsFunc(together, func(all []cpuset.Set) bool { return len(all) == len(rest) && all[0].Equal(rest[0]) })
	})
	for _, cores := range together {
		owner := -1
		for _, core := range cores {
			at := slices.IndexFunc(blocks, func(b split.Block) bool { return !b.CPUs.Disjoint(core) })
			switch {
			case at < 0 || at == owner:
			case owner < 0:
				owner = at
			case len(idle) > 0:
				blocks[at].CPUs = blocks[at].CPUs.Difference(core).Union(idle[0][0])
				idle = idle[1:]
			}
		}
	}
}

// takeCores takes n cores of those that are left for an instance. What two instances share is no one's own, so pairs
// that may be one core stay together, unless there are only halves.
func takeCores(left [][]cpuset.Set, n int) (cpus cpuset.Set, rest [][]cpuset.Set) {
	rest = slices.Clone(left)
	for n > 0 && len(rest) > 0 {
		at, most := 0, 0
		for i, cores := range rest {
			if len(cores) <= n && len(cores) > most {
				at, most = i, len(cores)
			}
		}
		take := min(len(rest[at]), n)
		for _, core := range rest[at][:take] {
			cpus = cpus.Union(core)
		}
		n -= take
		rest[at] = rest[at][take:]
		if len(rest[at]) == 0 {
			rest = slices.Delete(rest, at, at+1)
		}
	}
	return cpus, rest
}

// slotGPUs returns the GPUs of a slot as a plan shows them.
func slotGPUs(members []Member) []SlotGPU {
	gpus := []SlotGPU{}
	for _, u := range members {
		g := SlotGPU{
			Number: u.GPU, UUID: u.UUID, PCI: u.PCI, Vendor: u.Vendor, Model: u.Model, Part: u.Part(), Partition: u.Partition,
			NUMANode: u.NUMANode, Arch: u.Arch, Memory: u.Memory, Devices: u.nodes,
		}
		switch {
		case u.mig != nil:
			g.Instance = u.mig.UUID
		case u.recalled:
			g.Instance = u.Instance
		}
		gpus = append(gpus, g)
	}
	return gpus
}

// gpuNodes returns the device nodes that a job of this GPU opens; complete reports
// whether all of them are known.
func gpuNodes(u Member) (nodes []string, complete bool) {
	nodes, complete = []string{}, true
	if u.gpu == nil || u.lost != "" {
		return nodes, false
	}
	switch {
	case u.Vendor == "amd":
		nodes, complete = append(nodes, "/dev/kfd"), u.gpu.RenderMinor >= 0
	case u.gpu.Minor >= 0:
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia%d", u.gpu.Minor), "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
	default:
		complete = false
	}
	switch {
	case u.mig != nil: // MIG instances cannot render
		for _, minor := range []int{u.mig.GPUCap, u.mig.ComputeCap} {
			if minor >= 0 {
				nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
			}
			complete = complete && minor >= 0
		}
	case u.gpu.RenderMinor >= 0:
		nodes = append(nodes, fmt.Sprintf("/dev/dri/renderD%d", u.gpu.RenderMinor))
	}
	return nodes, complete
}
