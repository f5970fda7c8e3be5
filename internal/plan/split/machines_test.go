package split

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// randomMachine makes any machine that a server could be, with what goes wrong on
// servers: CPUs offline or taken away, GPUs anywhere, memory uneven or missing.
func randomMachine(r *rand.Rand) Input {
	pick := func(n ...int) int { return n[r.IntN(len(n))] }
	m := machine{
		packages: 1 + r.IntN(8), nodesPerPackage: pick(1, 1, 1, 2, 4), coresPerNode: 1 + r.IntN(24),
		smt: pick(1, 2, 2, 4), coresPerL3: pick(0, 0, 2, 3, 4, 8), numbering: r.IntN(3),
		virt: r.IntN(4) == 0, nodeGiB: int64(pick(1, 4, 64, 1024)),
	}
	nodes := m.packages * m.nodesPerPackage
	if r.IntN(3) == 0 {
		for id := r.IntN(3); len(m.nodeIDs) < nodes; id += 1 + r.IntN(9) {
			m.nodeIDs = append(m.nodeIDs, id)
		}
		r.Shuffle(nodes, func(i, j int) { m.nodeIDs[i], m.nodeIDs[j] = m.nodeIDs[j], m.nodeIDs[i] })
	}
	for range 1 + r.IntN(pick(1, 8, 8, 16)) {
		node := r.IntN(nodes + 1)
		switch {
		case node == nodes || r.IntN(8) == 0:
			node = -1
		case m.nodeIDs != nil:
			node = m.nodeIDs[node]
		}
		m.gpuNodes = append(m.gpuNodes, node)
	}
	in := m.input()

	for range pick(0, 0, 1, 1+r.IntN(len(in.CPU.List))) { // CPUs that are not allowed
		in.CPU.List[r.IntN(len(in.CPU.List))].Allowed = false
	}
	for range pick(0, 0, 1, 5) { // CPUs that are offline
		if len(in.CPU.List) > 1 {
			takeOffline(&in, in.CPU.List[r.IntN(len(in.CPU.List))].ID)
		}
	}
	for i := range in.Memory.Nodes {
		n := &in.Memory.Nodes[i]
		switch r.IntN(12) {
		case 0:
			n.MemoryBytes = 0
		case 1:
			n.MemoryBytes /= 8
		case 2:
			n.HugepagesBytes = n.MemoryBytes / 4
		}
	}
	if r.IntN(4) == 0 { // memory of GPUs and of no one
		top := slices.MaxFunc(in.Memory.Nodes, func(a, b inventory.NUMANode) int { return a.ID - b.ID }).ID
		for i := range in.GPUs {
			in.GPUs[i].MemoryNode = top + 1 + i
			in.Memory.Nodes = append(in.Memory.Nodes, inventory.NUMANode{ID: top + 1 + i, MemoryBytes: 96 << 30, GPU: "0000:01:00.0"})
		}
		in.Memory.Nodes = append(in.Memory.Nodes, inventory.NUMANode{ID: top + 99, MemoryBytes: 512 << 30})
	}
	if r.IntN(4) == 0 {
		in.CPUsPerSlot = 1 + r.IntN(12)
	}
	if r.IntN(4) == 0 {
		in.ReserveCPUs = 1 + r.IntN(12)
	}
	if r.IntN(6) == 0 {
		in.ReserveMemory = 1 + r.Int64N(in.Memory.TotalBytes)
	}
	if r.IntN(6) == 0 {
		in.MemoryPerSlot = 1 + r.Int64N(in.Memory.TotalBytes/int64(len(in.GPUs)))
	}
	return in
}

// takeOffline removes a CPU the way the kernel does: its siblings forget it.
func takeOffline(in *Input, id int) {
	in.CPU.List = slices.DeleteFunc(in.CPU.List, func(c inventory.LogicalCPU) bool { return c.ID == id })
	for i := range in.CPU.List {
		c := &in.CPU.List[i]
		left := slices.DeleteFunc(slices.Clone(c.Siblings), func(s int) bool { return s == id })
		if len(left) < len(c.Siblings) {
			c.Siblings, c.Core = left, left[0]
		}
	}
}

