package split

import (
	"cmp"
	"slices"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
)

// joints are NUMA nodes that are taken as one. The node of the lowest ID stands for all.
type joints map[int]int // by ID, another of them with a lower one

func (j joints) root(id int) int {
	for {
		lower, ok := j[id]
		if !ok {
			return id
		}
		id = lower
	}
}

func (j joints) join(a, b int) {
	if a, b = j.root(a), j.root(b); a != b {
		j[max(a, b)] = min(a, b)
	}
}

// all returns the nodes that are taken as one with another.
func (j joints) all() (out cpuset.Set) {
	for id := range j {
		out = out.Union(cpuset.Of(id, j.root(id)))
	}
	return out
}

// joinNodes takes NUMA nodes that cannot be told apart as one: nodes that list the same CPU, nodes
// of GPUs without CPUs, and nodes of which so many cores have threads on another that the rest is
// too little for slots.
func (s *splitter) joinNodes() {
	who := s.in.topologyAuthor()
	if twice := s.joinOverlaps(); twice.Len() > 0 {
		s.warn("%s lists CPUs %s in several of NUMA nodes %s; nodes with the same CPUs are taken as one, so some memory may be far from a slot's CPUs",
			who, twice, s.all())
	}
	if bare := s.joinBare(); len(bare) > 0 {
		s.warn("%s gives NUMA nodes of GPUs no CPUs (%s); each is taken as one with the nearest node, so some memory may be far from a slot's CPUs", who, cpuset.Of(bare...))
	}
	joined := s.all()
	s.joinCut()
	if torn := s.all(); !torn.Equal(joined) {
		s.warn("%s puts the threads of a core on different NUMA nodes (%s); these nodes are taken as one, so some memory may be far from a slot's CPUs",
			who, torn.Difference(joined))
	}
	for i := range s.in.CPU.List {
		s.in.CPU.List[i].NUMANode = s.root(s.in.CPU.List[i].NUMANode)
	}
	for i := range s.in.GPUs {
		s.in.GPUs[i].NUMANode = s.root(s.in.GPUs[i].NUMANode)
	}
}

// joinOverlaps joins nodes that list the same CPU, and returns these CPUs.
func (s *splitter) joinOverlaps() (twice cpuset.Set) {
	var online []int
	for _, c := range s.in.CPU.List {
		online = append(online, c.ID)
	}
	first := map[int]int{} // the node that lists a CPU
	for _, n := range s.in.Memory.Nodes {
		cpus, err := cpuset.Parse(n.CPUs)
		if err != nil || n.GPU != "" {
			continue
		}
		for _, id := range cpus.Intersect(cpuset.Of(online...)).Ints() {
			if other, ok := first[id]; !ok {
				first[id] = n.ID
			} else if other != n.ID {
				s.join(other, n.ID)
				twice = twice.Union(cpuset.Of(id))
			}
		}
	}
	return twice
}

// joinBare joins each node of a GPU that has memory and no CPUs with the nearest that has CPUs, of
// several the one with the fewest GPUs, and returns these nodes.
func (s *splitter) joinBare() (bare []int) {
	cpus, gpus := map[int]int{}, s.gpusByNode()
	for _, c := range s.in.CPU.List {
		cpus[s.root(c.NUMANode)]++
	}
	distance := distances(s.in.Memory.Nodes, func(id int) int { return id })
	nodes := slices.SortedFunc(slices.Values(s.in.Memory.Nodes), func(a, b inventory.NUMANode) int { return cmp.Compare(a.ID, b.ID) })
	for _, n := range nodes {
		root := s.root(n.ID)
		if n.GPU != "" || n.MemoryBytes == 0 || cpus[root] > 0 || gpus[root] == 0 {
			continue
		}
		near := slices.DeleteFunc(slices.Clone(nodes), func(o inventory.NUMANode) bool { return o.GPU != "" || cpus[s.root(o.ID)] == 0 })
		if len(near) == 0 {
			continue
		}
		best := slices.MinFunc(near, func(a, b inventory.NUMANode) int {
			return cmp.Or(distance(n.ID, a.ID)-distance(n.ID, b.ID), gpus[s.root(a.ID)]-gpus[s.root(b.ID)])
		}).ID
		bare = append(bare, n.ID)
		both := gpus[root] + gpus[s.root(best)]
		s.join(n.ID, best)
		cpus[s.root(best)], gpus[s.root(best)] = 1, both
	}
	return bare
}

