//go:build cgo && linux

package main

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// readGPU reads everything about the GPU with this NVML index. It calls begun when the address
// is known.
func readGPU(index int, begun func(pci string)) report.GPU {
	g := report.GPU{Index: index}
	h, ret := nvml.DeviceGetHandleByIndex(index)
	d := &device{Device: h, out: &g}
	if ret != nvml.SUCCESS {
		d.fail("nvmlDeviceGetHandleByIndex", ret)
		return g
	}
	d.address()
	begun(g.PCI)
	d.identity()
	d.modes()
	d.errors()
	d.speed()
	d.links()
	var listed bool
	g.Processes, listed = d.processes("Compute", d.GetComputeRunningProcesses)
	g.Unlisted = !listed
	d.mig()
	return g
}

// readUse reads what uses the GPU with this UUID. A list of processes that the driver does
// not return is an error: it must not look like an empty one.
func readUse(uuid string) report.GPU {
	g := report.GPU{Index: -1, UUID: uuid}
	h, ret := nvml.DeviceGetHandleByUUID(uuid)
	d := &device{Device: h, out: &g}
	if ret != nvml.SUCCESS {
		d.fail("nvmlDeviceGetHandleByUUID", ret)
		return g
	}
	g.MemoryNode = ask(d, "nvmlDeviceGetNumaNodeId", d.GetNumaNodeId)
	g.Memory = d.memory()
	var compute, graphics bool
	g.Processes, compute = d.processes("Compute", d.GetComputeRunningProcesses)
	g.Graphics, graphics = d.processes("Graphics", d.GetGraphicsRunningProcesses)
	if g.Error == "" && (!compute || !graphics) {
		g.Error = report.Untold
	}
	return g
}

// address comes first: the driver stores it, and it names even a lost GPU.
func (d *device) address() {
	g := d.out
	if pci, ret := d.GetPciInfo(); ret == nvml.SUCCESS {
		// Bus and Device lack the function, which is always 0 for a GPU.
		g.PCI = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
		g.PCIID = fmt.Sprintf("%04x:%04x", pci.PciDeviceId&0xffff, pci.PciDeviceId>>16)
	} else {
		d.fail("nvmlDeviceGetPciInfo", ret)
	}
}

func (d *device) identity() {
	g := d.out
	g.UUID = need(d, "nvmlDeviceGetUUID", d.GetUUID)
	g.Name = need(d, "nvmlDeviceGetName", d.GetName)
	g.Minor = ask(d, "nvmlDeviceGetMinorNumber", d.GetMinorNumber)
	g.Serial = value(ask(d, "nvmlDeviceGetSerial", d.GetSerial))
	g.MemoryNode = ask(d, "nvmlDeviceGetNumaNodeId", d.GetNumaNodeId)
	g.Compute = value(ask(d, "nvmlDeviceGetCudaComputeCapability", func() (string, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), ret
	}))
	g.Memory = d.memory()
}

// memory returns nil if the driver does not report it.
func (d *device) memory() *report.Memory {
	m := ask(d, "nvmlDeviceGetMemoryInfo_v2", func() (report.Memory, nvml.Return) {
		m, ret := d.GetMemoryInfo_v2()
		return report.Memory{TotalBytes: m.Total, UsedBytes: m.Used}, ret
	})
	if m != nil {
		return m
	}
	return ask(d, "nvmlDeviceGetMemoryInfo", func() (report.Memory, nvml.Return) {
		m, ret := d.GetMemoryInfo()
		return report.Memory{TotalBytes: m.Total, UsedBytes: m.Used}, ret
	})
}

func (d *device) modes() {
	g := d.out
	g.Persistence = value(ask(d, "nvmlDeviceGetPersistenceMode", func() (string, nvml.Return) {
		s, ret := d.GetPersistenceMode()
		return onOff(s == nvml.FEATURE_ENABLED), ret
	}))
	g.ComputeMode = value(ask(d, "nvmlDeviceGetComputeMode", func() (string, nvml.Return) {
		m, ret := d.GetComputeMode()
		return computeMode(m), ret
	}))
	g.MIGMode = ask(d, "nvmlDeviceGetMigMode", func() (report.Mode, nvml.Return) {
		now, next, ret := d.GetMigMode()
		return report.Mode{Current: onOff(now == nvml.DEVICE_MIG_ENABLE), Pending: onOff(next == nvml.DEVICE_MIG_ENABLE)}, ret
	})
	g.ECCMode = ask(d, "nvmlDeviceGetEccMode", func() (report.Mode, nvml.Return) {
		now, next, ret := d.GetEccMode()
		return report.Mode{Current: onOff(now == nvml.FEATURE_ENABLED), Pending: onOff(next == nvml.FEATURE_ENABLED)}, ret
	})
}