// TestSplitRandomMachines checks what holds for any machine, and keeps the splits as good as they are:
// others may only be better.
func TestSplitRandomMachines(t *testing.T) {
	t.Parallel()
	done, refused := 0, map[string]int{}
	var sum score
	for seed := range uint64(800) {
		in := randomMachine(rand.New(rand.NewPCG(seed, 1)))
		got, err := Machine(in)
		if err != nil {
			checkRefusal(t, in, err)
			refused[strings.SplitN(err.Error(), " ", 2)[0]]++
			continue
		}
		done++
		checkInvariants(t, in, got)
		sum.add(rate(in, got))
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, render(got))
		}
	}
	t.Logf("%d split, refused %v", done, refused)
	if done < 400 {
		t.Errorf("only %d machines were split: the generator tests too little", done)
	}
	want := score{Threads: 14665, Local: 1614, OnNode: 1250, Distance: 346026, SharedCaches: 307, Caches: 5413, MemoryNodes: 3780, Memory: 107462725}
	if sum.worse(want) {
		t.Errorf("the splits score\n%+v, worse than\n%+v", sum, want)
	}
}

// TestSplitNonsense feeds machines that contradict themselves, as a bug report
// may. Any answer will do that gives no CPU to two slots.
func TestSplitNonsense(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 3))
		in := randomMachine(r)
		odd := func() int { return []int{-5, -1, 0, 1, 2, 7, 8191, 8192, 1 << 40}[r.IntN(9)] }
		for range 1 + r.IntN(12) {
			c := &in.CPU.List[r.IntN(len(in.CPU.List))]
			n := &in.Memory.Nodes[r.IntN(len(in.Memory.Nodes))]
			fields := []*int{&c.Package, &c.Die, &c.L3, &c.Threads, &c.NUMANode, &c.Capacity, &in.GPUs[0].NUMANode, &in.GPUs[0].MemoryNode}
			*fields[r.IntN(len(fields))] = odd()
			switch r.IntN(6) {
			case 0:
				c.Siblings = []int{odd(), odd()}
			case 1:
				n.Distances = []int{odd()}
			case 2:
				n.CPUs = []string{"", "0-9", "x", "0-8191"}[r.IntN(4)]
			}
		}
		got, err := Machine(in)
		if err != nil {
			continue
		}
		taken := got.ReservedCPUs
		for i, b := range got.Blocks {
			if !taken.Disjoint(b.CPUs) || b.CPUs.Len() == 0 || b.CPUs.Len() != got.Blocks[0].CPUs.Len() {
				t.Fatalf("seed %d: slot %d\n%s", seed, i, render(got))
			}
			taken = taken.Union(b.CPUs)
		}
	}
}

// checkRefusal checks that a machine is refused for a reason and with advice.
func checkRefusal(t *testing.T, in Input, err error) {
	t.Helper()
	for _, advice := range []string{"--gpus", "--gpu-count", "--cpus-per-slot", "--memory-per-slot", "--reserve-memory", "bring CPUs online", "check /proc/meminfo"} {
		if strings.Contains(err.Error(), advice) {
			return
		}
	}
	t.Errorf("%d GPUs: the refusal gives no advice: %v", len(in.GPUs), err)
}

func BenchmarkSplit(b *testing.B) {
	for _, bench := range []struct {
		name  string
		slots int
	}{{"1 slot", 1}, {"8 slots", 8}, {"64 slots", 64}} {
		b.Run(bench.name, func(b *testing.B) {
			in := machine{packages: 2, nodesPerPackage: 4, coresPerNode: 24, smt: 2, coresPerL3: 8, gpuNodes: partitions(bench.slots, 8)}.input()
			for b.Loop() {
				if _, err := Machine(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
