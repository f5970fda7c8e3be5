package detect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/detect/probe"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// readNVIDIA reads NVIDIA's GPUs from this machine's NVML, or from the NVML report of a
// captured tree. It combines either with the PCI devices in sysfs, so that a GPU that NVML
// has lost is reported too. Without NVML, it uses sysfs and /proc/driver/nvidia. The result
// is nil on a machine with neither a GPU nor the driver.
func readNVIDIA(ctx context.Context, t tree) ([]inventory.GPU, *inventory.NVIDIA, []inventory.Problem) {
	report, err := askNVML(ctx, t)
	return nvidiaGPUs(t, report, err)
}

// silence is of this machine's GPUs, for as long as this process runs.
var silence probe.Silence

// askNVML returns NVML's report about this machine, or the one in a captured tree; nil in other trees.
func askNVML(ctx context.Context, t tree) (*nvml.Report, error) {
	if t.live() {
		return probe.Run(ctx, probe.Options{Silence: &silence})
	}
	text, err := t.read(nvmlPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", nvmlPath, err)
	}
	r, err := probe.Parse([]byte(text))
	if err == nil && !r.OK {
		err = &probe.Error{Code: r.Code, Text: r.Error, Absent: r.Absent}
	}
	return r, err
}

// nvidiaGPUs combines NVML's report, if there is one, with the files. refusal is why NVML
// did not answer.
func nvidiaGPUs(t tree, report *nvml.Report, refusal error) ([]inventory.GPU, *inventory.NVIDIA, []inventory.Problem) {
	devices := nvidiaDevices(t)
	nv := nvidiaDriver(t)
	answered := refusal == nil && report != nil
	if len(devices) == 0 && nv.DriverVersion == "" && !answered {
		return nil, nil, nil // without such hardware, missing NVML is normal
	}

	var gpus []inventory.GPU
	var problems []inventory.Problem
	if answered {
		nv.Source, nv.CUDAVersion, nv.NVMLVersion = "nvml", printable(report.CUDA), printable(report.NVML)
		nv.DriverVersion = cmp.Or(nv.DriverVersion, printable(report.Driver))
		gpus, problems = joinNVML(t, report, devices)
	} else {
		nv.Source = "pci"
		for _, d := range devices {
			if d.listed {
				nv.Source = "proc"
			}
		}
		gpus = withoutNVML(t, nv, devices)
		if refusal != nil {
			absent := errors.Is(refusal, probe.ErrNotEmbedded) || errors.Is(refusal, probe.ErrNoLoader)
			nv.NVMLError = printable(refusal.Error())
			if e := (*probe.Error)(nil); errors.As(refusal, &e) {
				nv.NVMLCode, absent = e.Code, e.Absent
			}
			if nv.NVMLCode == 0 && !errors.Is(refusal, context.DeadlineExceeded) {
				nv.NVMLCode = inventory.NVMLNotAsked
			}
			for i := range gpus {
				gpus[i].Unread = gpus[i].Healthy && !absent
			}
			from := map[string]string{"proc": "/proc/driver/nvidia", "pci": "the PCI devices in sysfs"}[nv.Source]
			problems = append(problems, inventory.Problem{Subject: inventory.SubjectNVML, Detail: fmt.Sprintf("%v; the GPUs were read from %s", refusal, from)})
		}
	}
	sortGPUs(gpus)
	for _, g := range gpus {
		if g.Error != "" {
			problems = append(problems, inventory.Problem{Subject: inventory.GPUSubject(g.PCI), Detail: g.Error})
		}
		if answered && g.Unread {
			problems = append(problems, inventory.Problem{Subject: inventory.GPUSubject(g.PCI), Detail: "the driver does not answer for it"})
		}
		if g.NVML != nil && len(g.NVML.Unread) > 0 {
			problems = append(problems, inventory.Problem{Subject: inventory.GPUSubject(g.PCI), Detail: printable(strings.Join(g.NVML.Unread, "; "))})
		}
	}
	nvLinks(gpus)
	return gpus, nv, append(problems, migCaps(t, gpus)...)
}

