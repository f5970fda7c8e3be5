package split

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	mib = 1 << 20
	// MinMemory is the least in which an agent and a container start, in bytes.
	MinMemory = 128 * mib
	// gbShare is the fraction (1/12) by which an even share of a machine may fall short of a
	// request: memory sold in GB is 7 % less in GiB, and the kernel and the reserve take some.
	gbShare = 12
	// BootShare is the fraction (1/32) by which memory may differ between two boots of an
	// unchanged machine: the kernel takes some, not always from the same place.
	BootShare = 32
	// advisedMemory and fullMemory, in MiB, are from the vendors' guide. It recommends 32
	// GB for each GPU, which is less than 30 GiB, and its command asks for 32 GiB.
	advisedMemory, fullMemory = 30 << 10, 32 << 10
	// leastReserve is how far the default reserve may shrink, in MiB.
	leastReserve = 2 << 10
)

// ramNode is a NUMA node whose memory slots can use.
type ramNode struct {
	id    int
	bytes int64 // all of it
	free  int64 // MiB that are not huge pages; in splitter.ram, what slots share
}

// ramNodes returns the nodes with both CPUs and memory. A node without CPUs is
// a GPU's memory, or slow memory that would make timings depend on luck.
func (s *splitter) ramNodes() []ramNode {
	var out []ramNode
	for _, c := range s.in.CPU.List {
		if c.NUMANode < 0 || slices.ContainsFunc(out, func(n ramNode) bool { return n.id == c.NUMANode }) {
			continue
		}
		n := ramNode{id: c.NUMANode}
		for _, node := range s.in.Memory.Nodes {
			if node.ID == n.id {
				n.bytes, n.free = node.MemoryBytes, max(node.MemoryBytes-node.HugepagesBytes, 0)/mib
			}
		}
		out = append(out, n)
	}
	if !slices.ContainsFunc(out, func(n ramNode) bool { return n.bytes > 0 }) { // only the sum is known
		for i := range out {
			out[i].bytes = s.in.Memory.TotalBytes / int64(len(out))
			out[i].free = out[i].bytes / mib
		}
	}
	out = slices.DeleteFunc(out, func(n ramNode) bool { return n.bytes == 0 })
	slices.SortFunc(out, func(a, b ramNode) int { return a.id - b.id })
	return out
}

// shares takes the system's reserve, in MiB, from the nodes in proportion to what each has, and
// divides the rest. It returns what each slot weighs on each node, and what it gets in MiB.
func (s *splitter) shares(ram []ramNode, reserve int64) (weights [][]int64, shares []int64) {
	s.ram, s.Warnings = slices.Clone(ram), s.Warnings[:s.warned]
	all := free(ram)
	for i := range s.ram {
		s.ram[i].free -= share(reserve, s.ram[i].free, all, true)
	}
	weights = make([][]int64, len(s.cores))
	for i, cores := range s.cores {
		weights[i] = make([]int64, len(s.ram))
		for _, c := range cores {
			weights[i][s.nearestRAM(c.node)]++
		}
	}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(s.where))) {
		weights = s.widen(p, weights, max(s.in.MemoryPerSlot/mib, s.fairShare()*45/100))
	}
	return weights, s.entitlements(weights)
}

// free returns the memory of nodes, in MiB, that is not huge pages.
func free(ram []ramNode) (all int64) {
	for _, n := range ram {
		all += n.free
	}
	return all
}

