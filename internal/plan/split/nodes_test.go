package split

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// onNodes puts the CPUs of a machine on these NUMA nodes instead of its own.
func onNodes(gib int64, lists ...string) func(*Input) {
	return func(in *Input) {
		in.Memory = inventory.Memory{}
		for id, list := range lists {
			n := inventory.NUMANode{ID: id, CPUs: list, MemoryBytes: gib << 30}
			for other := range lists {
				n.Distances = append(n.Distances, map[bool]int{true: 10, false: 20}[id == other])
			}
			in.Memory.Nodes = append(in.Memory.Nodes, n)
			in.Memory.TotalBytes += n.MemoryBytes
			cpus, _ := cpuset.Parse(list)
			for i := range in.CPU.List {
				if cpus.Contains(in.CPU.List[i].ID) {
					in.CPU.List[i].NUMANode = id
				}
			}
		}
	}
}

// adjacent is a machine whose siblings are numbered in a row, as hypervisors do.
func adjacent(packages, cores int, gpuNodes ...int) machine {
	return machine{packages: packages, nodesPerPackage: 1, coresPerNode: cores, smt: 2, numbering: siblingsAdjacent, gpuNodes: gpuNodes, virt: true}
}

// sockets is a virtual machine of one thread a core.
func sockets(packages, cores int, gpuNodes ...int) machine {
	return machine{packages: packages, nodesPerPackage: 1, coresPerNode: cores, smt: 1, gpuNodes: gpuNodes, virt: true}
}

func fourEach() []int { return []int{0, 0, 0, 0, 1, 1, 1, 1} }