// nvLinks fills in which GPUs are linked to each other. It omits everything that is not a
// GPU of this machine, such as another virtual machine's, because no slot can get it.
func nvLinks(gpus []inventory.GPU) {
	here := map[string]bool{}
	for _, g := range gpus {
		here[g.PCI] = true
	}
	for i := range gpus {
		g := &gpus[i]
		if g.NVML == nil {
			continue
		}
		for _, at := range g.NVML.NVLinkGPUs {
			if pci, ok := inventory.PCIAddress(at); ok && here[pci] && pci != g.PCI && !slices.Contains(g.Links, pci) {
				g.Links = append(g.Links, pci)
			}
		}
		slices.SortFunc(g.Links, comparePCI)
	}
}

// withoutNVML returns GPUs according to files.
func withoutNVML(t tree, nv *inventory.NVIDIA, devices map[string]nvidiaDevice) []inventory.GPU {
	var listed, onBus bool
	for _, d := range devices {
		listed, onBus = listed || d.listed, onBus || d.onBus
	}
	// A tree of sysfs alone may come from a machine with the driver.
	known := t.live() || t.exists(livePath)
	var gpus []inventory.GPU
	for _, d := range devices {
		g := d.gpu()
		switch {
		case g.Error != "":
		case listed && !d.listed && !t.failedBelow(nvidiaProc+"/gpus"):
			g.Error = "the NVIDIA driver does not list it"
		case onBus && !d.onBus && !t.failedBelow(pciDir+"/"+d.PCI):
			g.Error = "it is missing from the PCI bus"
		case known && nv.DriverVersion == "" && !t.failedBelow(nvidiaProc+"/version") && !t.failedBelow(nvidiaModule):
			g.Error = "the NVIDIA driver is not loaded"
		}
		g.Healthy = g.Error == ""
		gpus = append(gpus, g)
	}
	return gpus
}

// joinNVML returns GPUs according to NVML's report. A GPU that has fallen off the bus may
// be an entry without an address, or missing; its PCI device is still there.
func joinNVML(t tree, report *nvml.Report, devices map[string]nvidiaDevice) ([]inventory.GPU, []inventory.Problem) {
	var gpus []inventory.GPU
	var problems []inventory.Problem
	var nameless []unnamed
	missing := maps.Clone(devices)
	listed := map[string]bool{}
	for _, n := range report.GPUs {
		pci, ok := inventory.PCIAddress(n.PCI)
		switch {
		case !ok && n.PCI == "" && n.Error != "":
			nameless = append(nameless, unnamed{n.Index, &n})
			continue
		case !ok || listed[pci]:
			problems = append(problems, inventory.Problem{Subject: inventory.SubjectNVML, Detail: fmt.Sprintf("GPU %d has the unusable PCI address %q", n.Index, printable(n.PCI))})
			continue
		}
		listed[pci] = true
		delete(missing, pci)
		d, ok := devices[pci]
		if !ok {
			d = nvidiaAt(t, pci, pciDir+"/"+pci) // another vendor's in sysfs, or no sysfs
		}
		gpus = append(gpus, nvmlGPU(d, n))
	}
	for _, h := range report.Hung {
		pci, ok := inventory.PCIAddress(h.PCI)
		if !ok || listed[pci] {
			nameless = append(nameless, unnamed{index: h.Index})
			continue
		}
		listed[pci] = true
		delete(missing, pci)
		d, ok := devices[pci]
		if !ok {
			d = nvidiaAt(t, pci, pciDir+"/"+pci)
		}
		gpus = append(gpus, hungGPU(d, h.Index))
	}
	more, faults := joinNameless(missing, nameless)
	return append(gpus, more...), append(problems, faults...)
}

