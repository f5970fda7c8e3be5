package detect_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestReadCPU(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		tree map[string]string
		want []string // the lines of summary from present on, without memory
	}{
		{
			name: "masks instead of lists",
			tree: map[string]string{
				"sys/devices/system/cpu/online":                             "0-1,32-33",
				"sys/devices/system/cpu/cpu0/topology/thread_siblings":      "00000001,00000001",
				"sys/devices/system/cpu/cpu0/topology/physical_package_id":  "0",
				"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "00000002,00000002",
				"sys/devices/system/cpu/cpu1/topology/physical_package_id":  "1",
				"sys/devices/system/cpu/cpu32/topology/physical_package_id": "0",
				"sys/devices/system/cpu/cpu33/topology/physical_package_id": "1",
				"sys/devices/system/cpu/cpu0/cache/index2/level":            "3",
				"sys/devices/system/cpu/cpu0/cache/index2/shared_cpu_map":   "ff,000000ff",
				"sys/devices/system/node/node0/cpumap":                      "00000001,00000001",
				"sys/devices/system/node/node1/cpumap":                      "00000002,00000002",
			},
			want: []string{
				"present 0-1,32-33", "online 0-1,32-33", "allowed 0-1,32-33",
				"core [0 32] and on: package 0 die -1 l3 0 node 0 capacity 0 allowed true, 2 threads online of 2",
				"core [1 33] and on: package 1 die -1 l3 0 node 1 capacity 0 allowed true, 2 threads online of 2",
			},
		},
		{
			name: "NULs at the end, sparse numbers, no online files",
			tree: map[string]string{
				"sys/devices/system/cpu/present":                             "0,88-89\n\x00",
				"sys/devices/system/cpu/online":                              "0,88-89\n\x00",
				"sys/devices/system/cpu/cpu0/topology/thread_siblings_list":  "0\n\x00",
				"sys/devices/system/cpu/cpu88/topology/thread_siblings_list": "88-89\n\x00",
				"sys/devices/system/cpu/cpu89/topology/thread_siblings_list": "88-89\n\x00",
			},
			want: []string{
				"present 0,88-89", "online 0,88-89", "allowed 0,88-89",
				"core [0] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed true, 1 threads online of 1",
				"core [88 89] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed true, 2 threads online of 2",
			},
		},
		{
			name: "no lists at all, one CPU switched off by its own file",
			tree: map[string]string{
				"sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0",
				"sys/devices/system/cpu/cpu1/online":                  "0",
				"sys/devices/system/cpu/cpu2/online":                  "1",
				"sys/devices/system/cpu/cpufreq/boost":                "1",
			},
			want: []string{
				"present 0-2", "online 0,2", "allowed 0,2",
				"core [0] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed true, 1 threads online of 1",
			},
		},
		{
			name: "a hybrid processor",
			tree: map[string]string{
				"sys/devices/system/cpu/online":                       "0-3",
				"sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0-1",
				"sys/devices/system/cpu/cpu1/topology/core_cpus_list": "0-1",
				"sys/devices/system/cpu/cpu2/topology/core_cpus_list": "2",
				"sys/devices/system/cpu/cpu3/topology/core_cpus_list": "3",
				"sys/devices/cpu_core/cpus":                           "0-1",
				"sys/devices/cpu_atom/cpus":                           "2-3",
			},
			want: []string{
				"present 0-3", "online 0-3", "allowed 0-3",
				"core [0 1] and on: package -1 die -1 l3 -1 node 0 capacity 1024 allowed true, 2 threads online of 2, kind core",
				"core [2] and on: package -1 die -1 l3 -1 node 0 capacity 512 allowed true, 1 threads online of 1, kind atom",
			},
		},
		{
			// Otherwise the second plan of a machine would differ from the first.
			name: "kbnode's own partition took CPUs out of the root's cpuset",
			tree: map[string]string{
				"sys/devices/system/cpu/online":                       "0-3",
				"sys/fs/cgroup/cpuset.cpus.effective":                 "3",
				"sys/fs/cgroup/buildkite.slice/cpuset.cpus.partition": "root",
				"sys/fs/cgroup/buildkite.slice/cpuset.cpus":           "0-1",
			},
			want: []string{
				"present 0-3", "online 0-3", "allowed 0-1,3",
				"core [0] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed true, 1 threads online of 1",
				"core [2] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed false, 1 threads online of 1",
				"core [3] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed true, 1 threads online of 1",
			},
		},
		{
			name: "an invalid partition holds nothing",
			tree: map[string]string{
				"sys/devices/system/cpu/online":                       "0-1",
				"sys/fs/cgroup/cpuset.cpus.effective":                 "1",
				"sys/fs/cgroup/buildkite.slice/cpuset.cpus.partition": "root invalid (Cpu list in cpuset.cpus not exclusive)",
				"sys/fs/cgroup/buildkite.slice/cpuset.cpus":           "0",
			},
			want: []string{
				"present 0-1", "online 0-1", "allowed 1",
				"core [0] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed false, 1 threads online of 1",
				"core [1] and on: package -1 die -1 l3 -1 node 0 capacity 0 allowed true, 1 threads online of 1",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for line := range strings.Lines(summary(read(t, tree(t, tt.tree)))) {
				line = strings.TrimSpace(line)
				switch word, _, _ := strings.Cut(line, " "); word {
				case "present", "online", "allowed", "core":
					got = append(got, line)
				}
			}
			must.Equal(t, tt.want, got)
		})
	}
}

