package split

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

func gpusAt(node, n int) []int { return slices.Repeat([]int{node}, n) }

// onTwo is a common server: 2 packages of n cores with two threads each.
func onTwo(n int, gpuNodes ...int) machine {
	return machine{packages: 2, nodesPerPackage: 1, coresPerNode: n, smt: 2, gpuNodes: gpuNodes}
}

// TestSplitCases pins what irregular machines get.
func TestSplitCases(t *testing.T) {
	t.Parallel()
	small := onTwo(4, 0, 0, 1, 1)
	for _, tt := range []struct {
		name     string
		machine  machine
		change   func(*Input)
		cpus     []string // of each slot
		reserved string
		mems     []string // of each slot; nil for any
		memory   int64    // MiB of each slot; 0 for any
		warnings []string // a part of each, in order
	}{
		{name: "two slots on each package", machine: small, cpus: []string{"2,10", "3,11", "6,14", "7,15"}, reserved: "0-1,4-5,8-9,12-13", mems: []string{"0", "0", "1", "1"}, memory: 31129},
		{name: "as many slots as cores", machine: onTwo(2, 0, 0, 1, 1), cpus: []string{"0,4", "1,5", "2,6", "3,7"}, reserved: "", warnings: []string{"the slots take every CPU"}},
		{
			name: "an offline sibling", machine: small,
			change: func(in *Input) { takeOffline(in, 15); setThreads(in, 7, 0) },
			cpus:   []string{"2,10", "3,11", "5,13", "6,14"}, reserved: "0-1,4,7-9,12",
			warnings: []string{"CPUs 7 stay with the system: their cores differ from most"},
		},
		{
			name: "an offline sibling that the kernel still counts", machine: small,
			change: func(in *Input) { takeOffline(in, 15) },
			cpus:   []string{"2,10", "3,11", "5,13", "6,14"}, reserved: "0-1,4,7-9,12",
			warnings: []string{"CPUs 7 stay with the system: another thread"},
		},
		{
			name: "a sibling that is not allowed", machine: small,
			change: func(in *Input) { in.CPU.List[3].Allowed = false },
			cpus:   []string{"1,9", "2,10", "6,14", "7,15"}, reserved: "0,4-5,8,11-13",
			warnings: []string{"CPUs 11 stay with the system: another thread"},
		},
		{
			name: "SMT switched off", machine: small,
			change: func(in *Input) {
				for id := 8; id < 16; id++ {
					takeOffline(in, id)
				}
				for id := range 8 {
					setThreads(in, id, 1)
				}
			},
			cpus: []string{"2", "3", "6", "7"}, reserved: "0-1,4-5",
		},
		{
			name: "a hybrid processor", machine: machine{packages: 1, nodesPerPackage: 1, coresPerNode: 12, smt: 1, gpuNodes: []int{0, 0}},
			change: func(in *Input) {
				for i := range in.CPU.List {
					in.CPU.List[i].Capacity = 512
					if i < 4 {
						in.CPU.List[i].Capacity = 1024
					}
				}
			},
			// The 4 fast cores are reserve enough, but one of the others stays free.
			cpus: []string{"6-8", "9-11"}, reserved: "0-5",
			warnings: []string{"CPUs 0-3 stay with the system: their cores differ from most"},
		},
		{name: "one GPU gets cores of its package only", machine: onTwo(4, 1), cpus: []string{"5-7,13-15"}, reserved: "0-4,8-12", mems: []string{"1"}},
		{
			name: "GPUs without a node are spread evenly", machine: onTwo(4, -1, -1, -1, -1),
			cpus: []string{"2,10", "3,11", "6,14", "7,15"}, reserved: "0-1,4-5,8-9,12-13",
			warnings: []string{"does not report the NUMA node of the GPU of slot gpu0, slot gpu1, slot gpu2, slot gpu3"},
		},
		{
			name: "one GPU without a node goes where there is room", machine: onTwo(4, 0, -1, 0),
			cpus: []string{"0-1,8-9", "6-7,14-15", "2-3,10-11"}, reserved: "4-5,12-13",
			warnings: []string{"does not report the NUMA node of the GPU of slot gpu1;"},
		},
		{name: "no warning about nodes where there is one", machine: machine{packages: 1, nodesPerPackage: 1, coresPerNode: 8, smt: 1, gpuNodes: []int{-1}}, cpus: []string{"2-7"}, reserved: "0-1"},
		{
			name: "a GPU on a node that does not exist", machine: onTwo(4, 0, 5),
			cpus: []string{"1-3,9-11", "5-7,13-15"}, reserved: "0,4,8,12",
			warnings: []string{"does not report the NUMA node of the GPU of slot gpu1"},
		},
		{
			name: "a GPU's package has no allowed CPUs", machine: machine{packages: 3, nodesPerPackage: 1, coresPerNode: 4, smt: 1, gpuNodes: []int{1, 2}},
			change: func(in *Input) {
				forbid(in, 4, 5, 6, 7)
				in.Memory.Nodes[1].Distances = []int{32, 10, 16}
			},
			cpus: []string{"8-9", "10-11"}, reserved: "0-3", mems: []string{"2", "2"},
			warnings: []string{"the NUMA node of the GPU of slot gpu0 has no CPUs for slots; they come from the nearest package"},
		},
		{
			name: "a GPU's node has no allowed CPUs but its package has", machine: machine{packages: 2, nodesPerPackage: 2, coresPerNode: 4, smt: 1, gpuNodes: []int{1, 3}},
			change: func(in *Input) { forbid(in, 4, 5, 6, 7) },
			cpus:   []string{"1-3", "13-15"}, reserved: "0,8-12", mems: []string{"0", "3"},
		},
		{
			name: "a package with fewer cores than GPUs", machine: onTwo(6, gpusAt(0, 4)...),
			change: func(in *Input) { forbid(in, 3, 4, 5) },
			cpus:   []string{"1-2,13-14", "6-7,18-19", "8-9,20-21", "10-11,22-23"}, reserved: "0,12,15-17",
			warnings: []string{"CPUs 15-17 stay with the system", "slot gpu1, slot gpu2, slot gpu3: the CPUs are on a different package"},
		},
		{
			name: "a virtual machine without a topology", machine: machine{packages: 16, nodesPerPackage: 1, coresPerNode: 1, smt: 1, gpuNodes: gpusAt(-1, 2), virt: true},
			change: func(in *Input) {
				in.Memory.Nodes = []inventory.NUMANode{{ID: 0, CPUs: "0-15", MemoryBytes: 8 << 30, Distances: []int{10}}}
				for i := range in.CPU.List {
					in.CPU.List[i].NUMANode = -1 // the only node does not list them
				}
			},
			cpus: []string{"2-8", "9-15"}, reserved: "0-1", memory: 3072,
		},
		{
			name: "GPU memory as nodes, and memory that is nobody's", machine: machine{packages: 2, nodesPerPackage: 1, coresPerNode: 8, smt: 1, nodeIDs: []int{0, 8}, gpuNodes: []int{8, 0}},
			change: func(in *Input) {
				in.GPUs[0].MemoryNode, in.GPUs[1].MemoryNode = 250, 251
				in.Memory.Nodes = append(in.Memory.Nodes,
					inventory.NUMANode{ID: 16, MemoryBytes: 512 << 30}, // CXL
					inventory.NUMANode{ID: 250, MemoryBytes: 96 << 30, GPU: "0004:04:00.0"},
					inventory.NUMANode{ID: 251, GPU: "0004:05:00.0"}) // not online
			},
			cpus: []string{"9-15", "1-7"}, reserved: "0,8", mems: []string{"8,250", "0"}, memory: 62259,
		},
		{
			name: "a node without memory", machine: onTwo(4, 0, 1),
			change: func(in *Input) { in.Memory.Nodes[1].MemoryBytes = 0 },
			cpus:   []string{"1-3,9-11", "5-7,13-15"}, reserved: "0,4,8,12", mems: []string{"0", "0"}, memory: 31130,
		},
		{
			name: "slots crowded on one node of a package", machine: machine{packages: 1, nodesPerPackage: 4, coresPerNode: 8, smt: 1, coresPerL3: 2, gpuNodes: gpusAt(3, 4)},
			change: func(in *Input) { in.CPUsPerSlot = 2 },
			cpus:   []string{"24-25", "26-27", "28-29", "30-31"}, reserved: "0-23",
			mems: []string{"0-3", "0-3", "0-3", "0-3"}, memory: 62256,
			warnings: []string{"slot gpu0, slot gpu1, slot gpu2, slot gpu3 may use the memory of NUMA nodes 0-3"},
		},
		{
			name: "much less memory on one node", machine: onTwo(4, 0, 1),
			change: func(in *Input) { in.Memory.Nodes[1].MemoryBytes = 8 << 30 },
			cpus:   []string{"1-3,9-11", "5-7,13-15"}, reserved: "0,4,8,12", mems: []string{"0", "1"}, memory: 7782,
			warnings: []string{"each slot has 7GiB of memory, although an even share would be 34GiB: NUMA node 1, where the CPUs of slot gpu1 are"},
		},
		{
			name: "huge pages", machine: onTwo(4, 0, 1),
			change: func(in *Input) { in.Memory.Nodes[0].HugepagesBytes = 32 << 30 },
			cpus:   []string{"1-3,9-11", "5-7,13-15"}, reserved: "0,4,8,12", memory: 31129,
		},
		{
			name: "a small machine for tests", machine: machine{packages: 2, nodesPerPackage: 1, coresPerNode: 8, smt: 1, gpuNodes: []int{0, 0, 0, 0, 1, 1, 1, 1}, virt: true},
			change: func(in *Input) {
				for i := range in.Memory.Nodes {
					in.Memory.Nodes[i].MemoryBytes = 3 << 29
				}
			},
			cpus: []string{"1", "3", "5", "7", "9", "11", "13", "15"}, reserved: "0,2,4,6,8,10,12,14", memory: 288,
		},
		{
			name: "only the sum of memory is known", machine: onTwo(4, 0, 1),
			change: func(in *Input) { in.Memory.Nodes[0].MemoryBytes, in.Memory.Nodes[1].MemoryBytes = 0, 0 },
			cpus:   []string{"1-3,9-11", "5-7,13-15"}, reserved: "0,4,8,12", mems: []string{"0", "1"}, memory: 62259,
		},
		{
			name: "requests are met exactly", machine: onTwo(8, 0, 0, 1, 1),
			change: func(in *Input) {
				in.CPUsPerSlot, in.ReserveCPUs, in.MemoryPerSlot, in.ReserveMemory = 4, 15, 8<<30, 64<<30
			},
			cpus: []string{"4-5,20-21", "6-7,22-23", "12-13,28-29", "14-15,30-31"}, reserved: "0-3,8-11,16-19,24-27", memory: 8192,
		},
		{
			name: "a request for CPUs takes from the default reserve", machine: onTwo(32, gpusAt(0, 1)...),
			change: func(in *Input) { in.CPUsPerSlot = 64 },
			cpus:   []string{"0-31,64-95"}, reserved: "32-63,96-127",
		},
		{
			name: "a request for CPUs leaves one core to the system", machine: onTwo(3, 0),
			change: func(in *Input) {
				in.CPUsPerSlot = 6
				forbid(in, 4, 5, 10, 11)
			},
			cpus: []string{"0-2,6-8"}, reserved: "3,9",
			warnings: []string{"only 2 CPUs are left for the system; 4 are recommended"},
		},
		{name: "no GPU", machine: onTwo(2), cpus: []string{}, reserved: "0-7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := tt.machine.input()
			if tt.change != nil {
				tt.change(&in)
			}
			got := mustSplit(t, in)
			if len(in.GPUs) > 0 {
				checkInvariants(t, in, got)
			}
			cpus := []string{}
			for i, b := range got.Blocks {
				cpus = append(cpus, b.CPUs.String())
				if tt.mems != nil && b.MemoryNodes.String() != tt.mems[i] {
					t.Errorf("slot %d has memory nodes %s, want %s", i, b.MemoryNodes, tt.mems[i])
				}
				if tt.memory != 0 && b.MemoryBytes != tt.memory<<20 {
					t.Errorf("slot %d has %d MiB, want %d", i, b.MemoryBytes>>20, tt.memory)
				}
			}
			must.Equal(t, tt.cpus, cpus)
			if got.ReservedCPUs.String() != tt.reserved {
				t.Errorf("reserved %s, want %s", got.ReservedCPUs, tt.reserved)
			}
			if len(got.Warnings) != len(tt.warnings) {
				t.Errorf("warnings %q, want %q", got.Warnings, tt.warnings)
			}
			for i := range min(len(got.Warnings), len(tt.warnings)) {
				must.Contain(t, got.Warnings[i], tt.warnings[i])
			}
			if t.Failed() {
				t.Log(render(got))
			}
		})
	}
}