// joinNameless returns the devices that no address in NVML's report is of. NVML numbers GPUs by address: if there are as
// many entries without an address, they are the same GPUs in the same order. Else a device may be one that hangs, if there is any.
// It numbers none that another driver has, or that its own excludes.
func joinNameless(missing map[string]nvidiaDevice, nameless []unnamed) (gpus []inventory.GPU, problems []inventory.Problem) {
	slices.SortFunc(nameless, func(a, b unnamed) int { return a.index - b.index })
	lost := slices.SortedFunc(maps.Values(missing), func(a, b nvidiaDevice) int { return comparePCI(a.PCI, b.PCI) })
	lost = slices.DeleteFunc(lost, func(d nvidiaDevice) bool {
		g := d.gpu()
		if g.Error != "" {
			gpus = append(gpus, g)
		}
		return g.Error != ""
	})
	same := len(nameless) == len(lost)
	hung := slices.ContainsFunc(nameless, func(n unnamed) bool { return n.broken == nil })
	for i, d := range lost {
		g := d.gpu()
		switch {
		case same && nameless[i].broken != nil:
			g = nvmlGPU(d, *nameless[i].broken)
			g.Healthy = false
		case same:
			g = hungGPU(d, nameless[i].index)
		case hung:
			g = hungGPU(d, -1)
		default:
			g.Error = "NVML does not list it; it may have fallen off the bus"
		}
		gpus = append(gpus, g)
	}
	for _, n := range nameless {
		switch {
		case same:
		case n.broken != nil:
			problems = append(problems, inventory.Problem{Subject: inventory.SubjectNVML, Detail: fmt.Sprintf("GPU %d: %s", n.index, printable(n.broken.Error))})
		default:
			problems = append(problems, inventory.Problem{Subject: inventory.SubjectGPUs, Detail: fmt.Sprintf("the driver does not answer for GPU %d, not even with its address", n.index)})
		}
	}
	return gpus, problems
}

// unnamed is a GPU whose address NVML does not tell.
type unnamed struct {
	index  int
	broken *nvml.GPU // nil if the driver does not answer for it
}

// hungGPU returns a GPU for which the driver does not answer, according to files. It may be well: what is known of it stays.
func hungGPU(d nvidiaDevice, index int) inventory.GPU {
	g := d.gpu()
	g.Index, g.Healthy = index, g.Error == ""
	g.Unread = g.Healthy
	return g
}

// nvmlGPU combines NVML's report n and the files' data d about a GPU.
func nvmlGPU(d nvidiaDevice, n nvml.GPU) inventory.GPU {
	g := d.gpu()
	g.NVML, g.Index = &n, n.Index
	g.Error = printable(n.Error)
	if g.Error == "" && !inventory.ValidUUID(n.UUID) {
		g.Error = "NVML reports no UUID"
	}
	g.Healthy = g.Error == ""
	if inventory.ValidUUID(n.UUID) {
		g.UUID = n.UUID
	}
	g.Model = cmp.Or(printable(n.Name), g.Model)
	g.PCIID = cmp.Or(printable(n.PCIID), g.PCIID)
	g.Serial = printable(n.Serial)
	if n.Minor != nil && *n.Minor >= 0 {
		g.Minor = *n.Minor
	}
	if g.MemoryNode < 0 && n.MemoryNode != nil && *n.MemoryNode >= 0 && d.memoryOnly(*n.MemoryNode) {
		g.MemoryNode = *n.MemoryNode
	}
	if n.Compute != "" {
		g.Arch = "sm_" + strings.ReplaceAll(printable(n.Compute), ".", "")
	}
	if n.Memory != nil {
		g.MemoryBytes, g.MemoryUsedBytes = byteCount(n.Memory.TotalBytes), byteCount(n.Memory.UsedBytes)
	}
	g.PersistenceMode, g.ComputeMode = printable(n.Persistence), printable(n.ComputeMode)
	if n.ECCMode != nil {
		g.ECCMode = printable(n.ECCMode.Current)
	}
	if n.MIGMode != nil {
		g.MIGMode = printable(n.MIGMode.Current)
	}
	if n.Power != nil && n.Power.Limit != nil {
		g.PowerLimitMilliwatts = int64(*n.Power.Limit)
	}
	if n.Clocks != nil && n.Clocks.MaxSM != nil {
		g.MaxSMClockMHz = int64(*n.Clocks.MaxSM)
	}
	g.Processes = len(n.Processes)
	g.MIG = migInstances(&n)
	return g
}

func printable(s string) string { return text.Line(s, 300) }

// byteCount converts n for an Inventory.
func byteCount(n uint64) int64 { return int64(min(n, 1<<62)) }
