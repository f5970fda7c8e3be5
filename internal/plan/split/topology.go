package split

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// physCore is a core that a slot can have, with all its threads.
type physCore struct {
	cpus               []int // ascending
	pkg, node, die, l3 int   // -1 where unknown
	socket             int   // the package, where pkg is a NUMA node with cores of several; else 0
	// pair is equal for cores that must not go to different slots: the lowest CPU
	// of the core, or of the two CPUs that a hypervisor may have put on one core.
	pair int
}

// cpuPackage is a package, or a NUMA node if packages are unknown or say nothing, with at
// least one core. Cores that share a node or a cache are adjacent.
type cpuPackage struct {
	id    int
	cores []physCore
	nodes []int // of the cores, ascending
}

// coreKind distinguishes cores that would make slots unequal: those of another
// microarchitecture, capacity or number of threads.
type coreKind struct {
	name            string // as inventory.LogicalCPU.Kind
	capacity, width int
}

// newSplitter reads the machine in the terms of the split.
func newSplitter(in Input) (*splitter, error) {
	s := &splitter{in: in}
	s.in.CPU.List, s.in.GPUs = slices.Clone(in.CPU.List), slices.Clone(in.GPUs)
	for i := range s.in.CPU.List {
		if c := &s.in.CPU.List[i]; c.NUMANode < 0 && len(in.Memory.Nodes) == 1 {
			c.NUMANode = in.Memory.Nodes[0].ID
		}
	}
	s.mergeNodes()
	s.distance = distances(s.in.Memory.Nodes)
	s.ram = s.ramNodes()
	var allowed []int
	for _, c := range s.in.CPU.List {
		if c.Allowed {
			allowed = append(allowed, c.ID)
		}
	}
	s.allowed = cpuset.Of(allowed...)
	cores := s.wholeCores()
	if len(cores) == 0 {
		return nil, errors.New("no core has all its threads online and allowed; bring CPUs online (/sys/devices/system/cpu/cpu*/online) or widen the root cgroup's cpuset")
	}
	s.byNode = packagesUnknown(cores, in.Virt)
	node, packages, cut := cutPackage(cores)
	if cut && !s.byNode {
		s.warn("%s gives NUMA node %d cores of packages %s, and these packages cores of other nodes, too; slots follow the NUMA nodes",
			in.topologyAuthor(), node, packages)
	}
	if !s.byNode && (cut || in.Virt && packagesShareNode(cores)) {
		s.byNode = true
		for i := range cores {
			cores[i].socket = cores[i].pkg
		}
	}
	if s.byNode {
		for i := range cores {
			cores[i].pkg = cores[i].node
		}
	}
	if in.Virt && s.width == 1 {
		pairUp(cores)
	}
	slices.SortFunc(cores, func(a, b physCore) int {
		return cmp.Or(a.pkg-b.pkg, a.node-b.node, a.socket-b.socket, a.die-b.die, a.l3-b.l3, a.cpus[0]-b.cpus[0])
	})
	s.total = len(cores)
	for _, run := range runs(cores, func(c physCore) [3]int { return [3]int{c.pkg} }) {
		p := cpuPackage{id: run[0].pkg, cores: run}
		for _, c := range run {
			p.nodes = append(p.nodes, c.node)
		}
		p.nodes = slices.Compact(p.nodes)
		s.packages = append(s.packages, p)
	}
	return s, nil
}

// wholeCores returns the cores that can go to slots: complete ones of the
// most common kind, or the fastest of equally common ones. It sets the width.
func (s *splitter) wholeCores() []physCore {
	kinds, capacity := map[coreKind][]physCore{}, capacities(s.in.CPU.List)
	var broken, other, between []int
	for _, threads := range byCore(s.in.CPU.List) {
		c := threads[0]
		core := physCore{pkg: c.Package, node: c.NUMANode, die: c.Die, l3: c.L3, pair: c.ID}
		for _, thread := range threads {
			core.cpus = append(core.cpus, thread.ID)
		}
		left := &broken
		switch nodes := nodesOfCore(threads); {
		case len(nodes) > 1:
			left = &between
		case len(nodes) == 1:
			core.node = nodes[0]
		}
		if left == &between || !complete(threads, core.cpus) {
			for _, thread := range threads {
				if thread.Allowed {
					*left = append(*left, thread.ID)
				}
			}
			continue
		}
		kind := coreKind{c.Kind, capacity[c.Kind][c.Capacity], len(threads)}
		kinds[kind] = append(kinds[kind], core)
	}
	var best coreKind
	for kind, cores := range kinds {
		if cmp.Or(len(cores)-len(kinds[best]), kind.capacity-best.capacity, kind.width-best.width, strings.Compare(kind.name, best.name)) > 0 {
			best = kind
		}
	}
	for kind, cores := range kinds {
		for _, c := range cores {
			if kind != best {
				other = append(other, c.cpus...)
			}
		}
	}
	if len(broken) > 0 {
		s.warn("CPUs %s stay with the system: another thread of their core is offline or not allowed", cpuset.Of(broken...))
	}
	if len(between) > 0 {
		s.warn("CPUs %s stay with the system: %s puts the threads of their cores on different NUMA nodes", cpuset.Of(between...), s.in.topologyAuthor())
	}
	if len(other) > 0 {
		s.warn("CPUs %s stay with the system: their cores differ from most", cpuset.Of(other...))
	}
	s.width = max(best.width, 1)
	return kinds[best]
}

