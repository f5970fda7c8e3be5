package machinetest

import (
	"fmt"
	"slices"
)

const (
	gib = 1 << 30
	// What an MI300X's driver reports for its 192 GB.
	mi300xBytes = 206141652992
)

// Published returns machines according to published facts, with the software that kbnode
// needs. Their names are valid file names.
func Published() []Machine {
	return append([]Machine{
		DGXA100(), HGXH100(), B200x8(), Uneven(), GB200(), MI300X(), MI300XCPX(), VM(), NoGPU(),
		GuideH100(), GuideH100SMT(), GuideL40S(), DGXSpark(),
	}, Shapes()...)
}

// DGXA100 is NVIDIA's DGX A100: two EPYC 7742 in NPS4, with two GPUs on every other NUMA
// node (rapidsai/dask-cuda#1358; CPU lists as in Kubernetes' CPU manager tests).
func DGXA100() Machine {
	m := Machine{
		Name: "dgx-a100", Model: "AMD EPYC 7742 64-Core Processor",
		Packages: 2, Nodes: 4, Cores: 16, Threads: 2, CoresPerL3: 4, NodeBytes: 128 * gib,
	}
	return m.withNVIDIA("NVIDIA A100-SXM4-80GB", "20b2", []int{3, 3, 1, 1, 7, 7, 5, 5},
		"0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0",
		"0000:87:00.0", "0000:90:00.0", "0000:b7:00.0", "0000:bd:00.0")
}

// HGXH100 is an HGX H100 board in a server with two Xeons of 56 cores
// (NVIDIA/go-gpuallocator#17).
func HGXH100() Machine {
	m := Machine{
		Name: "hgx-h100", Model: "Intel(R) Xeon(R) Platinum 8480C",
		Packages: 2, Nodes: 1, Cores: 56, Threads: 2, CoresPerL3: 56, NodeBytes: 1024 * gib,
	}
	return m.withNVIDIA("NVIDIA H100 80GB HBM3", "2330", []int{0, 0, 0, 0, 1, 1, 1, 1},
		"0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0", "0000:5d:00.0",
		"0000:9a:00.0", "0000:ab:00.0", "0000:ba:00.0", "0000:db:00.0")
}

// B200x8 is a DGX B200: two Xeons of 56 cores and eight B200.
func B200x8() Machine {
	m := Machine{
		Name: "b200x8", Model: "INTEL(R) XEON(R) PLATINUM 8570",
		Packages: 2, Nodes: 1, Cores: 56, Threads: 2, CoresPerL3: 56, NodeBytes: 1024 * gib,
	}
	m = m.withNVIDIA("NVIDIA B200", "2901", []int{0, 0, 0, 0, 1, 1, 1, 1},
		"0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0",
		"0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0")
	return m.withTuning(false, "performance powersave")
}

// Uneven has six GPUs, four on one socket and two on the other.
func Uneven() Machine {
	m := Machine{
		Name: "uneven-6gpu", Model: "Intel(R) Xeon(R) Gold 6442Y",
		Packages: 2, Nodes: 1, Cores: 24, Threads: 2, CoresPerL3: 24, NodeBytes: 256 * gib,
	}
	return m.withNVIDIA("NVIDIA L40S", "26b9", []int{0, 0, 0, 0, 1, 1},
		"0000:1a:00.0", "0000:1c:00.0", "0000:3d:00.0", "0000:5e:00.0", "0000:9b:00.0", "0000:cc:00.0")
}

// GB200 is a compute tray with two Grace and four Blackwell, whose GPU memory is NUMA nodes
// without CPUs. The numbers of these nodes are assumed.
func GB200() Machine {
	m := Machine{
		Name: "gb200", Arch: "arm64",
		Packages: 2, Nodes: 1, Cores: 72, Threads: 1, CoresPerL3: 72, NodeBytes: 480 * gib,
	}
	m = m.withNVIDIA("NVIDIA GB200", "2941", []int{0, 0, 1, 1},
		"0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0")
	for i, node := range []int{2, 10, 18, 26} {
		m.NVIDIA[i].MemoryNode = node
		m.MemoryOnly = append(m.MemoryOnly, MemoryNode{ID: node, Bytes: 184 * gib})
	}
	return m
}

// MI300X is a server with two EPYC of 96 cores and eight unpartitioned MI300X.
func MI300X() Machine {
	m := Machine{
		Name: "mi300x", Model: "AMD EPYC 9654 96-Core Processor",
		Packages: 2, Nodes: 1, Cores: 96, Threads: 2, CoresPerL3: 8, NodeBytes: 1152 * gib,
	}
	for i, pci := range []string{
		"0000:05:00.0", "0000:26:00.0", "0000:46:00.0", "0000:65:00.0",
		"0000:85:00.0", "0000:a6:00.0", "0000:c6:00.0", "0000:e5:00.0",
	} {
		m.AMD = append(m.AMD, AMD{
			PCI: pci, Device: "74a1", UniqueID: 0x3b1f0a0e64b40000 + uint64(i), Node: i / 4,
			VRAM: mi300xBytes, Used: 297 << 20, Render: 128 + 8*i, Target: 90402, Compute: "SPX", Memory: "NPS1",
			Links: slices.DeleteFunc([]int{0, 1, 2, 3, 4, 5, 6, 7}, func(k int) bool { return k == i }),
		})
	}
	m.Live = Live(m)
	return m.withTuning(true, "ondemand powersave performance")
}

