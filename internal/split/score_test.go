package split

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
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

func rate(in Input, r Result) (s score) {
	byID := cpusByID(in)
	distance := distances(in.Memory.Nodes, func(id int) int { return id })
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
			if caches[[2]int{c.Package, c.L3}] = true; known(gpu) {
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

// serverMachine makes a machine as servers with GPUs are: alike packages and nodes, with GPUs in
// equal numbers on each node, on some, on one or on none that is known.
func serverMachine(r *rand.Rand) Input {
	pick := func(n ...int) int { return n[r.IntN(len(n))] }
	m := machine{
		packages: pick(1, 2, 2, 2, 4), nodesPerPackage: pick(1, 1, 2, 4), coresPerNode: pick(8, 12, 16, 18, 24, 28, 32, 48),
		smt: pick(1, 2, 2), coresPerL3: pick(0, 0, 3, 4, 6, 8), numbering: r.IntN(3),
		virt: r.IntN(8) == 0, nodeGiB: int64(pick(64, 128, 256, 512)),
	}
	nodes, gpus := m.packages*m.nodesPerPackage, pick(2, 3, 4, 4, 5, 6, 8, 8, 8, 10, 12, 16)
	switch r.IntN(6) {
	case 0:
		m.gpuNodes = slices.Repeat([]int{r.IntN(nodes)}, gpus)
	case 1:
		m.gpuNodes = slices.Repeat([]int{-1}, gpus)
	case 2:
		for range gpus {
			m.gpuNodes = append(m.gpuNodes, r.IntN(nodes))
		}
	default:
		m.gpuNodes = partitions(gpus, nodes)
		if r.IntN(3) == 0 {
			slices.Reverse(m.gpuNodes)
		}
	}
	in := m.input()
	switch r.IntN(8) {
	case 0: // isolated or reserved CPUs
		for range 1 + r.IntN(8) {
			in.CPU.List[r.IntN(len(in.CPU.List))].Allowed = false
		}
	case 1: // SMT partly offline
		for range 1 + r.IntN(6) {
			takeOffline(&in, in.CPU.List[r.IntN(len(in.CPU.List))].ID)
		}
	case 2: // a package with fewer cores
		for i := range in.CPU.List {
			c := &in.CPU.List[i]
			c.Allowed = c.Package > 0 || c.Core%4 != 3
		}
	case 3: // a node without memory
		in.Memory.Nodes[r.IntN(len(in.Memory.Nodes))].MemoryBytes = 0
	case 4: // a node without CPUs
		if n := r.IntN(len(in.Memory.Nodes)); nodes > 1 {
			to := in.Memory.Nodes[(n+1)%nodes].ID
			in.Memory.Nodes[n].CPUs = ""
			for i := range in.CPU.List {
				if in.CPU.List[i].NUMANode == in.Memory.Nodes[n].ID {
					in.CPU.List[i].NUMANode = to
				}
			}
		}
	}
	return in
}

// TestSplitScores keeps the splits of servers as good as they are. Another split may only be better.
func TestSplitScores(t *testing.T) {
	t.Parallel()
	var sum score
	for seed := range uint64(300) {
		in := serverMachine(rand.New(rand.NewPCG(seed, 11)))
		got, err := Machine(in)
		if err != nil {
			continue
		}
		s := rate(in, got)
		sum.Threads, sum.Local, sum.OnNode, sum.Memory = sum.Threads+s.Threads, sum.Local+s.Local, sum.OnNode+s.OnNode, sum.Memory+s.Memory
		sum.Distance, sum.SharedCaches = sum.Distance+s.Distance, sum.SharedCaches+s.SharedCaches
		sum.Caches, sum.MemoryNodes = sum.Caches+s.Caches, sum.MemoryNodes+s.MemoryNodes
	}
	want := score{Threads: 6088, Local: 1588, OnNode: 1401, Distance: 296508, SharedCaches: 402, Caches: 4406, MemoryNodes: 2444, Memory: 42131645}
	if sum.Threads < want.Threads || sum.Local < want.Local || sum.OnNode < want.OnNode || sum.Memory < want.Memory ||
		sum.Distance > want.Distance || sum.SharedCaches > want.SharedCaches || sum.Caches > want.Caches || sum.MemoryNodes > want.MemoryNodes {
		t.Errorf("the splits score\n%+v, worse than\n%+v", sum, want)
	}
}

func TestAssign(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		far  [][]int
		rank []int
		want []int
	}{
		"few choices first":       {[][]int{{0, 0, 9}, {9, 0, 0}, {0, 9, 9}}, []int{0, 0, 0}, []int{1, 2, 0}},
		"those who can be near":   {[][]int{{0, 5, 5, 5}, {0, 5, 5, 5}, {9, 0, 0, 9}}, []int{0, 0, 1, 0}, []int{0, 3, 1}},
		"in order where all fits": {[][]int{{0, 0}, {0, 0}}, []int{1, 0}, []int{0, 1}},
	} {
		if got := assign(tt.far, tt.rank); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