// capacities returns, for each microarchitecture, the capacity to assume for each one
// reported. Favored cores have a few percent more than their neighbors, so only a gap of
// more than a tenth counts.
func capacities(cpus []inventory.LogicalCPU) map[string]map[int]int {
	lists := map[string][]int{}
	for _, c := range cpus {
		lists[c.Kind] = append(lists[c.Kind], c.Capacity)
	}
	topOf := map[string]map[int]int{}
	for name, list := range lists {
		slices.Sort(list)
		topOf[name] = map[int]int{}
		for i, top := len(list)-1, list[len(list)-1]; i >= 0; i-- {
			if i+1 < len(list) && list[i+1]-list[i] > list[i+1]/10 {
				top = list[i]
			}
			topOf[name][list[i]] = top
		}
	}
	return topOf
}

// complete reports whether these are all threads of a core and all allowed.
func complete(threads []inventory.LogicalCPU, ids []int) bool {
	for _, c := range threads {
		if !c.Allowed || c.Threads > len(threads) {
			return false
		}
		if slices.ContainsFunc(c.Siblings, func(id int) bool { return !slices.Contains(ids, id) }) {
			return false
		}
	}
	return true
}

// manyPackages is more packages than a machine has whose packages have one core each, unless
// it is a virtual one.
const manyPackages = 16

// packagesUnknown reports whether NUMA nodes must replace packages: the kernel
// does not number them, or a hypervisor, known or not, shows each core as one.
func packagesUnknown(cores []physCore, virt bool) bool {
	numbers := map[int]bool{}
	for _, c := range cores {
		if c.pkg < 0 {
			return true
		}
		numbers[c.pkg] = true
	}
	return (virt || len(cores) > manyPackages) && len(cores) > 1 && len(numbers) == len(cores)
}

// packagesShareNode reports whether a NUMA node has cores of several packages. In a virtual
// machine these are small sockets that mean nothing: memory is as near to all of a node.
func packagesShareNode(cores []physCore) bool {
	packages := map[int]int{} // a package of each node
	for _, c := range cores {
		if pkg, ok := packages[c.node]; ok && pkg != c.pkg {
			return true
		}
		packages[c.node] = c.pkg
	}
	return false
}

// pairUp makes the CPUs 2i and 2i+1 a pair, since hypervisors that hide SMT
// number siblings consecutively.
func pairUp(cores []physCore) {
	at := map[int]physCore{}
	for _, c := range cores {
		at[c.cpus[0]] = c
	}
	for i := range cores {
		c := &cores[i]
		o, ok := at[c.cpus[0]-1]
		if ok && c.cpus[0]%2 == 1 && o.pkg == c.pkg && o.node == c.node && o.die == c.die && o.l3 == c.l3 && o.socket == c.socket {
			c.pair = o.pair
		}
	}
}

// unpair drops the guess of pairUp, for machines too small for it. It reports whether
// there was one.
func (s *splitter) unpair() bool {
	paired := false
	for _, p := range s.packages {
		for i := range p.cores {
			c := &p.cores[i]
			paired = paired || c.pair != c.cpus[0]
			c.pair = c.cpus[0]
		}
	}
	return paired
}

// distances returns a function that looks up the NUMA distance of two nodes: 10 from a node to
// itself, and 20 if the firmware does not report it.
func distances(nodes []inventory.NUMANode) func(a, b int) int {
	reported := map[[2]int]int{}
	for _, a := range nodes {
		for j, b := range nodes {
			if j < len(a.Distances) && a.Distances[j] > 0 {
				reported[[2]int{a.ID, b.ID}] = min(a.Distances[j], 1000)
			}
		}
	}
	return func(a, b int) int {
		if a == b {
			return 10
		}
		return cmp.Or(reported[[2]int{a, b}], 20)
	}
}

// runs cuts a list, of cores or of caches, where key changes.
func runs[T any](list []T, key func(T) [3]int) [][]T {
	var out [][]T
	start := 0
	for end := 1; end <= len(list); end++ {
		if end == len(list) || key(list[end]) != key(list[start]) {
			out = append(out, list[start:end:end])
			start = end
		}
	}
	return out
}

func (s *splitter) packageWord() string {
	if s.byNode {
		return "NUMA node"
	}
	return "package"
}
