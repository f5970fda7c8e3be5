package machinetest

import (
	"slices"
	"strings"
)

// Shapes returns machines that are not just identical whole GPUs: with split or linked
// GPUs, several models, and virtual machines.
func Shapes() []Machine {
	return []Machine{
		B200MIG(), H100Mixed(), MI300XDPX(), MI300XQPX(), MI325X(), MI355X(), MI210(),
		A100NVLink(), MixedModels(), GH200(), VMNodes(),
	}
}

// sevenths returns the seven smallest instances of a GPU.
func sevenths(profile string, mib int64) []MIG {
	var list []MIG
	for i := range 7 {
		list = append(list, MIG{Profile: profile, ProfileID: 19, GPUInstance: 7 + i, Start: i, Size: 1, Slices: 1, SMs: 16, MiB: mib})
	}
	return list
}

// B200MIG is the DGX B200 with each GPU split into seven.
func B200MIG() Machine {
	m := B200x8()
	m.Name = "b200-mig"
	for i := range m.NVIDIA {
		m.NVIDIA[i].MIG = sevenths("1g.23gb", 23552)
	}
	m.Live = Live(m)
	return m
}

// H100Mixed is the HGX H100 with four whole GPUs, one split into two unequal halves and
// three split into seven.
func H100Mixed() Machine {
	m := HGXH100()
	m.Name = "h100-mixed"
	m.NVIDIA[4].MIG = []MIG{
		{Profile: "4g.40gb", ProfileID: 5, GPUInstance: 1, Start: 0, Size: 4, Slices: 4, SMs: 64, MiB: 40448},
		{Profile: "3g.40gb", ProfileID: 9, GPUInstance: 2, Start: 4, Size: 4, Slices: 3, SMs: 60, MiB: 40448},
	}
	for i := 5; i < 8; i++ {
		m.NVIDIA[i].MIG = sevenths("1g.10gb", 9984)
	}
	m.Live = Live(m)
	return m
}

// partitioned returns the server with eight MI300X, each split.
func partitioned(name string, parts int, compute, memory string) Machine {
	m := MI300X()
	m.Name = name
	m.AMD = slices.Clone(m.AMD)
	for i := range m.AMD {
		m.AMD[i].Partitions, m.AMD[i].Compute, m.AMD[i].Memory = parts, compute, memory
	}
	return m
}

// MI300XDPX has each GPU split into two, numbered as by drivers of 2024.
func MI300XDPX() Machine {
	m := partitioned("mi300x-dpx", 2, "DPX", "NPS2")
	for i := range m.AMD {
		m.AMD[i].HighNumber = true
	}
	return m
}

// MI300XQPX has each GPU split into four, without splitting its memory.
func MI300XQPX() Machine { return partitioned("mi300x-qpx", 4, "QPX", "NPS1") }

// MI325X is the server with eight MI325X of 256 GB.
func MI325X() Machine {
	m := MI300X()
	m.Name, m.AMD = "mi325x", slices.Clone(m.AMD)
	for i := range m.AMD {
		m.AMD[i].Device, m.AMD[i].VRAM = "74a5", 274861129728
	}
	return m
}

// MI355X is a server with two EPYC of the next generation and eight MI355X of 288 GB.
func MI355X() Machine {
	m := MI300X()
	m.Name, m.Model, m.AMD = "mi355x", "AMD EPYC 9575F 64-Core Processor", slices.Clone(m.AMD)
	m.Cores, m.CoresPerL3, m.NodeBytes = 64, 8, 1536*gib
	for i := range m.AMD {
		m.AMD[i].Device, m.AMD[i].VRAM, m.AMD[i].Target = "75a3", 309220868096, 90500
	}
	m.Files = nil
	return m.withTuning(true, "ondemand powersave performance")
}