// joinCut joins the nodes of cores whose threads are on several, where one of them has fewer whole
// cores than cut ones, or than GPUs.
func (s *splitter) joinCut() {
	whole, cut, gpus := map[int]int{}, map[int]int{}, s.gpusByNode()
	var between [][]int
	for _, threads := range byCore(s.in.CPU.List) {
		nodes, count := s.nodesOfCore(threads), whole
		if len(nodes) > 1 {
			between, count = append(between, nodes), cut
		}
		for _, n := range nodes {
			count[n]++
		}
	}
	for _, nodes := range between {
		if slices.ContainsFunc(nodes, func(n int) bool { return whole[n] < max(cut[n], gpus[n]) }) {
			for _, n := range nodes[1:] {
				s.join(nodes[0], n)
			}
		}
	}
}

func (s *splitter) gpusByNode() map[int]int {
	gpus := map[int]int{}
	for _, g := range s.in.GPUs {
		gpus[s.root(g.NUMANode)]++
	}
	return gpus
}

// topologyAuthor says who a machine's NUMA nodes come from.
func (in Input) topologyAuthor() string {
	if in.Virt {
		return "the hypervisor"
	}
	return "the firmware"
}

// byCore groups CPUs by core, in the order of their first CPUs.
func byCore(cpus []inventory.LogicalCPU) [][]inventory.LogicalCPU {
	var out [][]inventory.LogicalCPU
	at := map[int]int{}
	for _, c := range cpus {
		i, ok := at[c.Core]
		if !ok {
			i = len(out)
			at[c.Core] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], c)
	}
	return out
}

// nodesOfCore returns the NUMA nodes of a core's threads, ascending.
func (s *splitter) nodesOfCore(threads []inventory.LogicalCPU) []int {
	var nodes []int
	for _, c := range threads {
		if c.NUMANode >= 0 {
			nodes = append(nodes, s.root(c.NUMANode))
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// cutPackage returns a NUMA node that has cores of several packages of which one also has
// cores of another node: neither can be divided along the other.
func cutPackage(cores []physCore) (node int, packages cpuset.Set, ok bool) {
	nodes, packagesOf := map[int]cpuset.Set{}, map[int]cpuset.Set{}
	for _, c := range cores {
		if c.node >= 0 && c.pkg >= 0 {
			nodes[c.pkg] = nodes[c.pkg].Union(cpuset.Of(c.node))
			packagesOf[c.node] = packagesOf[c.node].Union(cpuset.Of(c.pkg))
		}
	}
	node = -1
	for n, set := range packagesOf {
		if set.Len() > 1 && (node < 0 || n < node) && slices.ContainsFunc(set.Ints(), func(p int) bool { return nodes[p].Len() > 1 }) {
			node, packages = n, set
		}
	}
	return node, packages, node >= 0
}

// Cores returns the CPUs of a set by core, neighbors together.
func Cores(cpus []inventory.LogicalCPU, set cpuset.Set) (cores []cpuset.Set) {
	cpus = slices.DeleteFunc(slices.Clone(cpus), func(c inventory.LogicalCPU) bool { return !set.Contains(c.ID) })
	groups := byCore(cpus)
	slices.SortStableFunc(groups, func(a, b []inventory.LogicalCPU) int {
		return cmp.Or(a[0].NUMANode-b[0].NUMANode, a[0].L3-b[0].L3, a[0].Core-b[0].Core)
	})
	for _, threads := range groups {
		var ids []int
		for _, c := range threads {
			ids = append(ids, c.ID)
		}
		cores = append(cores, cpuset.Of(ids...))
	}
	return cores
}