// MI300XCPX is the same server with each GPU split into eight.
func MI300XCPX() Machine { return partitioned("mi300x-cpx", 8, "CPX", "NPS4") }

// VM is a virtual machine with one GPU, without NUMA and without SMT.
func VM() Machine {
	m := Machine{
		Name: "vm-1gpu", Model: "Intel Xeon Processor (SapphireRapids)", Hypervisor: true,
		Packages: 1, Nodes: 0, Cores: 26, Threads: 1, NodeBytes: 200 * gib,
	}
	return m.withNVIDIA("NVIDIA H100 PCIe", "2331", []int{-1}, "0000:06:00.0")
}

// GuideH100 is the 8-GPU node in the vendors' guide: 128 cores and 256 GB, of which the
// kernel keeps 2 %.
func GuideH100() Machine {
	m := Machine{
		Name: "guide-h100", Model: "AMD EPYC 7763 64-Core Processor",
		Packages: 2, Nodes: 1, Cores: 64, Threads: 1, CoresPerL3: 8, NodeBytes: 128 * gib * 98 / 100,
	}
	return m.withNVIDIA("NVIDIA H100 80GB HBM3", "2330", []int{0, 0, 0, 0, 1, 1, 1, 1},
		"0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0", "0000:5d:00.0",
		"0000:9a:00.0", "0000:ab:00.0", "0000:ba:00.0", "0000:db:00.0")
}

// GuideH100SMT is the same with 128 hardware threads, which the guide's scripts counted.
func GuideH100SMT() Machine {
	m := GuideH100()
	m.Name, m.Model, m.Cores, m.Threads = "guide-h100-smt", "AMD EPYC 7543 32-Core Processor", 32, 2
	return m
}

// GuideL40S is the node that the infrastructure guide was tested on: 16 CPUs and 289 GB.
func GuideL40S() Machine {
	m := Machine{
		Name: "guide-l40s", Model: "AMD EPYC-Genoa Processor", Hypervisor: true,
		Packages: 1, Nodes: 0, Cores: 16, Threads: 1, NodeBytes: 289 * gib,
	}
	return m.withNVIDIA("NVIDIA L40S", "26b9", []int{-1, -1}, "0000:06:00.0", "0000:07:00.0")
}

// DGXSpark is NVIDIA's DGX Spark: two clusters of five Cortex-A725 and five Cortex-X925,
// some of which are favored (hrw/arm-socs-table#133). The capacities of the small cores are
// assumed.
func DGXSpark() Machine {
	m := Machine{
		Name: "dgx-spark", Arch: "arm64",
		Packages: 1, Nodes: 1, Cores: 20, Threads: 1, CoresPerL3: 10, NodeBytes: 119 * gib,
		Files: map[string]string{"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd87\n"},
	}
	for k := range 20 {
		midr, capacity := "0x00000000410fd871", 705+13*(k/10)
		if k%10 >= 5 {
			midr, capacity = "0x00000000410fd851", map[bool]int{true: 997, false: 1017}[k < 10]
		}
		if k == 19 {
			capacity = 1024
		}
		at := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", k)
		m.Files[at+"cpu_capacity"], m.Files[at+"regs/identification/midr_el1"] = fmt.Sprint(capacity), midr
	}
	return m.withNVIDIA("NVIDIA GB10", "2e12", []int{-1}, "000f:01:00.0")
}

// NoGPU is a server without GPUs.
func NoGPU() Machine {
	m := Machine{
		Name: "no-gpu", Model: "AMD EPYC 7313P 16-Core Processor",
		Packages: 1, Nodes: 1, Cores: 16, Threads: 2, CoresPerL3: 4, NodeBytes: 128 * gib,
	}
	m.Live = Live(m)
	return m
}

// withNVIDIA adds GPUs of one model, one for each element of nodes, and the live facts.
func (m Machine) withNVIDIA(model, device string, nodes []int, pci ...string) Machine {
	m.NVIDIADriver = "580.95.05"
	for i, node := range nodes {
		m.NVIDIA = append(m.NVIDIA, NVIDIA{
			PCI: pci[i], Device: device, Model: model, Minor: i, Node: node,
			UUID: fmt.Sprintf("GPU-%s0000-0000-4000-8000-%012x", device, i+1),
		})
	}
	m.Live = Live(m)
	return m
}