func forbid(in *Input, ids ...int) {
	for _, id := range ids {
		in.CPU.List[id].Allowed = false
	}
}

func setThreads(in *Input, id, threads int) {
	for i := range in.CPU.List {
		if in.CPU.List[i].ID == id {
			in.CPU.List[i].Threads = threads
		}
	}
}

// TestSplitRemote pins when slots leave their GPU's package: only where they
// would have a single core there.
func TestSplitRemote(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cores, want int // per package, per slot
		far         string
	}{
		{cores: 8, want: 1},
		{cores: 12, want: 2, far: "slot gpu5, slot gpu6, slot gpu7: the CPUs are on a different package"},
		{cores: 17, want: 2},
	} {
		t.Run(fmt.Sprintf("8 GPUs on one of two packages of %d cores", tt.cores), func(t *testing.T) {
			t.Parallel()
			in := onTwo(tt.cores, gpusAt(0, 8)...).input()
			got := mustSplit(t, in)
			checkInvariants(t, in, got)
			text := strings.Join(got.Warnings, "\n")
			if n := got.Blocks[0].CPUs.Len() / 2; n != tt.want || strings.Contains(text, "different package") != (tt.far != "") || !strings.Contains(text, tt.far) {
				t.Errorf("%d cores, want %d\n%s", n, tt.want, render(got))
			}
		})
	}
}

