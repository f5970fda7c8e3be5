package split

import (
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// score says how good a split is. More is better in Threads, Local, OnNode and Memory; less is
// better in Distance, SharedCaches, Caches and MemoryNodes.
type score struct {
	Threads      int   // of a slot
	Local        int   // slots with CPUs on a package that has some of their GPU's node
	OnNode       int   // slots with all CPUs on their GPU's node
	Distance     int   // NUMA distance from each thread to its GPU, in all
	SharedCaches int   // level-3 caches that several slots have cores of
	Caches       int   // level-3 caches of each slot, in all
	MemoryNodes  int   // of each slot, in all
	Memory       int64 // MiB of a slot
}

// add adds the score of another machine.
func (s *score) add(o score) {
	s.Threads, s.Local, s.OnNode, s.Memory = s.Threads+o.Threads, s.Local+o.Local, s.OnNode+o.OnNode, s.Memory+o.Memory
	s.Distance, s.SharedCaches, s.Caches, s.MemoryNodes = s.Distance+o.Distance, s.SharedCaches+o.SharedCaches, s.Caches+o.Caches, s.MemoryNodes+o.MemoryNodes
}

// worse reports whether a score is worse than another in anything.
func (s *score) worse(o score) bool {
	return s.Threads < o.Threads || s.Local < o.Local || s.OnNode < o.OnNode || s.Memory < o.Memory ||
		s.Distance > o.Distance || s.SharedCaches > o.SharedCaches || s.Caches > o.Caches || s.MemoryNodes > o.MemoryNodes
}

func rate(in Input, r Result) (s score) {
	byID := cpusByID(in)
	distance := distances(in.Memory.Nodes)
	known := func(node int) bool {
		return node >= 0 && slices.ContainsFunc(in.Memory.Nodes, func(n inventory.NUMANode) bool { return n.ID == node })
	}
	users := map[[2]int]int{}
	for i, b := range r.Blocks {
		gpu := in.GPUs[i].NUMANode
		home := packagesOn(in, gpu)
		local, onNode, caches := true, true, map[[2]int]bool{}
		for _, id := range b.CPUs.Ints() {
			c := byID[id]
			local = local && home[c.Package]
			onNode = onNode && c.NUMANode == gpu
			caches[[2]int{c.Package, c.L3}] = true
			if known(gpu) {
				s.Distance += distance(gpu, c.NUMANode)
			}
		}
		if known(gpu) && local {
			s.Local++
		}
		if known(gpu) && onNode {
			s.OnNode++
		}
		for l3 := range caches {
			users[l3]++
		}
		s.Threads, s.Memory = b.CPUs.Len(), b.MemoryBytes/mib
		s.Caches += len(caches)
		s.MemoryNodes += b.MemoryNodes.Len()
	}
	for _, n := range users {
		if n > 1 {
			s.SharedCaches++
		}
	}
	return s
}