// chooseReserve returns the system's memory in MiB, and the most that a slot gets besides
// it, or 0 for no limit. The default shrinks if slots then have what the vendors' guide
// recommends: of a machine's 256 GB, the kernel keeps some before kbnode divides it.
func (s *splitter) chooseReserve(ram []ramNode) (reserve, most int64, err error) {
	all := free(ram)
	reserve = max(s.in.ReserveMemory, 0) / mib
	if s.in.ReserveMemory%mib > 0 {
		reserve++
	}
	switch {
	case reserve >= all && reserve > 0:
		return 0, 0, fmt.Errorf("reserve.memory: %s leaves nothing of the machine's %s for slots; write less (--reserve-memory)",
			config.Size(s.in.ReserveMemory), readable(all))
	case reserve > 0:
		return reserve, 0, nil
	}
	reserve = min(max(leastReserve, all/20), all/4)
	floor := min(leastReserve, reserve)
	want, advised := s.in.MemoryPerSlot/mib, []int64{advisedMemory, MinSlotMemory / mib}
	switch {
	case want > 0:
		advised = []int64{min(want, fullMemory), min(want, advisedMemory)}
	case s.in.GPUs[0].None:
		return reserve, 0, nil
	}
	for _, most := range advised {
		gives := sort.Search(int(reserve-floor)+1, func(n int) bool {
			_, shares := s.shares(ram, reserve-int64(n))
			return slices.Min(shares) >= most
		})
		switch {
		case gives == 0:
			return reserve, 0, nil
		case int64(gives) <= reserve-floor:
			return reserve - int64(gives), most, nil
		}
	}
	if want > 0 {
		reserve = floor
	}
	return reserve, 0, nil
}

// shareMemory gives every slot the same memory, from the nodes of its cores. A
// node's memory is divided in proportion to the cores that slots have on it.
// Together, slots never get more of a node than it has free.
func (s *splitter) shareMemory() error {
	if len(s.ram) == 0 {
		return errors.New("the machine does not report how much memory it has; check /proc/meminfo and /sys/devices/system/node/node*/meminfo")
	}
	ram := s.ram
	s.warned = len(s.Warnings)
	reserve, most, err := s.chooseReserve(ram)
	if err != nil {
		return err
	}
	weights, shares := s.shares(ram, reserve)
	want, fair := s.in.MemoryPerSlot/mib, s.fairShare()
	least := slices.Min(shares)
	poor := slices.Index(shares, least)
	if most > 0 {
		least = min(least, most)
	}
	slotReserve := share(reserve, least, free(ram)-reserve, false) * mib
	perSlot := least
	switch {
	case want > least && least*mib >= MinMemory && (want-least <= want/BootShare || s.in.ReserveMemory == 0 && want-least <= want/gbShare):
		s.warn("memory_per_slot: %s is slightly more than fits; each slot gets %s", config.Size(s.in.MemoryPerSlot), config.Size(least*mib))
	case want > least:
		return fmt.Errorf("memory_per_slot: %s for each of %s does not fit: %s has %s on NUMA node %s; write at most %s (--memory-per-slot), lower reserve.memory (--reserve-memory) or choose fewer GPUs with --gpus (gpus)",
			config.Size(s.in.MemoryPerSlot), text.Count(len(shares), "slot"), s.in.GPUs[poor].Name, readable(least),
			s.nodesOf(weights[poor]), readable(least))
	case want > 0 || s.in.MemoryPerSlot > 0:
		perSlot = want
		if want*mib < MinMemory {
			return fmt.Errorf("memory_per_slot: %s is too little for a job; write at least %s (--memory-per-slot)",
				config.Size(s.in.MemoryPerSlot), config.Size(MinMemory))
		}
	case least*mib < MinMemory:
		return fmt.Errorf("the memory of NUMA node %s gives each of %s %s, and a job needs at least %s; choose fewer GPUs with --gpus (gpus) or lower reserve.memory (--reserve-memory)",
			s.nodesOf(weights[poor]), text.Count(len(shares), "slot"), readable(least), config.Size(MinMemory))
	case least < fair*45/100:
		s.warn("each slot has %s of memory, although an even share would be %s: NUMA node %s, where the CPUs of %s are, has no more",
			readable(least), readable(fair), s.nodesOf(weights[poor]), s.in.GPUs[poor].Name)
	}
	for i := range s.Blocks {
		b := &s.Blocks[i]
		b.MemoryBytes, b.ReserveBytes = perSlot*mib, slotReserve
		b.MemoryNodes = s.nodesOf(weights[i])
		for _, n := range s.in.Memory.Nodes { // the kernel accepts no node without memory
			if n.ID == s.in.GPUs[i].MemoryNode && n.MemoryBytes > 0 {
				b.MemoryNodes = b.MemoryNodes.Union(cpuset.Of(n.ID))
			}
		}
		s.ReservedMemory -= b.MemoryBytes
	}
	return nil
}

