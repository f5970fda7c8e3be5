package detect

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

const nodeDir = "sys/devices/system/node"

// readMemory reads the NUMA nodes and fills in the node of each CPU.
func readMemory(t tree, cpu *inventory.CPU) (inventory.Memory, []inventory.Problem) {
	var problems []inventory.Problem
	online, _ := cpuset.Parse(cpu.Online) // as readCPU printed it
	memory := inventory.Memory{TotalBytes: kibibytes(fields(t.text("proc/meminfo"))["MemTotal"])}

	ids := t.numbered(nodeDir, "node")
	if set, ok := t.cpus(nodeDir + "/online"); ok {
		ids = slices.DeleteFunc(ids, func(id int) bool { return !set.Contains(id) })
	}
	nodeOf := map[int]int{}
	var sum int64
	for _, id := range ids {
		node := readNode(t, id, online)
		if len(node.Distances) != len(ids) {
			if len(node.Distances) > 0 {
				problems = append(problems, inventory.Problem{Subject: fmt.Sprintf("numa node %d", id), Detail: fmt.Sprintf("has %d distances for %d nodes", len(node.Distances), len(ids))})
			}
			node.Distances = nil
		}
		cpus, _ := cpuset.Parse(node.CPUs) // as readNode printed it
		both := map[int][]int{}            // CPUs, by an earlier node that lists them
		for _, c := range cpus.Ints() {
			if other, ok := nodeOf[c]; ok {
				both[other] = append(both[other], c)
			}
			nodeOf[c] = id
		}
		for _, other := range slices.Sorted(maps.Keys(both)) {
			problems = append(problems, inventory.Problem{Subject: fmt.Sprintf("numa node %d", id), Detail: fmt.Sprintf("has CPUs %s, which node %d also has", cpuset.Of(both[other]...), other)})
		}
		sum += node.MemoryBytes
		memory.Nodes = append(memory.Nodes, node)
	}
	if memory.TotalBytes == 0 {
		memory.TotalBytes = sum
	}
	if memory.TotalBytes == 0 {
		problems = append(problems, inventory.Problem{Subject: inventory.SubjectMemory, Detail: "neither /proc/meminfo nor a NUMA node says how much there is"})
	}

	// A node may not count memory that the machine got while it ran: 4 of 126 GiB on Linux 6.18 under
	// Firecracker.
	if n := memory.Nodes; len(n) == 1 && n[0].MemoryBytes < memory.TotalBytes/2 {
		n[0].MemoryBytes = memory.TotalBytes
	}
	if len(memory.Nodes) == 0 {
		memory.Nodes = []inventory.NUMANode{{
			CPUs: cpu.Online, MemoryBytes: memory.TotalBytes, Distances: []int{10},
			HugepagesBytes: hugepages(t, "sys/kernel/mm/hugepages"),
		}}
		for _, c := range online.Ints() {
			nodeOf[c] = 0
		}
	}
	for i := range cpu.List {
		if node, ok := nodeOf[cpu.List[i].ID]; ok {
			cpu.List[i].NUMANode = node
		}
	}
	return memory, problems
}

func readNode(t tree, id int, online cpuset.Set) inventory.NUMANode {
	dir := nodeDir + "/node" + strconv.Itoa(id)
	// A list may name CPUs that the machine could have but does not.
	cpus, _ := t.cpus(dir+"/cpulist", dir+"/cpumap")
	node := inventory.NUMANode{ID: id, CPUs: cpus.Intersect(online).String(), HugepagesBytes: hugepages(t, dir+"/hugepages")}
	found := false
	text, err := t.read(dir + "/meminfo")
	for line := range strings.Lines(text) {
		if _, value, ok := strings.Cut(line, "MemTotal:"); ok {
			node.MemoryBytes, found = kibibytes(value), true
		}
	}
	if err == nil && !found { // truncated; a node without memory has 0 kB
		t.fail(dir+"/meminfo", syscall.ENODATA)
	}
	for field := range strings.FieldsSeq(t.text(dir + "/distance")) {
		distance, err := strconv.Atoi(field)
		if err != nil {
			return node
		}
		node.Distances = append(node.Distances, distance)
	}
	return node
}

// hugepages returns the memory of all sizes of huge pages, in bytes.
func hugepages(t tree, dir string) int64 {
	var sum int64
	for _, name := range t.names(dir) {
		size, ok := strings.CutPrefix(name, "hugepages-")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
		if count, ok := t.number(dir + "/" + name + "/nr_hugepages"); ok && err == nil {
			sum += count * kib << 10
		}
	}
	return max(sum, 0) // of absurd numbers, it may have overflowed
}

// kibibytes parses meminfo's "131072 kB" as bytes. It does not believe in more than 256 TiB, so
// that sums over all nodes fit an int64.
func kibibytes(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")), 10, 64)
	if err != nil || n < 0 || n > 1<<38 {
		return 0
	}
	return n << 10
}

// placeGPUs connects GPUs and NUMA nodes: a GPU whose PCI device does not name its node
// gets the node with the CPUs near it, and a node that is a GPU's memory gets the GPU's
// address and is no longer counted as RAM.
func placeGPUs(t tree, inv *inventory.Inventory) {
	nodes := inv.Memory.Nodes
	for i := range inv.GPUs {
		gpu := &inv.GPUs[i]
		if gpu.NUMANode < 0 && len(nodes) > 1 {
			gpu.NUMANode = nearNode(t, gpu.PCI, nodes)
		}
		if gpu.MemoryNode < 0 {
			continue
		}
		at := slices.IndexFunc(nodes, func(n inventory.NUMANode) bool { return n.ID == gpu.MemoryNode })
		switch {
		case at < 0:
			gpu.MemoryNode = -1 // announced but not online: nothing can be bound to it
		case nodes[at].GPU == "":
			nodes[at].GPU = gpu.PCI
			inv.Memory.TotalBytes = max(0, inv.Memory.TotalBytes-nodes[at].MemoryBytes)
		}
	}
}

// nearNode returns the node that has all CPUs near a PCI device, -1 if there is none. Of nodes
// that share CPUs, it is the first.
func nearNode(t tree, pci string, nodes []inventory.NUMANode) int {
	dir := "sys/bus/pci/devices/" + pci
	near, ok := t.cpus(dir+"/local_cpulist", dir+"/local_cpus")
	if !ok || near.Len() == 0 {
		return -1
	}
	found := -1
	var all cpuset.Set
	for _, node := range nodes {
		cpus, _ := cpuset.Parse(node.CPUs) // as readNode printed it
		switch {
		case cpus.Disjoint(near):
		case found < 0:
			found, all = node.ID, cpus
		case cpus.Disjoint(all):
			return -1
		default:
			all = all.Union(cpus)
		}
	}
	return found
}
