package machinetest

import (
	"fmt"
	"strconv"
	"strings"
)

const pciDir = "sys/bus/pci/devices/"

// pciFiles adds the files that every PCI device has.
func (m Machine) pciFiles(f map[string]string, pci, vendor, device, class, driver string, node int) {
	at := pciDir + pci + "/"
	f[at+"vendor"], f[at+"device"], f[at+"class"] = "0x"+vendor, "0x"+device, "0x"+class
	f[at+"numa_node"] = strconv.Itoa(node)
	near := m.cpus()
	f[at+"local_cpulist"] = list(near)
	if node >= 0 {
		var here []cpu
		for _, c := range near {
			if c.node == node || m.Nodes == 0 {
				here = append(here, c)
			}
		}
		f[at+"local_cpulist"] = list(here)
	}
	uevent := ""
	if driver != "" {
		uevent = "DRIVER=" + driver + "\n"
	}
	f[at+"uevent"] = fmt.Sprintf("%sPCI_CLASS=%s\nPCI_ID=%s:%s\nPCI_SLOT_NAME=%s", uevent,
		strings.ToUpper(strings.TrimLeft(class, "0")), strings.ToUpper(vendor), strings.ToUpper(device), pci)
}

func (m Machine) nvidiaFiles(f map[string]string) {
	if m.NVIDIADriver != "" {
		f["proc/driver/nvidia/version"] = fmt.Sprintf(
			"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (dvs-builder)\nGCC version:  gcc version 13.3.0", m.NVIDIADriver)
		f["sys/module/nvidia/version"] = m.NVIDIADriver
		f["proc/devices"] = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n226 drm\n507 nvidia-uvm\n509 nvidia-caps\n\nBlock devices:\n259 blkext"
	}
	for _, g := range m.NVIDIA {
		driver := ""
		if m.NVIDIADriver != "" {
			driver = "nvidia"
		}
		m.pciFiles(f, g.PCI, "10de", g.Device, "030200", driver, g.Node)
		if m.NVIDIADriver == "" || g.Dead {
			continue
		}
		at := "proc/driver/nvidia/gpus/" + g.PCI + "/"
		f[at+"information"] = fmt.Sprintf(
			"Model: \t\t %s\nIRQ:   \t\t 512\nGPU UUID: \t %s\nVideo BIOS: \t 97.00.88.00.0f\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No",
			g.Model, g.UUID, g.PCI, g.Minor, m.NVIDIADriver)
		if g.MemoryNode > 0 {
			f[at+"numa_status"] = fmt.Sprintf("Node:      %d\nStatus:    online", g.MemoryNode)
		}
	}
}

func (m Machine) amdFiles(f map[string]string) {
	if len(m.AMD) == 0 {
		return
	}
	const kfd = "sys/class/kfd/kfd/topology/nodes/"
	driver, node := "amdgpu", 0
	if m.NoKFD {
		driver = ""
	} else {
		f["sys/module/amdgpu/version"] = "6.12.12"
		for range m.Packages * max(1, m.Nodes) {
			f[fmt.Sprintf("%s%d/gpu_id", kfd, node)] = "0"
			f[fmt.Sprintf("%s%d/properties", kfd, node)] = "cpu_cores_count 96\nsimd_count 0\nmem_banks_count 1\nlocation_id 0\ndomain 0\nunique_id 0\n"
			node++
		}
	}
	first := make([]int, len(m.AMD)) // each GPU's first node
	for i, next := 0, node; i < len(m.AMD); i++ {
		first[i] = next
		if !m.AMD[i].Dead {
			next += max(1, m.AMD[i].Partitions)
		}
	}
	for i, g := range m.AMD {
		m.pciFiles(f, g.PCI, "1002", g.Device, "120000", driver, g.Node)
		if m.NoKFD {
			continue
		}
		at := pciDir + g.PCI + "/"
		f[at+"unique_id"] = fmt.Sprintf("%016x", g.UniqueID)
		f[at+"product_name"] = g.Product
		f[at+"mem_info_vram_total"] = strconv.FormatInt(g.VRAM, 10)
		f[at+"mem_info_vram_used"] = strconv.FormatInt(g.Used, 10)
		f[at+"current_compute_partition"], f[at+"current_memory_partition"] = g.Compute, g.Memory
		f[fmt.Sprintf("%sdrm/renderD%d/dev", at, g.Render)] = fmt.Sprintf("226:%d", g.Render)
		if g.Dead {
			continue
		}
		parts := max(1, g.Partitions)
		for part := range parts {
			dir := kfd + strconv.Itoa(node) + "/"
			at := location(g.PCI) + part
			if g.HighNumber {
				at = location(g.PCI) | part<<28
			}
			f[dir+"gpu_id"] = strconv.Itoa(1000 + node)
			f[dir+"properties"] = fmt.Sprintf(
				"cpu_cores_count 0\nsimd_count %d\nmem_banks_count 1\ngfx_target_version %d\nvendor_id 4098\ndevice_id %d\nlocation_id %d\ndomain %d\ndrm_render_minor %d\nlocal_mem_size 0\nunique_id %d\nnum_xcc %d\n",
				1216/parts, g.Target, hex(g.Device), at, hex(g.PCI[:4]), g.Render+part, g.UniqueID, 8/parts)
			f[dir+"mem_banks/0/properties"] = fmt.Sprintf("heap_type 1\nsize_in_bytes %d\nflags 0\nwidth 8192\nmem_clk_max 1300\n", g.VRAM/int64(parts))
			if part == 0 {
				m.linkFiles(f, dir, i, first)
			}
			node++
		}
	}
}

// linkFiles adds the links of a GPU's first node: PCIe to the CPUs of its NUMA node, xGMI
// to its other partitions and to all partitions of other GPUs. The other partitions have
// the same links; they are left out, because 64 partitions would have 4,000 files.
func (m Machine) linkFiles(f map[string]string, dir string, gpu int, first []int) {
	n := 0
	link := func(kind, to int) {
		f[fmt.Sprintf("%sio_links/%d/properties", dir, n)] = fmt.Sprintf(
			"type %d\nversion_major 0\nversion_minor 0\nnode_from %d\nnode_to %d\nweight 15\nmin_bandwidth 50000\nmax_bandwidth 50000\nflags 1\n", kind, first[gpu], to)
		n++
	}
	link(2, max(0, m.AMD[gpu].Node))
	for part := 1; part < m.AMD[gpu].Partitions; part++ {
		link(11, first[gpu]+part)
	}
	for _, other := range m.AMD[gpu].Links {
		if other >= len(first) {
			continue // a test has removed it
		}
		for part := range max(1, m.AMD[other].Partitions) {
			link(11, first[other]+part)
		}
	}
}

// location returns KFD's location_id of a PCI address: bus, device and function.
func location(pci string) int {
	return hex(pci[5:7])<<8 | hex(pci[8:10])<<3 | hex(pci[11:12])
}

func hex(text string) int {
	n, err := strconv.ParseInt(text, 16, 64)
	if err != nil {
		panic(fmt.Sprintf("machinetest: %v", err))
	}
	return int(n)
}
