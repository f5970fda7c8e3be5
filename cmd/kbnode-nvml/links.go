//go:build cgo && linux

package main

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// links reads PCIe, NVLink and the NVSwitch fabric.
func (d *device) links() {
	g := d.out
	g.PCIe = given(report.PCIe{
		Gen:      ask(d, "nvmlDeviceGetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration),
		MaxGen:   ask(d, "nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration),
		Width:    ask(d, "nvmlDeviceGetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth),
		MaxWidth: ask(d, "nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth),
		Replays:  ask(d, "nvmlDeviceGetPcieReplayCounter", d.GetPcieReplayCounter),
	})
	g.NVLinks = d.field(nvml.FI_DEV_NVLINK_LINK_COUNT)
	if n := value(g.NVLinks); n > 0 {
		up := 0
		for i := range min(int(n), nvml.NVLINK_MAX_LINKS) {
			s := ask(d, "nvmlDeviceGetNvLinkState", func() (nvml.EnableState, nvml.Return) { return d.GetNvLinkState(i) })
			if s == nil || *s != nvml.FEATURE_ENABLED {
				continue
			}
			up++
			if pci := d.peer(i); pci != "" && !slices.Contains(g.NVLinkGPUs, pci) {
				g.NVLinkGPUs = append(g.NVLinkGPUs, pci)
			}
		}
		slices.Sort(g.NVLinkGPUs)
		g.NVLinksUp = &up
	}
	g.Fabric = ask(d, "nvmlDeviceGetGpuFabricInfoV", func() (report.Fabric, nvml.Return) {
		f, ret := d.GetGpuFabricInfoV().V2()
		return report.Fabric{State: fabricState(f.State), Status: int(f.Status)}, ret
	})
	if g.Fabric == nil {
		g.Fabric = ask(d, "nvmlDeviceGetGpuFabricInfo", func() (report.Fabric, nvml.Return) {
			f, ret := d.GetGpuFabricInfo() // all that drivers before 545 have
			return report.Fabric{State: fabricState(f.State), Status: int(f.Status)}, ret
		})
	}
}

// peer returns the PCI address of the GPU at the other end of a link, "" if it is
// something else, such as a switch.
func (d *device) peer(link int) string {
	kind := ask(d, "nvmlDeviceGetNvLinkRemoteDeviceType", func() (nvml.IntNvLinkDeviceType, nvml.Return) {
		return d.GetNvLinkRemoteDeviceType(link)
	})
	if kind == nil || *kind != nvml.NVLINK_DEVICE_TYPE_GPU {
		return ""
	}
	return value(ask(d, "nvmlDeviceGetNvLinkRemotePciInfo_v2", func() (string, nvml.Return) {
		pci, ret := d.GetNvLinkRemotePciInfo(link)
		return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device), ret
	}))
}

// field reads one number of nvmlDeviceGetFieldValues.
func (d *device) field(id uint32) *int64 {
	return ask(d, "nvmlDeviceGetFieldValues", func() (int64, nvml.Return) {
		f := []nvml.FieldValue{{FieldId: id}}
		if ret := d.GetFieldValues(f); ret != nvml.SUCCESS {
			return 0, ret
		}
		v := binary.NativeEndian.Uint64(f[0].Value[:])
		switch nvml.ValueType(f[0].ValueType) {
		case nvml.VALUE_TYPE_UNSIGNED_INT:
			v = uint64(binary.NativeEndian.Uint32(f[0].Value[:]))
		case nvml.VALUE_TYPE_SIGNED_INT:
			v = uint64(int64(int32(binary.NativeEndian.Uint32(f[0].Value[:]))))
		case nvml.VALUE_TYPE_UNSIGNED_SHORT:
			v = uint64(binary.NativeEndian.Uint16(f[0].Value[:]))
		case nvml.VALUE_TYPE_DOUBLE:
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return int64(v), nvml.Return(f[0].NvmlReturn)
	})
}

func fabricState(s uint8) string {
	names := []string{"not supported", "not started", "in progress", "completed"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", s)
}
