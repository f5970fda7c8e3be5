package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
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

// memorySlice is the weight of a memory slice. Up to eight compute instances in one GPU
// instance share its slices, and 840 is divisible by 1 to 8.
const memorySlice = 840

// weigh returns a function that gives the weight of a MIG instance in its GPU.
func weigh(slots []assignment) func(Member) int {
	type instance struct {
		card  [2]string
		start int
	}
	within := map[instance]int{}
	for _, s := range slots {
		for _, u := range s.members {
			if u.MIG != nil && !u.twice {
				within[instance{u.card(), u.MIG.Start}]++
			}
		}
	}
	return func(u Member) int {
		return memorySlice * max(1, u.MIG.Size) / max(1, within[instance{u.card(), u.MIG.Start}])
	}
}

// splitGPUs returns what the split gives blocks to, and the indices of each slot's own. All MIG
// instances of a GPU share one.
func splitGPUs(slots []assignment, weight func(Member) int) (list []splitGPU, of [][]int) {
	of = make([][]int, len(slots))
	shared := map[[2]string]int{} // by the card of GPUs with instances
	for k, s := range slots {
		name := "slot " + s.Name
		if len(s.members) == 0 {
			of[k] = []int{len(list)}
			list = append(list, splitGPU{NUMANode: -1, MemoryNode: -1, Name: name, None: true})
		}
		for _, u := range s.members {
			i, ok := shared[u.card()]
			if !ok || u.MIG == nil {
				i = len(list)
				list = append(list, splitGPU{NUMANode: u.NUMANode, MemoryNode: u.MemoryNode, Name: name})
			}
			if u.MIG != nil {
				shared[u.card()] = i
				list[i].weight += weight(u)
			}
			of[k] = append(of[k], i)
		}
	}
	return list, of
}

// splitSlots splits the machine for slots of any shape. GPUs get blocks of one size.
// A slot of several GPUs has all their blocks, and MIG instances share their GPU's in
// proportion to their memory slices.
func splitSlots(inv *inventory.Inventory, cfg config.Config, slots []assignment) (splitResult, error) {
	weight := weigh(slots)
	list, of := splitGPUs(slots, weight)
	in := splitInput{
		CPU: inv.CPU, Memory: inv.Memory, GPUs: list,
		CPUsPerSlot: cfg.CPUsPerSlot, MemoryPerSlot: int64(cfg.MemoryPerSlot),
		ReserveCPUs: int(cfg.Reserve.CPUs), ReserveMemory: int64(cfg.Reserve.Memory),
		Virt: inv.OS.Virt,
	}
	whole, err := split(in)
	if err != nil {
		return splitResult{}, err
	}
	res := whole
	res.Blocks = make([]block, len(slots))
	left := make([][][]int, len(list)) // cores that no instance has yet
	for i := range list {
		left[i] = coresOf(inv.CPU.List, whole.Blocks[i].CPUs)
	}
	cores := make([]int, len(list))
	for i := range list {
		cores[i] = len(left[i])
	}
	var all cpuset.Set
	res.ReservedMemory += sumMemory(whole.Blocks)
	for k, s := range slots {
		b := &res.Blocks[k]
		for j, i := range of[k] {
			from, part := whole.Blocks[i], whole.Blocks[i]
			if w := list[i].weight; w > 0 {
				own := weight(s.members[j])
				n := cores[i] * own / w
				if n == 0 {
					return splitResult{}, fmt.Errorf("GPU %d is divided into more instances than it has cores: %s for %s; make fewer instances, choose fewer GPUs with --gpus (gpus), or leave instances out (--gpus %d:0,%d:1)",
						s.members[j].GPU, counted(cores[i], "core"), counted(w/memorySlice, "memory slice"), s.members[j].GPU, s.members[j].GPU)
				}
				part.CPUs = cpuset.Of(slices.Concat(left[i][:n]...)...)
				left[i] = left[i][n:]
				part.MemoryBytes = share(from.MemoryBytes/mib, int64(own), int64(w), false) * mib
			}
			b.CPUs = b.CPUs.Union(part.CPUs)
			b.MemoryNodes = b.MemoryNodes.Union(part.MemoryNodes)
			b.MemoryBytes += part.MemoryBytes
		}
		all = all.Union(b.CPUs)
	}
	for _, b := range whole.Blocks {
		res.ReservedCPUs = res.ReservedCPUs.Union(b.CPUs.Difference(all))
	}
	res.ReservedMemory -= sumMemory(res.Blocks)
	return res, nil
}

func sumMemory(blocks []block) (sum int64) {
	for _, b := range blocks {
		sum += b.MemoryBytes
	}
	return sum
}

// coresOf returns the CPUs of a set by core, neighbors together.
func coresOf(cpus []inventory.LogicalCPU, set cpuset.Set) [][]int {
	byCore := map[int][]int{}
	var order []inventory.LogicalCPU
	for _, c := range cpus {
		if !set.Contains(c.ID) {
			continue
		}
		if byCore[c.Core] == nil {
			order = append(order, c)
		}
		byCore[c.Core] = append(byCore[c.Core], c.ID)
	}
	slices.SortStableFunc(order, func(a, b inventory.LogicalCPU) int {
		return cmp.Or(a.NUMANode-b.NUMANode, a.L3-b.L3, a.Core-b.Core)
	})
	var out [][]int
	for _, c := range order {
		out = append(out, byCore[c.Core])
	}
	return out
}

// slotGPUs returns the GPUs of a slot as a plan shows them.
func slotGPUs(members []Member) []SlotGPU {
	gpus := []SlotGPU{}
	for _, u := range members {
		g := SlotGPU{
			Number: u.GPU, UUID: u.UUID, PCI: u.PCI, Vendor: u.Vendor, Model: u.Model, Part: u.Part(), Partition: u.Partition,
			NUMANode: u.NUMANode, Devices: u.nodes,
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