func TestSplitRefusals(t *testing.T) {
	t.Parallel()
	eight := onTwo(24, 0, 0, 0, 0, 1, 1, 1, 1)
	for _, tt := range []struct {
		name    string
		machine machine
		change  func(*Input)
		want    string
	}{
		{"more slots than cores", onTwo(2, gpusAt(0, 8)...), nil, "8 GPUs but only 4 cores (8 CPUs) for slots, and every slot needs its own core; choose at most 4 GPUs with --gpu-count (gpu_count)"},
		{"more slots than anybody has", onTwo(512, gpusAt(0, 257)...), nil, "257 GPUs are more than kbnode supports; choose at most 256 with --gpu-count (gpu_count)"},
		{"half a core", eight, func(in *Input) { in.CPUsPerSlot = 7 }, "cpus_per_slot: 7 is not a multiple of the 2 threads of a core; write 6 or 8 (--cpus-per-slot)"},
		{"less than a core", eight, func(in *Input) { in.CPUsPerSlot = 1 }, "cpus_per_slot: 1 is less than the 2 threads of a core; write 2 (--cpus-per-slot)"},
		{
			"more CPUs than there are", eight,
			func(in *Input) { in.CPUsPerSlot = 13 },
			"cpus_per_slot: 13 CPUs for each of 8 slots do not fit on 48 cores (96 CPUs) of 2 packages; write at most 12 (--cpus-per-slot) or choose fewer GPUs with --gpus (gpus)",
		},
		{
			"CPUs beside a reserve", eight,
			func(in *Input) { in.CPUsPerSlot, in.ReserveCPUs = 10, 40 },
			"cpus_per_slot: 10 CPUs for each of 8 slots do not fit on 48 cores (96 CPUs) of 2 packages in addition to the reserve of 40 CPUs; write at most 6 (--cpus-per-slot), lower reserve.cpus (--reserve-cpus) or choose fewer GPUs with --gpus (gpus)",
		},
		{
			"a reserve of too many CPUs", eight,
			func(in *Input) { in.ReserveCPUs = 81 },
			"reserve.cpus: 81 of 96 CPUs leave too few for 8 slots with a core (2 CPUs) each; write at most 80 (--reserve-cpus), or choose fewer GPUs with --gpus (gpus)",
		},
		{
			"more memory than there is", eight,
			func(in *Input) { in.MemoryPerSlot = 32 << 30 },
			"memory_per_slot: 32GiB for each of 8 slots does not fit: slot gpu0 has 15GiB on NUMA node 0; write at most 15GiB (--memory-per-slot), lower reserve.memory (--reserve-memory) or choose fewer GPUs with --gpus (gpus)",
		},
		{"a reserve of all memory", eight, func(in *Input) { in.ReserveMemory = 128 << 30 }, "reserve.memory: 128GiB leaves nothing of the machine's 128GiB for slots; write less (--reserve-memory)"},
		{
			"a reserve of nearly all memory", eight,
			func(in *Input) { in.ReserveMemory = 255 << 29 },
			"the memory of NUMA node 0 gives each of 8 slots 64MiB, and a job needs at least 128MiB; choose fewer GPUs",
		},
		{"too little memory for a job", eight, func(in *Input) { in.MemoryPerSlot = 64 << 20 }, "memory_per_slot: 64MiB is too little for a job; write at least 128MiB (--memory-per-slot)"},
		{"a machine with too little memory", eight, func(in *Input) { in.Memory.Nodes[0].MemoryBytes = 128 << 20 }, "the memory of NUMA node 0 gives each of 8 slots"},
		{
			"no CPU allowed", eight,
			func(in *Input) {
				for id := range in.CPU.List {
					forbid(in, id)
				}
			},
			"no core has all its threads online and allowed; bring CPUs online",
		},
		{"nothing known of the machine", machine{}, func(in *Input) { in.GPUs = gpusOn(0) }, "no core has all its threads online"},
		{"no memory known", eight, func(in *Input) { in.Memory = inventory.Memory{} }, "the machine does not report how much memory it has"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := tt.machine.input()
			if tt.change != nil {
				tt.change(&in)
			}
			_, err := Machine(in)
			must.Err(t, err, tt.want)
		})
	}
}

