package detect

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

const (
	nvidiaProc   = "proc/driver/nvidia"
	nvidiaModule = "sys/module/nvidia/version"
	nvidiaVendor = "0x10de"
	// A recorded tree may have the devices without the directory of links.
	pciRoots = "sys/devices"
)

// nvidiaDevice is what files report about one GPU.
type nvidiaDevice struct {
	inventory.GPU // without what follows from its ID; its memory is known only if it is a NUMA node
	t             tree
	onBus         bool   // sysfs has it
	driver        string // bound driver, "" if sysfs does not report it
	listed        bool   // the NVIDIA driver has it
	excluded      bool   // and was told to ignore it
}

// nvidiaDevices finds the GPUs among the PCI devices and in the driver's own directory, by
// address. A lost GPU may be in only one of them, and recorded trees may have either.
func nvidiaDevices(t tree) map[string]nvidiaDevice {
	dirs := pciDirs(t)
	devices := map[string]nvidiaDevice{}
	for pci, dir := range dirs {
		// Function 0: the others are sound, USB or virtual functions.
		if !strings.HasSuffix(pci, ".0") || t.text(dir+"/vendor") != nvidiaVendor {
			continue
		}
		if class := t.text(dir + "/class"); strings.HasPrefix(class, "0x0302") || strings.HasPrefix(class, "0x0300") {
			devices[pci] = nvidiaAt(t, pci, dir)
		}
	}
	for _, name := range t.names(nvidiaProc + "/gpus") {
		pci, ok := inventory.PCIAddress(name)
		if !ok {
			continue
		}
		d, ok := devices[pci]
		if !ok {
			d = nvidiaAt(t, pci, cmp.Or(dirs[pci], pciDir+"/"+pci))
		}
		d.readProc(t, nvidiaProc+"/gpus/"+name)
		devices[pci] = d
	}
	return devices
}

// maxDevices bounds the PCI devices of a tree; machines have far fewer.
const maxDevices = 32 << 10

// pciDirs returns the directories of the PCI devices by address.
func pciDirs(t tree) map[string]string {
	dirs := map[string]string{}
	for _, name := range t.names(pciDir) {
		if pci, ok := inventory.PCIAddress(name); ok {
			dirs[pci] = pciDir + "/" + name
		}
	}
	if len(dirs) > 0 {
		return dirs
	}
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		for _, name := range t.names(dir) {
			if pci, ok := inventory.PCIAddress(name); ok && depth > 0 && len(dirs) < maxDevices {
				dirs[pci] = dir + "/" + name
				walk(dir+"/"+name, depth-1)
			}
		}
	}
	for _, name := range t.names(pciRoots) {
		if strings.HasPrefix(name, "pci") {
			walk(pciRoots+"/"+name, 16) // chains of bridges are shorter
		}
	}
	return dirs
}

// nvidiaAt reads one PCI device.
func nvidiaAt(t tree, pci, dir string) nvidiaDevice {
	d := nvidiaDevice{t: t, onBus: t.exists(dir), GPU: inventory.GPU{
		Vendor: "nvidia", PCI: pci, Index: -1, NUMANode: t.id(dir + "/numa_node"), MemoryNode: -1, Minor: -1, RenderMinor: -1,
	}}
	d.driver = printable(ueventField(t.text(dir+"/uevent"), "DRIVER"))
	vendor, device := pciID(t.text(dir+"/vendor")), pciID(t.text(dir+"/device"))
	if vendor != "" && device != "" {
		d.PCIID = vendor + ":" + device
	}
	return d
}

