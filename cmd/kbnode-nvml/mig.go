//go:build cgo && linux

package main

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-mode/kbnode/internal/inventory/probe"
)

// mig reads the MIG devices; indices may have gaps.
func (d *device) mig() {
	if d.out.MIGMode == nil || d.out.MIGMode.Current != "on" {
		return
	}
	for i := range value(ask(d, "nvmlDeviceGetMaxMigDeviceCount", d.GetMaxMigDeviceCount)) {
		h := ask(d, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) { return d.GetMigDeviceHandleByIndex(i) })
		if h == nil {
			continue
		}
		m := &device{Device: *h, out: &probe.GPU{Index: i}}
		g := probe.MIG{UUID: need(m, "nvmlDeviceGetUUID", m.GetUUID)}
		g.GPUInstance = need(m, "nvmlDeviceGetGpuInstanceId", m.GetGpuInstanceId)
		g.ComputeInstance = need(m, "nvmlDeviceGetComputeInstanceId", m.GetComputeInstanceId)
		g.Name = value(ask(m, "nvmlDeviceGetName", m.GetName))
		if a := ask(m, "nvmlDeviceGetAttributes_v2", m.GetAttributes); a != nil {
			g.Slices, g.ComputeSlices = int(a.GpuInstanceSliceCount), int(a.ComputeInstanceSliceCount)
			g.Multiprocessors, g.MemoryBytes = int(a.MultiprocessorCount), int64(a.MemorySizeMB)<<20
		}
		if g.Error = m.out.Error; g.Error == "" {
			d.placement(&g)
		}
		d.out.MIG = append(d.out.MIG, g)
	}
}

// placement reads the place of an instance on its parent. Place and profile stay the same
// when the instance is created again; its UUID does not.
func (d *device) placement(m *probe.MIG) {
	if !has("nvmlGpuInstanceGetInfo") {
		return
	}
	gi := ask(d, "nvmlDeviceGetGpuInstanceById", func() (nvml.GpuInstance, nvml.Return) { return d.GetGpuInstanceById(m.GPUInstance) })
	if gi == nil {
		return
	}
	if info := ask(d, "nvmlGpuInstanceGetInfo", (*gi).GetInfo); info != nil {
		profile, start, size := int(info.ProfileId), int(info.Placement.Start), int(info.Placement.Size)
		m.Profile, m.Start, m.Size = &profile, &start, &size
	}
}