// errors reads what health is judged by.
func (d *device) errors() {
	g := d.out
	g.ECC = given(report.ECC{
		VolatileUncorrected: ask(d, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
			return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		}),
		SRAMThreshold: ask(d, "nvmlDeviceGetSramEccErrorStatus", func() (bool, nvml.Return) {
			s, ret := d.GetSramEccErrorStatus()
			return s.BThresholdExceeded != 0, ret
		}),
	})
	g.RemappedRows = ask(d, "nvmlDeviceGetRemappedRows", func() (r report.Remapped, ret nvml.Return) {
		_, r.Uncorrectable, r.Pending, r.Failed, ret = d.GetRemappedRows()
		return r, ret
	})
	if g.RemappedRows != nil {
		g.RemappedRows.Banks = ask(d, "nvmlDeviceGetRowRemapperHistogram", func() (report.Banks, nvml.Return) {
			h, ret := d.GetRowRemapperHistogram()
			return report.Banks{None: h.None}, ret
		})
	}
	g.RecoveryAction = d.field(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION)
}

// speed reads clocks, power and temperature.
func (d *device) speed() {
	g := d.out
	g.Clocks = given(report.Clocks{
		SM:     d.clock(),
		MaxSM:  ask(d, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) { return d.GetMaxClockInfo(nvml.CLOCK_SM) }),
		Memory: ask(d, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_MEM) }),
	})
	g.ClockReasons = d.clockReasons()
	g.Power = given(report.Power{
		Limit:    ask(d, "nvmlDeviceGetPowerManagementLimit", d.GetPowerManagementLimit),
		Enforced: ask(d, "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit),
		Default:  ask(d, "nvmlDeviceGetPowerManagementDefaultLimit", d.GetPowerManagementDefaultLimit),
		Usage:    d.power(),
	})
	g.Busy = d.busy()
	g.EnergyMillijoules = ask(d, "nvmlDeviceGetTotalEnergyConsumption", d.GetTotalEnergyConsumption)
	g.Temperature = given(report.Temperature{GPU: d.temperature(), Margin: d.margin()})
}

func (d *device) clock() *uint32 {
	return ask(d, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_SM) })
}

func (d *device) power() *uint32 { return ask(d, "nvmlDeviceGetPowerUsage", d.GetPowerUsage) }

// busy returns the percentage of the driver's last sample period, up to a second, in which a kernel ran.
func (d *device) busy() *uint32 {
	return ask(d, "nvmlDeviceGetUtilizationRates", func() (uint32, nvml.Return) {
		u, ret := d.GetUtilizationRates()
		return u.Gpu, ret
	})
}

func (d *device) temperature() *uint32 {
	return ask(d, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) })
}

func (d *device) margin() *int32 {
	return ask(d, "nvmlDeviceGetMarginTemperature", func() (int32, nvml.Return) {
		m, ret := d.GetMarginTemperature()
		return m.MarginTemperature, ret
	})
}

func (d *device) clockReasons() *uint64 {
	if has("nvmlDeviceGetCurrentClocksEventReasons") {
		return ask(d, "nvmlDeviceGetCurrentClocksEventReasons", d.GetCurrentClocksEventReasons)
	}
	// Drivers before 535 have only the older name.
	return ask(d, "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons)
}

// processes returns the processes of one kind, from the newest function that the driver
// has, which is the one that list calls; ok is false if it returns no list.
func (d *device) processes(kind string, list func() ([]nvml.ProcessInfo, nvml.Return)) (all []report.Process, ok bool) {
	for _, version := range []string{"_v3", "_v2", ""} {
		symbol := "nvmlDeviceGet" + kind + "RunningProcesses" + version
		if !has(symbol) {
			continue
		}
		found := ask(d, symbol, list)
		for _, p := range value(found) {
			q := report.Process{PID: p.Pid}
			if p.UsedGpuMemory != ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
				q.UsedBytes = p.UsedGpuMemory
			}
			all = append(all, q)
		}
		return all, found != nil
	}
	return nil, false
}

// given returns a pointer to v, nil if v is zero.
func given[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func computeMode(m nvml.ComputeMode) string {
	names := []string{"default", "exclusive-thread", "prohibited", "exclusive-process"}
	if int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("mode %d", m)
}

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
		m := &device{Device: *h, out: &report.GPU{Index: i}}
		g := report.MIG{UUID: need(m, "nvmlDeviceGetUUID", m.GetUUID)}
		g.GPUInstance = need(m, "nvmlDeviceGetGpuInstanceId", m.GetGpuInstanceId)
		g.ComputeInstance = need(m, "nvmlDeviceGetComputeInstanceId", m.GetComputeInstanceId)
		g.Name = value(ask(m, "nvmlDeviceGetName", m.GetName))
		if a := ask(m, "nvmlDeviceGetAttributes_v2", m.GetAttributes); a != nil {
			g.Slices, g.ComputeSlices = int(a.GpuInstanceSliceCount), int(a.ComputeInstanceSliceCount)
			g.Multiprocessors, g.MemoryBytes = int(a.MultiprocessorCount), int64(a.MemorySizeMB)<<20
		}
		g.Error = m.out.Error
		if g.Error == "" {
			d.placement(&g)
			g.Error = strings.Join(m.out.Unread, "; ") // without its profile it would be another instance
		}
		d.out.MIG = append(d.out.MIG, g)
	}
}

// placement reads the place of an instance on its parent. Place and profile stay the same
// when the instance is created again; its UUID does not.
func (d *device) placement(m *report.MIG) {
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