// TestSplitNodes splits machines whose NUMA nodes contradict their packages, their cores or
// each other.
func TestSplitNodes(t *testing.T) {
	t.Parallel()
	physical := func(m machine) machine { m.virt = false; return m }
	for _, tt := range []struct {
		name     string
		machine  machine
		change   func(*Input)
		cores    int
		onNode   bool   // all slots have only CPUs of their GPU's node
		mems     string // of all slots; "" for the node of its GPU
		memory   int64  // GiB of each slot, at least
		most     int64  // GiB of each slot; 0 for any
		packages bool   // each slot is within a package
		warning  string
	}{
		{ // hwloc#712: a KVM guest
			name: "nodes that cut sockets", machine: adjacent(2, 32, fourEach()...), change: onNodes(350, "0-31,64-95", "32-63,96-127"),
			cores: 7, onNode: true, memory: 80, packages: true,
			warning: "the hypervisor gives NUMA node 0 cores of packages 0-1",
		},
		{
			name: "nodes that cut sockets unevenly", machine: physical(adjacent(2, 32, fourEach()...)), change: onNodes(350, "0-79", "80-127"),
			cores: 5, onNode: true, memory: 80, packages: true, warning: "the firmware gives NUMA node 0 cores of packages 0-1",
		},
		{name: "one slot for two parts of a node", machine: adjacent(2, 32, 1), change: onNodes(350, "0-31,64-95", "32-63,96-127"), cores: 31, onNode: true, memory: 300, warning: "cores of packages 0-1"},
		{
			name: "siblings on different nodes", machine: adjacent(2, 16, fourEach()...), change: onNodes(64, evenCPUs(0, 64), evenCPUs(1, 64)),
			cores: 3, mems: "0-1", memory: 14, packages: true,
			warning: "the hypervisor puts the threads of a core on different NUMA nodes; all",
		},
		{
			name: "one core between two nodes", machine: adjacent(2, 16, fourEach()...), change: onNodes(64, "0-32", "33-63"),
			cores: 3, onNode: true, memory: 14, packages: true,
			warning: "CPUs 32-33 stay with the system: the hypervisor puts the threads of their cores on different NUMA nodes",
		},
		{
			name: "a node within another", machine: machine{packages: 1, nodesPerPackage: 1, coresPerNode: 16, smt: 1, gpuNodes: fourEach()}, change: onNodes(8, "0-15", "15"),
			cores: 1, mems: "0-1", memory: 1, warning: "lists CPUs 15 in several NUMA nodes",
		},
		{
			name: "of two overlapping nodes one has no memory", machine: machine{packages: 1, nodesPerPackage: 1, coresPerNode: 16, smt: 1, gpuNodes: fourEach()},
			change: func(in *Input) { onNodes(16, "0-15", "0-15")(in); in.Memory.Nodes[0].MemoryBytes = 0 },
			cores:  1, mems: "1", memory: 1, warning: "in several NUMA nodes",
		},
		{
			name: "two nodes with the same CPUs and the same memory", machine: machine{packages: 1, nodesPerPackage: 1, coresPerNode: 16, smt: 1, gpuNodes: fourEach()},
			change: func(in *Input) { onNodes(16, "0-15", "0-15")(in); in.Memory.TotalBytes /= 2 },
			cores:  1, mems: "0-1", memory: 1, most: 2, warning: "in several NUMA nodes",
		},
		{name: "nodes that overlap in CPUs that do not run", machine: onTwo(16, fourEach()...), change: onNodes(64, "0-15,32-47,64", "16-31,48-63,64"), cores: 3, onNode: true, memory: 14, packages: true},
		{
			name: "a node of GPUs without CPUs", machine: adjacent(2, 32, fourEach()...), change: onNodes(230, "0-127", ""),
			cores: 7, mems: "0-1", memory: 50, packages: true, warning: "the hypervisor gives NUMA nodes of GPUs no CPUs (1)",
		},
		{
			name: "a third node, without CPUs", machine: adjacent(2, 32, 0, 0, 0, 0, 2, 2, 2, 2), change: onNodes(230, "0-63", "64-127", ""),
			cores: 7, memory: 50, packages: true, warning: "the hypervisor gives NUMA nodes of GPUs no CPUs (2)",
		},
		{
			name: "nodes within sockets", machine: machine{packages: 2, nodesPerPackage: 2, coresPerNode: 16, smt: 2, numbering: siblingsAdjacent, gpuNodes: []int{0, 0, 1, 1, 2, 2, 3, 3}}, change: func(*Input) {},
			cores: 7, onNode: true, memory: 30, packages: true,
		},
		{name: "small sockets that the hypervisor makes up", machine: sockets(16, 2, 0), change: onNodes(64, "0-31"), cores: 30, onNode: true, memory: 50},
		{name: "small sockets with threads", machine: adjacent(8, 2, 0), change: onNodes(64, "0-31"), cores: 14, onNode: true, memory: 50},
		{name: "small sockets of several slots", machine: sockets(8, 4, 0, 0), change: onNodes(64, "0-31"), cores: 15, onNode: true, memory: 20},
		{name: "small sockets on two nodes", machine: sockets(8, 4, 0, 1), change: onNodes(64, "0-15", "16-31"), cores: 15, onNode: true, memory: 50},
		{name: "one socket for each slot", machine: sockets(2, 16, 0, 0), change: onNodes(64, "0-31"), cores: 15, onNode: true, memory: 20, packages: true},
		{name: "each core a socket of a machine that is not known to be virtual", machine: physical(sockets(32, 1, 0)), change: onNodes(64, "0-31"), cores: 30, onNode: true, memory: 50},
		{name: "sockets of a physical machine", machine: physical(sockets(2, 16, 0)), change: onNodes(64, "0-31"), cores: 16, onNode: true, memory: 50, packages: true},
		{
			name: "a GPU's memory that lists CPUs", machine: onTwo(16, fourEach()...),
			change: func(in *Input) {
				in.Memory.Nodes = append(in.Memory.Nodes, inventory.NUMANode{ID: 5, CPUs: "0-3", MemoryBytes: 96 << 30, GPU: "0000:01:00.0"})
			},
			cores: 3, onNode: true, memory: 14, packages: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := tt.machine.input()
			tt.change(&in)
			got := mustSplit(t, in)
			warnings := strings.Join(got.Warnings, "\n")
			if !strings.Contains(warnings, tt.warning) || tt.warning == "" && warnings != "" || strings.Contains(warnings, "does not report") {
				t.Errorf("warnings are %q, want %q", warnings, tt.warning)
			}
			checkNodes(t, in, got, tt.onNode, tt.packages)
			for i, b := range got.Blocks {
				if n := b.CPUs.Len() / tt.machine.smt; n != tt.cores {
					t.Errorf("slot %d has %d cores, want %d", i, n, tt.cores)
				}
				if b.MemoryBytes < tt.memory<<30 {
					t.Errorf("slot %d has %d bytes, want %d GiB", i, b.MemoryBytes, tt.memory)
				}
				if tt.most > 0 && b.MemoryBytes > tt.most<<30 {
					t.Errorf("slot %d has %d bytes, want at most %d GiB", i, b.MemoryBytes, tt.most)
				}
				want := tt.mems
				if tt.onNode {
					want = cpuset.Of(in.GPUs[i].NUMANode).String()
				}
				if want != "" && b.MemoryNodes.String() != want {
					t.Errorf("slot %d has memory of nodes %s, want %s", i, b.MemoryNodes, want)
				}
			}
			if t.Failed() {
				t.Log(render(got))
			}
		})
	}
}

// evenCPUs lists every second of n CPUs.
func evenCPUs(from, n int) string {
	var ids []int
	for id := from; id < n; id += 2 {
		ids = append(ids, id)
	}
	return cpuset.Of(ids...).String()
}

// checkNodes checks what a split must be on any machine, and that slots are on the nodes of
// their GPUs and within a package.
func checkNodes(t *testing.T, in Input, got Result, onNode, packages bool) {
	t.Helper()
	byID := cpusByID(in)
	taken := got.ReservedCPUs
	for i, b := range got.Blocks {
		if !taken.Disjoint(b.CPUs) || b.CPUs.Len() == 0 || b.CPUs.Len() != got.Blocks[0].CPUs.Len() {
			t.Errorf("slot %d has CPUs %s", i, b.CPUs)
		}
		taken = taken.Union(b.CPUs)
		on := map[int]bool{}
		for _, id := range b.CPUs.Ints() {
			c := byID[id]
			on[c.Package] = true
			if onNode && c.NUMANode != in.GPUs[i].NUMANode {
				t.Errorf("slot %d has CPU %d of node %d", i, id, c.NUMANode)
			}
			if b.CPUs.Intersect(cpuset.Of(c.Siblings...)).Len() != len(c.Siblings) {
				t.Errorf("slot %d has CPU %d without a sibling", i, id)
			}
		}
		if packages && len(on) != 1 {
			t.Errorf("slot %d is on packages %v", i, on)
		}
	}
}
