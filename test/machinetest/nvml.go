package machinetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// Numbers of instances, and of compute instances of each, for which the driver has
// capabilities on each GPU, whether or not they exist.
const (
	migInstances = 15
	migComputes  = 8
)

// migCap returns the minor number of a GPU instance's capability, as drivers assign them.
// Those of its compute instances follow.
func migCap(minor, instance int) int {
	const first = 3 // 1 and 2 are config and monitor
	return first + (minor*migInstances+instance)*(1+migComputes)
}

// migUUID returns the UUID of the i-th instance of the k-th GPU.
func (m Machine) migUUID(k, i int) string {
	return fmt.Sprintf("MIG-%s0000-0000-5000-8%03x-%012x", m.NVIDIA[k].Device, k, i+1)
}

// nvmlFiles adds NVML's report for a machine with MIG instances or NVLink bridges, and the
// capabilities of instances.
func (m Machine) nvmlFiles(f map[string]string) {
	if m.NVIDIADriver == "" || !slices.ContainsFunc(m.NVIDIA, func(g NVIDIA) bool { return g.MIG != nil || g.Links != nil }) {
		return
	}
	report := nvml.Report{Schema: nvml.Schema, OK: true, Driver: m.NVIDIADriver, NVML: "13." + m.NVIDIADriver, CUDA: "13.0"}
	minors := []string{"config 1", "monitor 2"}
	for k, g := range m.NVIDIA {
		for gi := range migInstances {
			at := migCap(g.Minor, gi)
			minors = append(minors, fmt.Sprintf("gpu%d/gi%d/access %d", g.Minor, gi, at))
			for ci := range migComputes {
				minors = append(minors, fmt.Sprintf("gpu%d/gi%d/ci%d/access %d", g.Minor, gi, ci, at+1+ci))
			}
		}
		report.GPUs = append(report.GPUs, m.nvml(k))
	}
	f["proc/driver/nvidia-caps/mig-minors"] = strings.Join(minors, "\n")
	text, err := json.MarshalIndent(report, "", "\t")
	if err != nil {
		panic(fmt.Sprintf("machinetest: %v", err)) // impossible: only strings and numbers
	}
	f["kbnode/nvml.json"] = string(text)
}

// boards are what NVML reports about a model, by PCI device ID: compute capability, memory
// in MiB, and NVLinks, which are down without bridges.
var boards = map[string]struct {
	compute string
	mib     uint64
	links   int64
}{
	"20b5": {"8.0", 81920, 12},
	"2321": {"9.0", 95830, 18},
	"2330": {"9.0", 81559, 18},
	"2941": {"10.0", 189471, 18},
	"2901": {"10.0", 183359, 18},
	"26b9": {"8.9", 46068, 0},
}

// nvml returns NVML's report about the k-th GPU.
func (m Machine) nvml(k int) nvml.GPU {
	g, board := m.NVIDIA[k], boards[m.NVIDIA[k].Device]
	mode, minor, up := "off", g.Minor, int(board.links)
	n := nvml.GPU{
		Index: k, UUID: g.UUID, PCI: g.PCI, PCIID: "10de:" + g.Device, Name: g.Model, Minor: &minor, Compute: board.compute,
		Memory:      &nvml.Memory{TotalBytes: board.mib << 20},
		Persistence: "on", ComputeMode: "default", ECCMode: &nvml.Mode{Current: "on", Pending: "on"},
	}
	if g.MIG != nil {
		mode, up = "on", 0 // NVLink is off in this mode
	}
	for _, other := range g.Links {
		n.NVLinkGPUs = append(n.NVLinkGPUs, m.NVIDIA[other].PCI)
	}
	if board.links > 0 {
		n.MIGMode = &nvml.Mode{Current: mode, Pending: mode}
		n.NVLinks, n.NVLinksUp = &board.links, &up
	}
	for i, part := range g.MIG {
		n.MIG = append(n.MIG, nvml.MIG{
			UUID: m.migUUID(k, i), Name: g.Model + " MIG " + part.Profile, GPUInstance: part.GPUInstance, Profile: &part.ProfileID,
			Start: &part.Start, Size: &part.Size, Slices: part.Slices, ComputeSlices: part.Slices, Multiprocessors: part.SMs, MemoryBytes: part.MiB << 20,
		})
	}
	return n
}
