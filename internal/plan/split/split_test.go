package split

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
)

// machine describes a regular machine; input turns it into what inventory would read.
type machine struct {
	packages, nodesPerPackage, coresPerNode, smt int
	coresPerL3                                   int   // 0: one cache per package
	numbering                                    int   // of the CPUs: see id
	nodeIDs                                      []int // of the nodes, by package; nil counts up
	nodeGiB                                      int64 // 0: 64
	gpuNodes                                     []int
	virt                                         bool
}

const (
	siblingsApart    = iota // all first threads, then all second threads
	siblingsAdjacent        // 0,1 are one core
	packagesInTurn          // 0 on package 0, 1 on package 1, …, then the second threads
)

func (m machine) id(core, thread int) int {
	cores := m.packages * m.nodesPerPackage * m.coresPerNode
	switch m.numbering {
	case siblingsAdjacent:
		return core*m.smt + thread
	case packagesInTurn:
		perPackage := cores / m.packages
		return thread*cores + core%perPackage*m.packages + core/perPackage
	}
	return thread*cores + core
}

func (m machine) input() Input {
	in := Input{Virt: m.virt}
	nodes := m.packages * m.nodesPerPackage
	byID := map[int]inventory.LogicalCPU{}
	for n := range nodes {
		id := n
		if m.nodeIDs != nil {
			id = m.nodeIDs[n]
		}
		var members []int
		for c := n * m.coresPerNode; c < (n+1)*m.coresPerNode; c++ {
			pkg := n / m.nodesPerPackage
			var siblings []int
			for t := range m.smt {
				siblings = append(siblings, m.id(c, t))
			}
			firstOfL3 := pkg * m.nodesPerPackage * m.coresPerNode
			if m.coresPerL3 > 0 {
				firstOfL3 = c / m.coresPerL3 * m.coresPerL3
			}
			for _, cpu := range siblings {
				byID[cpu] = inventory.LogicalCPU{
					ID: cpu, Package: pkg, L3: m.id(firstOfL3, 0), Core: siblings[0], Siblings: siblings,
					Threads: m.smt, NUMANode: id, Allowed: true,
				}
			}
			members = append(members, siblings...)
		}
		in.Memory.Nodes = append(in.Memory.Nodes, inventory.NUMANode{
			ID: id, CPUs: cpuset.Of(members...).String(), MemoryBytes: cmp.Or(m.nodeGiB, 64) << 30,
		})
	}
	for i := range in.Memory.Nodes {
		in.Memory.TotalBytes += in.Memory.Nodes[i].MemoryBytes
		for j := range in.Memory.Nodes {
			d := 32
			if i == j {
				d = 10
			} else if i/m.nodesPerPackage == j/m.nodesPerPackage {
				d = 12
			}
			in.Memory.Nodes[i].Distances = append(in.Memory.Nodes[i].Distances, d)
		}
	}
	for id := range len(byID) {
		in.CPU.List = append(in.CPU.List, byID[id])
	}
	in.GPUs = gpusOn(m.gpuNodes...)
	return in
}

func gpusOn(nodes ...int) []GPU {
	var out []GPU
	for i, n := range nodes {
		out = append(out, GPU{NUMANode: n, MemoryNode: -1, Name: fmt.Sprintf("slot gpu%d", i)})
	}
	return out
}

func partitions(n, nodes int) []int {
	var out []int
	for i := range n {
		out = append(out, i*nodes/n)
	}
	return out
}

func mustSplit(t *testing.T, in Input) Result {
	t.Helper()
	got, err := Machine(in)
	must.Do(t, err)
	return got
}

