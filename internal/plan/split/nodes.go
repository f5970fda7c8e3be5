package split

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// mergeNodes takes all NUMA nodes with CPUs or GPUs as one if they contradict each other.
func (s *splitter) mergeNodes() {
	why := s.contradiction()
	if why == "" {
		return
	}
	s.warn("%s %s; all nodes are taken as one, so some memory may be far from a slot's CPUs", s.in.topologyAuthor(), why)
	with := map[int]bool{}
	for _, c := range s.in.CPU.List {
		with[c.NUMANode] = true
	}
	for _, g := range s.in.GPUs {
		with[g.NUMANode] = true
	}
	var one inventory.NUMANode
	rest := slices.DeleteFunc(slices.Clone(s.in.Memory.Nodes), func(n inventory.NUMANode) bool {
		if !with[n.ID] && n.CPUs == "" || n.GPU != "" {
			return false
		}
		if one.CPUs == "" || n.ID < one.ID {
			one.ID, one.CPUs = n.ID, "all"
		}
		one.MemoryBytes, one.HugepagesBytes = one.MemoryBytes+n.MemoryBytes, one.HugepagesBytes+n.HugepagesBytes
		if n.MemoryBytes > 0 {
			s.merged = s.merged.Union(cpuset.Of(n.ID))
		}
		return true
	})
	if total := s.in.Memory.TotalBytes; total > 0 { // nodes that share CPUs may also list the same memory
		one.MemoryBytes = min(one.MemoryBytes, total)
	}
	s.in.Memory.Nodes = append(rest, one)
	for i := range s.in.CPU.List {
		s.in.CPU.List[i].NUMANode = one.ID
	}
	for i := range s.in.GPUs {
		if s.in.GPUs[i].NUMANode >= 0 {
			s.in.GPUs[i].NUMANode = one.ID
		}
	}
}

// contradiction returns how the NUMA nodes contradict the CPUs or GPUs; "" if they do not: several
// list a CPU, a quarter of the cores have threads on several, or a GPU's has memory and no CPUs.
func (s *splitter) contradiction() string {
	at := map[int]int{} // the node of a CPU
	cpus := map[int]bool{}
	for _, c := range s.in.CPU.List {
		at[c.ID], cpus[c.NUMANode] = c.NUMANode, true
	}
	var twice cpuset.Set
	var bare []int
	for _, n := range s.in.Memory.Nodes {
		if n.GPU != "" {
			continue
		}
		list, _ := cpuset.Parse(n.CPUs)
		for _, id := range list.Ints() {
			if node, online := at[id]; online && node >= 0 && node != n.ID {
				twice = twice.Union(cpuset.Of(id))
			}
		}
		if n.MemoryBytes > 0 && !cpus[n.ID] && slices.ContainsFunc(s.in.GPUs, func(g GPU) bool { return g.NUMANode == n.ID }) {
			bare = append(bare, n.ID)
		}
	}
	cut, cores := 0, byCore(s.in.CPU.List)
	for _, threads := range cores {
		if len(nodesOfCore(threads)) > 1 {
			cut++
		}
	}
	switch {
	case twice.Len() > 0:
		return fmt.Sprintf("lists CPUs %s in several NUMA nodes", twice)
	case 4*cut >= len(cores) && cut > 0:
		return "puts the threads of a core on different NUMA nodes"
	case len(bare) > 0:
		return fmt.Sprintf("gives NUMA nodes of GPUs no CPUs (%s)", cpuset.Of(bare...))
	}
	return ""
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
func nodesOfCore(threads []inventory.LogicalCPU) []int {
	var nodes []int
	for _, c := range threads {
		if c.NUMANode >= 0 {
			nodes = append(nodes, c.NUMANode)
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

// Together returns the cores of a set as Cores does, those together that may be threads of one: a hypervisor that
// hides SMT shows each thread as a core of its own.
func Together(cpus []inventory.LogicalCPU, set cpuset.Set, virt bool) (together [][]cpuset.Set) {
	at := map[int]inventory.LogicalCPU{}
	for _, c := range cpus {
		at[c.ID] = c
	}
	cores := Cores(cpus, set)
	hidden := virt && !slices.ContainsFunc(cores, func(c cpuset.Set) bool { return c.Len() > 1 })
	pairs := map[int]int{} // where the first of a pair is
	for _, core := range cores {
		id := core.Ints()[0]
		c, even := at[id], id-id%2
		if i, ok := pairs[even]; ok && hidden && samePlace(at[even], c) {
			together[i] = append(together[i], core)
			continue
		}
		pairs[id] = len(together)
		together = append(together, []cpuset.Set{core})
	}
	return together
}

// samePlace reports whether two CPUs may be threads of one core.
func samePlace(a, b inventory.LogicalCPU) bool {
	return a.Package == b.Package && a.Die == b.Die && a.L3 == b.L3 && a.NUMANode == b.NUMANode
}