// MI210 has four cards, joined in pairs by xGMI bridges.
func MI210() Machine {
	m := Machine{
		Name: "mi210", Model: "AMD EPYC 7763 64-Core Processor",
		Packages: 2, Nodes: 1, Cores: 64, Threads: 2, CoresPerL3: 8, NodeBytes: 256 * gib,
	}
	for i, pci := range []string{"0000:23:00.0", "0000:43:00.0", "0000:a3:00.0", "0000:c3:00.0"} {
		m.AMD = append(m.AMD, AMD{
			PCI: pci, Device: "740f", UniqueID: 0x1901c7a64c18f900 + uint64(i), Node: i / 2,
			VRAM: 68702699520, Used: 11 << 20, Render: 128 + i, Target: 90010, Links: []int{i ^ 1},
		})
	}
	m.Live = Live(m)
	return m.withTuning(true, "ondemand powersave performance")
}

// A100NVLink has four PCIe cards; NVLink bridges join the two of each socket.
func A100NVLink() Machine {
	m := Machine{
		Name: "a100-nvlink", Model: "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz",
		Packages: 2, Nodes: 1, Cores: 32, Threads: 2, CoresPerL3: 32, NodeBytes: 256 * gib,
	}
	m = m.withNVIDIA("NVIDIA A100 80GB PCIe", "20b5", []int{0, 0, 1, 1},
		"0000:17:00.0", "0000:31:00.0", "0000:b1:00.0", "0000:ca:00.0")
	for i := range m.NVIDIA {
		m.NVIDIA[i].Links = []int{i ^ 1}
	}
	return m
}

// MixedModels has two L40S, and two H100 NVL that a bridge joins.
func MixedModels() Machine {
	m := Machine{
		Name: "mixed-models", Model: "AMD EPYC 9354 32-Core Processor",
		Packages: 2, Nodes: 1, Cores: 32, Threads: 2, CoresPerL3: 4, NodeBytes: 384 * gib,
	}
	m = m.withNVIDIA("NVIDIA L40S", "26b9", []int{0, 1}, "0000:01:00.0", "0000:81:00.0")
	m = m.withNVIDIA("NVIDIA H100 NVL", "2321", []int{0, 0}, "0000:41:00.0", "0000:61:00.0")
	slices.SortFunc(m.NVIDIA, func(a, b NVIDIA) int { return strings.Compare(a.PCI, b.PCI) })
	for i := range m.NVIDIA { // drivers number GPUs by address
		m.NVIDIA[i].Minor = i
	}
	m.NVIDIA[1].Links, m.NVIDIA[2].Links = []int{2}, []int{1}
	m.Live = Live(m)
	return m
}

// GH200 is one Grace with one Hopper. Its firmware reserves eight NUMA nodes for the GPU's
// memory, and the driver puts all of it into the first.
func GH200() Machine {
	m := Machine{
		Name: "gh200", Arch: "arm64",
		Packages: 1, Nodes: 1, Cores: 72, Threads: 1, CoresPerL3: 72, NodeBytes: 480 * gib,
	}
	m = m.withNVIDIA("NVIDIA GH200 480GB", "2342", []int{0}, "0009:01:00.0")
	m.NVIDIA[0].MemoryNode = 1
	for node := 1; node <= 8; node++ {
		bytes := int64(0)
		if node == 1 {
			bytes = 95 * gib
		}
		m.MemoryOnly = append(m.MemoryOnly, MemoryNode{ID: node, Bytes: bytes})
	}
	return m
}

// VMNodes is a virtual machine with two NUMA nodes and one GPU, whose node is not reported,
// in its own PCI domain, as in clouds.
func VMNodes() Machine {
	m := Machine{
		Name: "vm-2nodes", Model: "AMD EPYC 9V84 96-Core Processor", Hypervisor: true,
		Packages: 2, Nodes: 1, Cores: 20, Threads: 1, Adjacent: true, CoresPerL3: 5, NodeBytes: 160 * gib,
	}
	return m.withNVIDIA("NVIDIA H100 NVL", "2321", []int{-1}, "c0de:00:00.0")
}