func render(r Result) string {
	var b strings.Builder
	for i, blk := range r.Blocks {
		fmt.Fprintf(&b, "%d: cpus %s mems %s memory %d MiB\n", i, blk.CPUs, blk.MemoryNodes, blk.MemoryBytes>>20)
	}
	fmt.Fprintf(&b, "reserved %s, %d MiB\n", r.ReservedCPUs, r.ReservedMemory>>20)
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

// packagesOn returns the packages with a CPU on a node that is allowed together
// with all its siblings.
func packagesOn(in Input, node int) map[int]bool {
	byID, out := cpusByID(in), map[int]bool{}
	for _, c := range in.CPU.List {
		whole := c.Threads == len(c.Siblings)
		for _, s := range c.Siblings {
			whole = whole && byID[s].Allowed
		}
		if whole && c.NUMANode == node {
			out[c.Package] = true
		}
	}
	return out
}

func cpusByID(in Input) map[int]inventory.LogicalCPU {
	byID := map[int]inventory.LogicalCPU{}
	for _, c := range in.CPU.List {
		byID[c.ID] = c
	}
	return byID
}

// checkInvariants checks what holds for every split of every machine.
func checkInvariants(t *testing.T, in Input, r Result) {
	t.Helper()
	if len(r.Blocks) != len(in.GPUs) {
		t.Fatalf("%d blocks for %d GPUs", len(r.Blocks), len(in.GPUs))
	}
	byID := cpusByID(in)
	var allowed []int
	for _, c := range in.CPU.List {
		if c.Allowed {
			allowed = append(allowed, c.ID)
		}
	}
	type reach struct {
		nodes cpuset.Set
		bytes int64
	}
	warned := slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "than the GPU") })
	var taken cpuset.Set
	var demands []reach
	for i, b := range r.Blocks {
		if !taken.Disjoint(b.CPUs) {
			t.Errorf("slot %d shares CPUs %s", i, taken.Intersect(b.CPUs))
		}
		taken = taken.Union(b.CPUs)
		if b.CPUs.Len() == 0 || b.CPUs.Len() != r.Blocks[0].CPUs.Len() || b.MemoryBytes != r.Blocks[0].MemoryBytes {
			t.Errorf("slot %d is not of the size of slot 0", i)
		}
		if b.MemoryBytes < MinMemory || b.MemoryBytes%mib != 0 {
			t.Errorf("slot %d has %d bytes", i, b.MemoryBytes)
		}
		if b.MemoryNodes.Len() == 0 {
			t.Errorf("slot %d has no memory node", i)
		}
		packages := map[int]bool{}
		for _, id := range b.CPUs.Ints() {
			c := byID[id]
			packages[c.Package] = true
			if !c.Allowed || c.Threads > len(c.Siblings) {
				t.Errorf("slot %d has CPU %d, whose core is not whole or not allowed", i, id)
			}
			for _, s := range c.Siblings {
				if !b.CPUs.Contains(s) {
					t.Errorf("slot %d has CPU %d without its sibling %d", i, id, s)
				}
			}
		}
		if len(packages) != 1 && !in.Virt {
			t.Errorf("slot %d is on packages %v", i, packages)
		}
		if home := packagesOn(in, in.GPUs[i].NUMANode); !warned && !in.Virt && len(home) > 0 && !home[byID[b.CPUs.Ints()[0]].Package] {
			t.Errorf("slot %d is not on its GPU's package, and no warning says so", i)
		}
		own := cpuset.Of(in.GPUs[i].MemoryNode)
		demands = append(demands, reach{b.MemoryNodes.Difference(own), b.MemoryBytes})
	}
	if want := cpuset.Of(allowed...).Difference(taken); !want.Equal(r.ReservedCPUs) {
		t.Errorf("reserved %s, want %s", r.ReservedCPUs, want)
	}
	if r.ReservedCPUs.Len() < in.ReserveCPUs {
		t.Errorf("reserved %s, want %d CPUs", r.ReservedCPUs, in.ReserveCPUs)
	}
	if in.CPUsPerSlot > 0 && r.Blocks[0].CPUs.Len() != in.CPUsPerSlot {
		t.Errorf("slots have %d CPUs, %d were asked for", r.Blocks[0].CPUs.Len(), in.CPUsPerSlot)
	}

	// The slots that are bound to a set of nodes fit on it together, for the
	// node sets of every slot and of every two slots.
	room := map[int]int64{}
	var all, nodes int64
	for _, n := range in.Memory.Nodes {
		if n.CPUs != "" {
			room[n.ID] = n.MemoryBytes - n.HugepagesBytes
			all, nodes = all+room[n.ID], nodes+1
		}
	}
	if all == 0 { // only the sum is known
		for _, n := range in.Memory.Nodes {
			if n.CPUs != "" {
				room[n.ID] = in.Memory.TotalBytes / nodes
				all += room[n.ID]
			}
		}
	}
	if r.ReservedMemory < in.ReserveMemory {
		t.Errorf("%d bytes are reserved, want %d", r.ReservedMemory, in.ReserveMemory)
	}
	for i := range demands {
		for j := i; j < len(demands); j++ {
			within := demands[i].nodes.Union(demands[j].nodes)
			var need, has int64
			for _, d := range demands {
				if d.nodes.Difference(within).Len() == 0 {
					need += d.bytes
				}
			}
			for _, n := range within.Ints() {
				if room[n] == 0 {
					t.Errorf("slots are bound to node %d, which has no memory for them", n)
				}
				has += room[n]
			}
			if in.ReserveMemory > 0 {
				has -= int64(float64(in.ReserveMemory) * float64(has) / float64(all) * 0.999)
			}
			if need > has {
				t.Errorf("slots on nodes %s may use %d bytes of %d", within, need, has)
			}
		}
	}
}

// TestIdleCaches checks that slots do not share a quarter of a package's cores less for caches of their own while
// they have fewer cores than the guide recommends.
func TestIdleCaches(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ slots, cores, cache, want int }{ // cores of a package, of a cache, of a slot
		{12, 56, 7, 8},
		{12, 112, 14, 18},
		{6, 32, 8, 10},
		{12, 56, 8, 8},  // a cache for each, and one for the system
		{8, 56, 7, 13},  // two caches for each
		{16, 64, 8, 7},  // no cache is idle
		{6, 64, 8, 16},  // as many as the guide recommends
		{8, 64, 16, 15}, // no cache is idle
	} {
		m := onTwo(tt.cores, append(gpusAt(0, tt.slots/2), gpusAt(1, tt.slots/2)...)...)
		m.coresPerL3 = tt.cache
		got, err := Machine(m.input())
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		for _, b := range got.Blocks {
			if b.CPUs.Len() != 2*tt.want {
				t.Errorf("%+v: a slot has %d cores", tt, b.CPUs.Len()/2)
				break
			}
		}
	}
}
