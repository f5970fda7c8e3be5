package detect

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

const (
	pciDir = "sys/bus/pci/devices"
	kfdDir = "sys/class/kfd/kfd/topology/nodes"
	// The same directory without the link, which a copied tree may lack.
	kfdDirVirtual = "sys/devices/virtual/kfd/kfd/topology/nodes"
	amdVendor     = "0x1002"
)

// kfdGPU is a node of the kernel's compute topology that is a GPU or a partition of one.
type kfdGPU struct {
	node      int
	id        string // gpu_id, by which the driver counts what processes use
	pci       string
	partition int
	index     int
	unique    uint64
	render    int
	target    int64 // gfx_target_version: 90402 is gfx942
	memory    int64 // bytes; 0 if the node has no memory banks
	links     []int // nodes at the other ends of xGMI links; only of a device's first node
}

// readAMD reads AMD's GPUs from sysfs, without any ROCm library. The result is nil on a
// machine with neither a GPU nor the driver.
func readAMD(t tree) ([]inventory.GPU, *inventory.AMD, []inventory.Problem) {
	devices := amdDevices(t)
	nodes, kfd := readKFD(t, devices)
	version := printable(t.text("sys/module/amdgpu/version"))
	if len(devices) == 0 && len(nodes) == 0 && version == "" && !t.exists("sys/module/amdgpu") {
		return nil, nil, nil
	}
	var gpus []inventory.GPU
	var problems []inventory.Problem
	unread := t.failedBelow(kfdDir) || t.failedBelow(kfdDirVirtual) // some nodes may be missing
	numberPartitions(nodes)
	links := xgmiLinks(nodes)
	parts, first := map[string]int{}, map[string]kfdGPU{}
	for _, node := range nodes {
		parts[node.pci]++
		if known, ok := first[node.pci]; !ok || node.partition < known.partition {
			first[node.pci] = node
		}
	}
	for _, node := range nodes {
		gpu := amdDevice(t, node.pci)
		gpu.Index, gpu.Partition = node.index, node.partition
		gpu.Arch = gfxName(node.target)
		gpu.Links = links[node.pci]
		gpu.Healthy = true
		if node.render >= 0 || parts[node.pci] > 1 { // a device's own belongs to one partition
			gpu.RenderMinor = node.render
		}
		if gpu.RenderMinor < 0 && parts[node.pci] > 1 {
			gpu.Healthy, gpu.Error = false, "the compute driver (KFD) lists no render node for it"
			problems = append(problems, inventory.Problem{Subject: fmt.Sprintf("gpu %s/%d", node.pci, node.partition), Detail: gpu.Error})
		}
		if gpu.UUID == "" { // as of a virtual function; Linux of 2025 gives each partition its own
			gpu.UUID = amdUUID(first[node.pci].unique)
		}
		if parts[node.pci] > 1 {
			gpu.MemoryUsedBytes = 0 // the kernel counts it for the whole device
			gpu.MemoryBytes /= int64(parts[node.pci])
		}
		if node.memory > 0 && (parts[node.pci] > 1 || gpu.MemoryBytes == 0) {
			gpu.MemoryBytes = node.memory
		}
		gpus = append(gpus, gpu)
	}
	for _, pci := range devices {
		if parts[pci] > 0 {
			continue
		}
		gpu := amdDevice(t, pci)
		gpu.Healthy = unread
		if !unread {
			gpu.Healthy, gpu.Error = amdWithoutKFD(t, pci, kfd)
		}
		if gpu.Error != "" {
			problems = append(problems, inventory.Problem{Subject: inventory.GPUSubject(pci), Detail: gpu.Error})
		}
		gpus = append(gpus, gpu)
	}
	for i := range gpus {
		gpus[i].Unread = unread
	}
	sortGPUs(gpus)
	return gpus, &inventory.AMD{DriverVersion: version, KFD: kfd}, problems
}

// amdWithoutKFD reports whether a GPU that the compute driver does not list can be used,
// and why not. A tree with nothing but PCI devices cannot tell, and gets the benefit of the
// doubt.
func amdWithoutKFD(t tree, pci string, kfd bool) (healthy bool, reason string) {
	uevent, err := t.read(pciDir + "/" + pci + "/uevent")
	driver := printable(ueventField(uevent, "DRIVER"))
	switch {
	case kfd:
		return false, "has no node in the compute driver's topology (KFD); see the kernel log for amdgpu"
	case err != nil:
		return true, ""
	case driver != "amdgpu":
		return false, "does not use the amdgpu driver (driver: " + cmp.Or(driver, "none") + "); load it with: modprobe amdgpu"
	}
	return false, "uses the amdgpu driver, but the kernel has no compute driver (KFD) for it"
}

// amdDevices returns the PCI addresses of AMD's GPUs: display controllers (VGA, 3D, other)
// and processing accelerators.
func amdDevices(t tree) []string {
	var out []string
	for _, pci := range t.names(pciDir) {
		if form, ok := inventory.PCIAddress(pci); !ok || form != pci || t.text(pciDir+"/"+pci+"/vendor") != amdVendor {
			continue
		}
		class := t.text(pciDir + "/" + pci + "/class")
		for _, prefix := range []string{"0x0300", "0x0302", "0x0380", "0x1200"} {
			if strings.HasPrefix(class, prefix) {
				out = append(out, pci)
			}
		}
	}
	return out
}

