package inventory

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	pciDir = "sys/bus/pci/devices"
	kfdDir = "sys/class/kfd/kfd/topology/nodes"
	// The same directory without the link that a copied tree may lack.
	kfdDirVirtual = "sys/devices/virtual/kfd/kfd/topology/nodes"
	amdVendor     = "0x1002"
)

// kfdGPU is a node of the kernel's compute topology that is a GPU or one
// partition of one.
type kfdGPU struct {
	pci       string
	partition int
	index     int
	unique    uint64
	render    int
	target    int64 // gfx_target_version: 90402 is gfx942
	memory    int64 // bytes; 0 if the node has no memory banks
}

// readAMD reads AMD's GPUs from sysfs, without any ROCm library. The result is
// nil on a machine that has neither a GPU nor the driver.
func readAMD(t tree) ([]GPU, *AMD, []Problem) {
	devices := amdDevices(t)
	nodes, kfd := readKFD(t, devices)
	version := printable(t.text("sys/module/amdgpu/version"))
	if len(devices) == 0 && len(nodes) == 0 && version == "" && !t.exists("sys/module/amdgpu") {
		return nil, nil, nil
	}
	var gpus []GPU
	var problems []Problem
	parts := map[string]int{}
	for _, node := range nodes {
		parts[node.pci]++
	}
	for _, node := range nodes {
		gpu := amdDevice(t, node.pci)
		gpu.Index, gpu.Partition = node.index, node.partition
		gpu.Arch = gfxName(node.target)
		gpu.Healthy = true
		if node.render >= 0 {
			gpu.RenderMinor = node.render
		}
		if gpu.UUID == "" {
			gpu.UUID = amdUUID(node.unique)
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
		gpu.Healthy, gpu.Error = amdWithoutKFD(t, pci, kfd)
		if gpu.Error != "" {
			problems = append(problems, Problem{"gpu " + pci, gpu.Error})
		}
		gpus = append(gpus, gpu)
	}
	sortGPUs(gpus)
	return gpus, &AMD{DriverVersion: version, KFD: kfd}, problems
}

// amdWithoutKFD says whether a GPU that the compute driver does not list can be
// used, and why not. A tree that holds no more than the PCI devices does not
// tell, and gets the benefit of the doubt.
func amdWithoutKFD(t tree, pci string, kfd bool) (healthy bool, reason string) {
	uevent, err := t.read(pciDir + "/" + pci + "/uevent")
	driver := printable(ueventField(uevent, "DRIVER"))
	switch {
	case kfd:
		return false, "has no node in the compute driver's topology (KFD); see the kernel log for amdgpu"
	case err != nil:
		return true, ""
	case driver != "amdgpu":
		return false, "is not driven by amdgpu (driver: " + cmp.Or(driver, "none") + "); load it with: modprobe amdgpu"
	}
	return false, "is driven by amdgpu, but the kernel has no compute driver (KFD) for it"
}

// amdDevices are the PCI addresses of AMD's GPUs: display controllers (VGA, 3D,
// other) and processing accelerators.
func amdDevices(t tree) []string {
	var out []string
	for _, pci := range t.names(pciDir) {
		if form, ok := pciAddress(pci); !ok || form != pci || t.text(pciDir+"/"+pci+"/vendor") != amdVendor {
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

// amdDevice is what the PCI device says of a GPU.
func amdDevice(t tree, pci string) GPU {
	dir := pciDir + "/" + pci
	device := pciID(t.text(dir + "/device"))
	gpu := GPU{
		Vendor: "amd", PCI: pci, Index: -1, Minor: -1, MemoryNode: -1,
		NUMANode: t.id(dir + "/numa_node"), RenderMinor: renderMinor(t, pci),
		Model:            amdModel(device, printable(t.text(dir+"/product_name"))),
		ComputePartition: printable(t.text(dir + "/current_compute_partition")),
		MemoryPartition:  printable(t.text(dir + "/current_memory_partition")),
		PerformanceLevel: printable(t.text(dir + "/power_dpm_force_performance_level")),
	}
	if device != "" {
		gpu.PCIID = pciID(amdVendor) + ":" + device
	}
	if unique, err := strconv.ParseUint(strings.TrimPrefix(t.text(dir+"/unique_id"), "0x"), 16, 64); err == nil {
		gpu.UUID = amdUUID(unique)
	}
	gpu.MemoryBytes, _ = t.number(dir + "/mem_info_vram_total")
	gpu.MemoryUsedBytes, _ = t.number(dir + "/mem_info_vram_used")
	return gpu
}

// readKFD reads the compute driver's topology; exists is false where there is
// no such driver.
func readKFD(t tree, devices []string) (nodes []kfdGPU, exists bool) {
	dir := kfdDir
	if !t.exists(dir) {
		dir = kfdDirVirtual
	}
	exists = t.exists(dir)
	for _, id := range t.numbered(dir, "") {
		p := fields(t.text(fmt.Sprintf("%s/%d/properties", dir, id)))
		number := func(name string) int64 {
			n, _ := strconv.ParseInt(p[name], 10, 64)
			return n
		}
		if number("simd_count") <= 0 {
			continue // a CPU
		}
		node := kfdGPU{index: len(nodes), render: -1, target: number("gfx_target_version")}
		node.unique, _ = strconv.ParseUint(p["unique_id"], 10, 64)
		if minor := number("drm_render_minor"); minor > 0 && minor < 1<<20 {
			node.render = int(minor)
		}
		node.pci, node.partition = kfdAddress(number("domain"), number("location_id"), devices)
		for _, bank := range t.numbered(fmt.Sprintf("%s/%d/mem_banks", dir, id), "") {
			b := fields(t.text(fmt.Sprintf("%s/%d/mem_banks/%d/properties", dir, id, bank)))
			if heap := b["heap_type"]; heap == "1" || heap == "2" { // VRAM that the CPU can see, or not
				size, _ := strconv.ParseInt(b["size_in_bytes"], 10, 64)
				node.memory += size
			}
		}
		nodes = append(nodes, node)
	}
	return nodes, exists
}

// kfdAddress is the PCI address of a compute node. The low bits of location_id
// are the PCI function, and on a partitioned GPU the partition's number is
// written over them: they are a function only where such a PCI device exists.
func kfdAddress(domain, location int64, devices []string) (pci string, partition int) {
	address := fmt.Sprintf("%04x:%02x:%02x.", domain, location>>8&0xff, location>>3&0x1f)
	low := int(location & 7)
	if own := address + strconv.Itoa(low); slices.Contains(devices, own) {
		return own, 0
	}
	return address + "0", low
}

// renderMinor is N of the PCI device's /dev/dri/renderD<N>, -1 if it has none.
func renderMinor(t tree, pci string) int {
	dir := path.Join(pciDir, pci, "drm")
	for _, minor := range t.numbered(dir, "renderD") {
		return minor
	}
	return -1
}

// amdUUID is the form of a unique id in which ROCR_VISIBLE_DEVICES takes it.
func amdUUID(unique uint64) string {
	if unique == 0 {
		return ""
	}
	return fmt.Sprintf("GPU-%016x", unique)
}

// gfxName is the compiler's name of a target version: 90402 is gfx942, 90010
// is gfx90a.
func gfxName(version int64) string {
	if version <= 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", version/10000, version/100%100, version%100)
}

// amdModel names a GPU by its device id where that is known, since the name in
// the board's memory is not readable on every machine.
func amdModel(device, product string) string {
	switch device {
	case "74a0":
		return "AMD Instinct MI300A"
	case "74a1":
		return "AMD Instinct MI300X"
	case "74a2":
		return "AMD Instinct MI308X"
	case "74a5":
		return "AMD Instinct MI325X"
	case "74b5":
		return "AMD Instinct MI300X VF"
	case "75a0":
		return "AMD Instinct MI350X"
	case "75a3":
		return "AMD Instinct MI355X"
	case "75b3":
		return "AMD Instinct MI355X VF"
	case "740c", "740f":
		return cmp.Or(product, "AMD Instinct MI200")
	case "738c":
		return cmp.Or(product, "AMD Instinct MI100")
	}
	return cmp.Or(product, strings.TrimSpace("AMD GPU "+device))
}

func sortGPUs(gpus []GPU) {
	slices.SortStableFunc(gpus, func(a, b GPU) int {
		return cmp.Or(comparePCI(a.PCI, b.PCI), cmp.Compare(a.Partition, b.Partition))
	})
}

// ueventField is the value of a NAME=value line of a device's uevent.
func ueventField(uevent, name string) string {
	for line := range strings.Lines(uevent) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return value
		}
	}
	return ""
}