// readProc reads what the driver reports about a GPU.
func (d *nvidiaDevice) readProc(t tree, dir string) {
	d.listed = true
	for line := range strings.Lines(t.text(dir + "/information")) {
		name, value, _ := strings.Cut(line, ":")
		value = printable(value)
		switch strings.TrimSpace(name) {
		case "Model":
			d.Model = value
		case "GPU UUID":
			if inventory.ValidUUID(value) { // it is not until the GPU has been started
				d.UUID = value
			}
		case "Device Minor":
			if n, err := strconv.Atoi(value); err == nil && n >= 0 && n < 1<<20 {
				d.Minor = n
			}
		case "GPU Excluded":
			d.excluded = value == "Yes"
		}
	}
	status := fields(t.text(dir + "/numa_status"))
	node, err := strconv.Atoi(status["Node"])
	if err != nil || node < 0 || node > 1<<20 || !d.memoryOnly(node) {
		return
	}
	d.MemoryNode = node
	if size, err := strconv.ParseInt(status["Size"], 16, 64); err == nil && size > 0 {
		d.MemoryBytes = size
	}
}

// memoryOnly reports whether a NUMA node has no CPUs, as a GPU's own memory does. Believing
// a driver that names another node would take RAM away.
func (d *nvidiaDevice) memoryOnly(node int) bool {
	dir := nodeDir + "/node" + strconv.Itoa(node)
	cpus, _ := d.t.cpus(dir+"/cpulist", dir+"/cpumap")
	return cpus.Len() == 0
}

// gpu returns the GPU for an Inventory. Error is why it cannot be used, as far as the files of
// one device show.
func (d *nvidiaDevice) gpu() inventory.GPU {
	known := nvidiaModels[strings.TrimPrefix(d.PCIID, "10de:")]
	g := d.GPU
	g.Model, g.Arch = cmp.Or(g.Model, known.model, strings.TrimSpace("NVIDIA device "+g.PCIID)), known.arch
	switch {
	case d.excluded:
		g.Error = "the NVIDIA driver is configured to exclude it (NVreg_ExcludedGpus)"
	case d.driver != "" && d.driver != "nvidia" && !d.listed && strings.HasPrefix(d.PCIID, "10de:"):
		g.Error = fmt.Sprintf("it is bound to the driver %s, not nvidia", d.driver)
	}
	return g
}

// nvidiaModels names GPUs as their driver would, by PCI device ID, in case there is no
// driver. The IDs are from pci.ids.
var nvidiaModels = map[string]struct{ model, arch string }{
	"20b0": {"NVIDIA A100-SXM4-40GB", "sm_80"},
	"20b2": {"NVIDIA A100-SXM4-80GB", "sm_80"},
	"20b5": {"NVIDIA A100 80GB PCIe", "sm_80"},
	"2330": {"NVIDIA H100 80GB HBM3", "sm_90"},
	"2331": {"NVIDIA H100 PCIe", "sm_90"},
	"2321": {"NVIDIA H100 NVL", "sm_90"},
	"2335": {"NVIDIA H200", "sm_90"},
	"2342": {"NVIDIA GH200 480GB", "sm_90"},
	"26b9": {"NVIDIA L40S", "sm_89"},
	"27b8": {"NVIDIA L4", "sm_89"},
	"2901": {"NVIDIA B200", "sm_100"},
	"2941": {"NVIDIA GB200", "sm_100"},
	"3182": {"NVIDIA B300 SXM6 AC", "sm_103"},
}

// driverVersion matches 580.95.05 in the driver's version line.
var driverVersion = lazy.Regexp(`\b\d{3,4}\.\d{1,3}(\.\d{1,3})?\b`)

// nvidiaDriver returns what files report about the loaded driver.
func nvidiaDriver(t tree) *inventory.NVIDIA {
	nv := &inventory.NVIDIA{}
	if line, ok := strings.CutPrefix(t.text(nvidiaProc+"/version"), "NVRM version:"); ok {
		line, _, _ = strings.Cut(line, "\n")
		nv.DriverVersion = driverVersion().FindString(line)
	}
	if nv.DriverVersion == "" {
		nv.DriverVersion = driverVersion().FindString(t.text(nvidiaModule))
	}
	majors := nvidiaMajors(t)
	nv.UVMMajor, nv.CapsMajor = int(majors["nvidia-uvm"]), int(majors["nvidia-caps"])
	return nv
}

// pciID formats the number in a vendor or device file as four digits, "" if it is invalid.
func pciID(text string) string {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%04x", n)
}

// comparePCI orders addresses like the bus; a domain may have five digits.
func comparePCI(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
