package plan

import (
	"cmp"
	"fmt"
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

// joinNodes returns the input with NUMA nodes that cannot be told apart as one: nodes that
// list the same CPU, nodes of GPUs without CPUs, and nodes of which so many cores have threads on another that the rest is
// too little for slots. The CPUs must be clean.
func joinNodes(in splitInput) (splitInput, joints, []string) {
	j, warnings := joints{}, []string(nil)
	known := map[int]bool{}
	for _, c := range in.CPU.List {
		known[c.ID] = true
	}
	var twice []int
	first := map[int]int{} // the node that lists a CPU
	for _, n := range in.Memory.Nodes {
		cpus, err := cpuset.Parse(n.CPUs)
		if err != nil || n.GPU != "" {
			continue
		}
		for _, id := range cpus.Ints() {
			if other, ok := first[id]; !ok {
				first[id] = n.ID
			} else if known[id] && other != n.ID {
				j.join(other, n.ID)
				twice = append(twice, id)
			}
		}
	}
	who := in.topologyAuthor()
	overlap := j.all()
	if len(twice) > 0 {
		warnings = append(warnings, fmt.Sprintf("%s lists CPUs %s in several of NUMA nodes %s; nodes with the same CPUs are taken as one, so some memory may be far from a slot's CPUs",
			who, cpuset.Of(twice...), overlap))
	}
	if bare := j.joinBare(in); len(bare) > 0 {
		warnings = append(warnings, fmt.Sprintf("%s gives NUMA nodes of GPUs no CPUs (%s); each is taken as one with the nearest node, so some memory may be far from a slot's CPUs", who, cpuset.Of(bare...)))
	}
	joined := j.all()

	whole, cut := map[int]int{}, map[int]int{} // cores, by node
	var between [][]int
	for _, threads := range byCore(in.CPU.List) {
		nodes := nodesOfCore(threads)
		for i := range nodes {
			nodes[i] = j.root(nodes[i])
		}
		slices.Sort(nodes)
		nodes = slices.Compact(nodes)
		for _, n := range nodes {
			if len(nodes) == 1 {
				whole[n]++
			} else {
				cut[n]++
			}
		}
		if len(nodes) > 1 {
			between = append(between, nodes)
		}
	}
	gpus := map[int]int{}
	for _, g := range in.GPUs {
		gpus[j.root(g.NUMANode)]++
	}
	for _, nodes := range between {
		if slices.ContainsFunc(nodes, func(n int) bool { return whole[n] < max(cut[n], gpus[n]) }) {
			for _, n := range nodes[1:] {
				j.join(nodes[0], n)
			}
		}
	}
	if torn := j.all(); !torn.Equal(joined) {
		warnings = append(warnings, fmt.Sprintf("%s puts the threads of a core on different NUMA nodes (%s); these nodes are taken as one, so some memory may be far from a slot's CPUs",
			who, torn.Difference(joined)))
	}
	if len(j) == 0 {
		return in, j, warnings
	}
	in.CPU.List, in.GPUs = slices.Clone(in.CPU.List), slices.Clone(in.GPUs)
	for i := range in.CPU.List {
		in.CPU.List[i].NUMANode = j.root(in.CPU.List[i].NUMANode)
	}
	for i := range in.GPUs {
		in.GPUs[i].NUMANode = j.root(in.GPUs[i].NUMANode)
	}
	in.Memory.Nodes = j.merge(in.Memory)
	return in, j, warnings
}

// joinBare joins each node of a GPU that has memory and no CPUs with the nearest that has CPUs, of
// several the one with the fewest GPUs, and returns these nodes.
func (j joints) joinBare(in splitInput) (bare []int) {
	cpus, gpus := map[int]int{}, map[int]int{}
	for _, c := range in.CPU.List {
		cpus[j.root(c.NUMANode)]++
	}
	for _, g := range in.GPUs {
		gpus[j.root(g.NUMANode)]++
	}
	distance := distances(in.Memory.Nodes)
	nodes := slices.SortedFunc(slices.Values(in.Memory.Nodes), func(a, b inventory.NUMANode) int { return cmp.Compare(a.ID, b.ID) })
	for _, n := range nodes {
		root, best := j.root(n.ID), -1
		if n.GPU != "" || n.MemoryBytes <= 0 || cpus[root] > 0 || gpus[root] == 0 {
			continue
		}
		for _, o := range nodes {
			if o.GPU != "" || cpus[j.root(o.ID)] == 0 {
				continue
			}
			if best < 0 || cmp.Or(cmp.Compare(distance(n.ID, o.ID), distance(n.ID, best)), cmp.Compare(gpus[j.root(o.ID)], gpus[j.root(best)]), cmp.Compare(o.ID, best)) < 0 {
				best = o.ID
			}
		}
		if best >= 0 {
			bare = append(bare, n.ID)
			both := gpus[root] + gpus[j.root(best)]
			j.join(n.ID, best)
			cpus[j.root(best)], gpus[j.root(best)] = 1, both
		}
	}
	return bare
}

// merge returns the nodes of a machine with those that are taken as one as one. Together they
// have no more memory than the machine: nodes that share CPUs may also list the same memory.
func (j joints) merge(m inventory.Memory) []inventory.NUMANode {
	nodes, distance := m.Nodes, distances(m.Nodes)
	var out []inventory.NUMANode
	over, shared := -m.TotalBytes, int64(0)
	at := map[int]int{}
	for _, n := range nodes {
		n.ID, n.Distances = j.root(n.ID), nil
		n.MemoryBytes, n.HugepagesBytes = min(n.MemoryBytes, maxMemory), min(n.HugepagesBytes, maxMemory)
		if n.GPU == "" {
			over += max(n.MemoryBytes, 0)
		}
		if j.all().Contains(n.ID) {
			shared += max(n.MemoryBytes, 0)
		}
		i, ok := at[n.ID]
		if !ok {
			at[n.ID] = len(out)
			out = append(out, n)
			continue
		}
		one := &out[i]
		a, _ := cpuset.Parse(one.CPUs) // what cannot be read joined no nodes
		b, _ := cpuset.Parse(n.CPUs)
		one.CPUs = a.Union(b).String()
		one.MemoryBytes, one.HugepagesBytes = one.MemoryBytes+n.MemoryBytes, one.HugepagesBytes+n.HugepagesBytes
	}
	for i := range out {
		n := &out[i]
		n.Distances = make([]int, len(out))
		if m.TotalBytes > 0 && over > 0 && n.MemoryBytes > 0 && j.all().Contains(n.ID) {
			n.MemoryBytes -= share(min(over, shared), n.MemoryBytes, shared, true)
		}
	}
	for _, a := range nodes {
		for _, b := range nodes {
			least := &out[at[j.root(a.ID)]].Distances[at[j.root(b.ID)]]
			if d := distance(a.ID, b.ID); *least == 0 || d < *least {
				*least = d
			}
		}
	}
	return out
}

// members returns which nodes with memory are taken as one, by the ID that stands for them: the
// kernel accepts no node without memory in a cpuset.
func (j joints) members(nodes []inventory.NUMANode) map[int]cpuset.Set {
	out, empty, all := map[int]cpuset.Set{}, map[int]cpuset.Set{}, j.all()
	for _, n := range nodes {
		switch r := j.root(n.ID); {
		case !all.Contains(n.ID):
		case n.MemoryBytes > 0:
			out[r] = out[r].Union(cpuset.Of(n.ID))
		default:
			empty[r] = empty[r].Union(cpuset.Of(n.ID))
		}
	}
	for r, ids := range empty {
		if out[r].Len() == 0 { // only the sum of all nodes is known
			out[r] = ids
		}
	}
	return out
}

// topologyAuthor says who a machine's NUMA nodes come from.
func (in splitInput) topologyAuthor() string {
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
		key := c.ID
		if c.Core >= 0 {
			key = c.Core
		}
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
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
	for n, of := range packagesOf {
		if of.Len() > 1 && (node < 0 || n < node) && slices.ContainsFunc(of.Ints(), func(p int) bool { return nodes[p].Len() > 1 }) {
			node, packages = n, of
		}
	}
	return node, packages, node >= 0
}