// mode returns the name of a mode, or "" if it is none: advice has it in commands, and a recording is someone else's.
func mode(s string) string {
	if !modeName().MatchString(s) {
		return ""
	}
	return s
}

var modeName = lazy.Regexp(`^[A-Za-z0-9_]{1,32}$`)

// amdDevice returns what the PCI device reports about a GPU.
func amdDevice(t tree, pci string) inventory.GPU {
	dir := pciDir + "/" + pci
	device := pciID(t.text(dir + "/device"))
	gpu := inventory.GPU{
		Vendor: "amd", PCI: pci, Index: -1, Minor: -1, MemoryNode: -1,
		NUMANode: t.id(dir + "/numa_node"), RenderMinor: renderMinor(t, pci),
		Model:            amdModel(device, printable(t.text(dir+"/product_name"))),
		ComputePartition: mode(t.text(dir + "/current_compute_partition")),
		MemoryPartition:  mode(t.unplanned().text(dir + "/current_memory_partition")),
		PerformanceLevel: mode(t.text(dir + "/power_dpm_force_performance_level")),
	}
	if device != "" {
		gpu.PCIID = pciID(amdVendor) + ":" + device
	}
	if unique, err := strconv.ParseUint(strings.TrimPrefix(t.text(dir+"/unique_id"), "0x"), 16, 64); err == nil {
		gpu.UUID = amdUUID(unique)
	}
	gpu.MemoryBytes, _ = t.unplanned().number(dir + "/mem_info_vram_total")
	gpu.MemoryUsedBytes, _ = t.unplanned().number(dir + "/mem_info_vram_used")
	return gpu
}

// kfdPath returns the directory of the compute driver's nodes.
func kfdPath(t tree) string {
	if t.exists(kfdDir) {
		return kfdDir
	}
	return kfdDirVirtual
}

// readKFD reads the compute driver's topology; exists is false if there is no such driver.
func readKFD(t tree, devices []string) (nodes []kfdGPU, exists bool) {
	dir := kfdPath(t)
	exists = t.exists(dir)
	known := map[string]bool{}
	for _, id := range t.numbered(dir, "") {
		p := fields(t.text(fmt.Sprintf("%s/%d/properties", dir, id)))
		number := func(name string) int64 {
			n, _ := strconv.ParseInt(p[name], 10, 64)
			return n
		}
		if number("simd_count") <= 0 {
			continue // a CPU
		}
		node := kfdGPU{node: id, id: t.unplanned().text(fmt.Sprintf("%s/%d/gpu_id", dir, id)), index: len(nodes), render: -1, target: number("gfx_target_version")}
		node.unique, _ = strconv.ParseUint(p["unique_id"], 10, 64)
		if minor := number("drm_render_minor"); minor > 0 && minor < 1<<20 {
			node.render = int(minor)
		}
		node.pci, node.partition = kfdAddress(number("domain"), number("location_id"), devices)
		for _, bank := range t.numbered(fmt.Sprintf("%s/%d/mem_banks", dir, id), "") {
			b := fields(t.text(fmt.Sprintf("%s/%d/mem_banks/%d/properties", dir, id, bank)))
			if heap := b["heap_type"]; heap == "1" || heap == "2" { // CPU-visible VRAM or not
				size, _ := strconv.ParseInt(b["size_in_bytes"], 10, 64)
				node.memory += size
			}
		}
		if !known[node.pci] { // each of 64 partitions has 63 links, all alike
			known[node.pci] = true
			node.links = readXGMI(t, fmt.Sprintf("%s/%d/io_links", dir, id))
		}
		nodes = append(nodes, node)
	}
	return nodes, exists
}

// renderMinor returns N of the PCI device's /dev/dri/renderD<N>, -1 if it has none.
func renderMinor(t tree, pci string) int {
	dir := path.Join(pciDir, pci, "drm")
	for _, minor := range t.numbered(dir, "renderD") {
		return minor
	}
	return -1
}

// amdUUID formats a unique ID as ROCR_VISIBLE_DEVICES expects it.
func amdUUID(unique uint64) string {
	if unique == 0 {
		return ""
	}
	return fmt.Sprintf("GPU-%016x", unique)
}

// gfxName returns the compiler's name of a target version: 90402 is gfx942, 90010 is
// gfx90a.
func gfxName(version int64) string {
	if version <= 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", version/10000, version/100%100, version%100)
}

func sortGPUs(gpus []inventory.GPU) {
	slices.SortStableFunc(gpus, func(a, b inventory.GPU) int {
		return cmp.Or(comparePCI(a.PCI, b.PCI), cmp.Compare(a.Partition, b.Partition))
	})
}

// ueventField returns the value of a NAME=value line of a device's uevent.
func ueventField(uevent, name string) string {
	for line := range strings.Lines(uevent) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return value
		}
	}
	return ""
}