func TestOfflineSiblings(t *testing.T) {
	t.Parallel()
	m := machinetest.NoGPU() // 16 cores of 2 threads: i and i+16
	m.Offline = []int{17, 3, 19}
	inv := read(t, m.Dir(t))
	if inv.CPU.Present != "0-31" || inv.CPU.Online != "0-2,4-16,18,20-31" {
		t.Errorf("present %s, online %s", inv.CPU.Present, inv.CPU.Online)
	}
	for _, c := range inv.CPU.List {
		want := fmt.Sprint([]int{c.ID % 16, c.ID%16 + 16}, 2)
		if c.ID == 1 {
			want = fmt.Sprint([]int{1}, 0) // its sibling is off, and the kernel hides it
		}
		if got := fmt.Sprint(c.Siblings, c.Threads); got != want {
			t.Errorf("cpu %d: siblings and threads %s, want %s", c.ID, got, want)
		}
	}
}

func TestReadMemory(t *testing.T) {
	t.Parallel()
	m := machinetest.HGXH100()
	m.Hugepages = 16
	m.NodeOrder = []int{8, 0} // neither node 1 nor the order of the CPUs
	m.MemoryOnly = []machinetest.MemoryNode{{ID: 250, Bytes: 64 << 30}}
	m.NVIDIA = nil
	inv := read(t, m.Dir(t))
	got := summary(inv)
	for _, want := range []string{
		"memory 2162688 MiB\n",
		`node 0: cpus "56-111,168-223", 1048576 MiB, huge pages 16384 MiB, distances [10 32 80]` + "\n",
		`node 8: cpus "0-55,112-167", 1048576 MiB, huge pages 16384 MiB, distances [32 10 80]` + "\n",
		`node 250: cpus "", 65536 MiB, huge pages 0 MiB, distances [80 80 10]` + "\n",
	} {
		must.Contain(t, got, want)
	}
	for _, c := range inv.CPU.List {
		if want := 8 - 8*c.Package; c.NUMANode != want {
			t.Errorf("cpu %d of package %d is on node %d, want %d", c.ID, c.Package, c.NUMANode, want)
		}
	}
}

// TestReadAddedMemory is as read on a virtual machine with an H100.
func TestReadAddedMemory(t *testing.T) {
	t.Parallel()
	inv := read(t, tree(t, map[string]string{
		"sys/devices/system/cpu/online":         "0-15",
		"sys/devices/system/node/node0/cpulist": "0-15",
		"sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:        4550128 kB",
		"proc/meminfo":                          "MemTotal:       131981020 kB",
	}))
	if got := inv.Memory.Nodes[0].MemoryBytes; got != 131981020<<10 {
		t.Errorf("node 0 has %d bytes", got)
	}
}

func TestReadOverlappingNodes(t *testing.T) {
	t.Parallel()
	inv := read(t, tree(t, map[string]string{
		"sys/devices/system/cpu/online":               "0-7",
		"sys/devices/system/node/node0/cpulist":       "0-3",
		"sys/devices/system/node/node1/cpulist":       "2-3,99",
		"sys/devices/system/node/node2/cpulist":       "4-7,99",
		"proc/meminfo":                                "MemTotal: 16777216 kB",
		"sys/bus/pci/devices/0000:03:00.0/vendor":     "0x1002",
		"sys/bus/pci/devices/0000:03:00.0/class":      "0x120000",
		"sys/bus/pci/devices/0000:03:00.0/local_cpus": "0f",
	}))
	want := []inventory.Problem{{Subject: "numa node 1", Detail: "has CPUs 2-3, which node 0 also has"}}
	must.Equal(t, want, inv.Problems)
	if len(inv.GPUs) != 1 || inv.GPUs[0].NUMANode != 0 {
		t.Errorf("GPUs %+v, want one on node 0, the first of those with its CPUs", inv.GPUs)
	}
}

func TestTuning(t *testing.T) {
	t.Parallel()
	got := read(t, machinetest.MI300X().Dir(t))
	if g := got.GPUs[7]; g.PerformanceLevel != "auto" {
		t.Errorf("GPU %s has the performance level %q", g.PCI, g.PerformanceLevel)
	}
	if n := len(got.Tuning.Governors); n != 192 {
		t.Fatalf("%d cpufreq policies, want one per core", n)
	}
	want := inventory.Governor{
		Path: "/sys/devices/system/cpu/cpufreq/policy5/scaling_governor", CPUs: "5,197", Value: "powersave",
		Known: []string{"ondemand", "powersave", "performance"},
	}
	must.Equal(t, want, got.Tuning.Governors[5])
	const files = 19
	if n := len(got.Tuning.Files); n != files {
		t.Fatalf("%d files, want %d", n, files)
	}
	must.Equal(t, inventory.TuningFile{Path: "/sys/kernel/mm/transparent_hugepage/enabled", Value: "[always] madvise never"}, got.Tuning.Files[files-2])
	// A tree without these files has no settings.
	must.Equal(t, inventory.Tuning{}, read(t, machinetest.VM().Dir(t)).Tuning)
}