// TestKindsOfCores gives a machine of 12 cores other capacities and microarchitectures. Cores
// of another kind than most stay with the system.
func TestKindsOfCores(t *testing.T) {
	t.Parallel()
	const a, b = "0x41 0xd85", "0x41 0xd87"
	for name, tt := range map[string]struct {
		capacity []int // of the cores; the last one also applies to the rest
		kind     []string
		slots    string // CPUs that slots may have
	}{
		"favored":                         {[]int{1024, 1017, 997, 1009, 980}, nil, "0-11"},
		"a tenth":                         {[]int{1000, 900}, nil, "0-11"},
		"more than a tenth":               {[]int{1000, 1000, 899}, nil, "2-11"},
		"steps of less than a tenth":      {[]int{1024, 940, 870, 800, 730}, nil, "0-11"},
		"favored and small":               {[]int{718, 705, 718, 705, 690, 1017, 997, 1024, 1017}, nil, "5-11"},
		"as many small":                   {[]int{705, 718, 705, 718, 705, 718, 1024, 1017, 997}, nil, "6-11"},
		"another make of equal capacity":  {[]int{1000}, []string{a, a, a, b}, "3-11"},
		"another make of nearly the same": {[]int{1000, 960, 1000, 980}, []string{b, b, b, a}, "3-11"},
		"one make with slow cores":        {[]int{700, 700, 1024, 1000}, []string{a}, "2-11"},
		"makes, favored":                  {[]int{718, 700, 718, 700, 718, 1017, 997, 1024}, []string{b, b, b, b, b, a}, "5-11"},
		"unknown capacity":                {[]int{0}, nil, "0-11"},
		"some unknown":                    {[]int{0, 0, 1024, 1000}, nil, "2-11"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := machine{packages: 1, nodesPerPackage: 1, coresPerNode: 12, smt: 1, gpuNodes: []int{0}}.input()
			in.ReserveCPUs = -1
			for i := range in.CPU.List {
				in.CPU.List[i].Capacity = tt.capacity[min(i, len(tt.capacity)-1)]
				if tt.kind != nil {
					in.CPU.List[i].Kind = tt.kind[min(i, len(tt.kind)-1)]
				}
			}
			got, err := Machine(in)
			if err != nil || got.Blocks[0].CPUs.String() != tt.slots {
				t.Errorf("%v: want CPUs %s\n%s", err, tt.slots, render(got))
			}
		})
	}
}