// widen lets the slots of a package use the memory of all its nodes if the
// nodes of their own cores give one of them less than enough.
func (s *splitter) widen(p int, weights [][]int64, enough int64) [][]int64 {
	least := func(w [][]int64) int64 {
		out := int64(-1)
		for i, n := range s.entitlements(w) {
			if s.where[i] == p && (out < 0 || n < out) {
				out = n
			}
		}
		return out
	}
	narrow := least(weights)
	if narrow >= enough {
		return weights
	}
	all := make([]int64, len(s.ram))
	for _, node := range s.packages[p].nodes {
		all[s.nearestRAM(node)] = int64(len(s.cores[0]))
	}
	wide := slices.Clone(weights)
	var slots []int
	for i := range wide {
		if s.where[i] == p {
			wide[i] = all
			slots = append(slots, i)
		}
	}
	if least(wide) <= narrow {
		return weights
	}
	s.warn("%s may use the memory of NUMA nodes %s: the nodes of their own CPUs have too little", s.names(slots), s.nodesOf(all))
	return wide
}

// entitlements returns the memory, in MiB, that each slot gets from its nodes.
func (s *splitter) entitlements(weights [][]int64) []int64 {
	sum := make([]int64, len(s.ram))
	for _, w := range weights {
		for n := range w {
			sum[n] += w[n]
		}
	}
	out := make([]int64, len(weights))
	for i, w := range weights {
		for n := range w {
			if w[n] > 0 {
				out[i] += share(s.ram[n].free, w[n], sum[n], false)
			}
		}
	}
	return out
}

// fairShare returns what a slot would get, in MiB, if the memory of the
// packages with slots were divided regardless of nodes.
func (s *splitter) fairShare() int64 {
	used := map[int]bool{}
	for _, p := range s.where {
		for _, node := range s.packages[p].nodes {
			used[s.nearestRAM(node)] = true
		}
	}
	var sum int64
	for n := range used {
		sum += s.ram[n].free
	}
	return sum / int64(len(s.where))
}

// nearestRAM returns the index of the node that a core's memory comes from: its
// own if that has any, or else the nearest.
func (s *splitter) nearestRAM(node int) int {
	if at, ok := slices.BinarySearchFunc(s.ram, node, func(n ramNode, id int) int { return n.id - id }); ok {
		return at
	}
	best := 0
	for i, n := range s.ram {
		if cmp.Or(s.distance(node, n.id)-s.distance(node, s.ram[best].id), i-best) < 0 {
			best = i
		}
	}
	return best
}

func (s *splitter) nodesOf(weights []int64) (nodes cpuset.Set) {
	if s.merged.Len() > 0 {
		return s.merged
	}
	for n, w := range weights {
		if w > 0 {
			nodes = nodes.Union(cpuset.Of(s.ram[n].id))
		}
	}
	return nodes
}

// share returns amount × part / whole, rounded down, or up if up is set. part
// must be at most whole.
func share(amount, part, whole int64, up bool) int64 {
	if whole == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(amount), uint64(part))
	q, rest := bits.Div64(hi, lo, uint64(whole))
	if up && rest > 0 {
		q++
	}
	return int64(q)
}

// readable formats n MiB for a message, rounded down to GiB if that loses little.
func readable(n int64) config.Size {
	if n >= 4<<10 {
		n &^= 1<<10 - 1
	}
	return config.Size(n * mib)
}
