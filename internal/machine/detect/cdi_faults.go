package detect

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// ReadCDIFaults compares the specifications of NVIDIA's devices that count with the machine
// below root, of which inv knows the GPUs. The result is by the device's name. What cannot be
// read is not a fault. specs are as ReadCDI returns them.
func ReadCDIFaults(root string, inv *inventory.Inventory, specs []CDISpec) (map[string]inventory.CDIFault, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	defer t.close() //nolint:errcheck // nothing was written
	return cdiFaults(t, inv.GPUs, specs), nil
}

// checkCDI fills in the faults of this machine's specifications. A captured machine has them with the engine's answers.
func checkCDI(t tree, gpus []inventory.GPU, d *inventory.Docker) {
	dirs := d.CDIDirs
	if d.Version == "" { // it does not say; what it knew of devices may be recalled
		dirs = inventory.DefaultCDIDirs()
	}
	if !t.live() || len(dirs) == 0 || !slices.ContainsFunc(gpus, func(g inventory.GPU) bool { return g.Vendor == "nvidia" }) {
		return
	}
	t = t.unplanned()
	t.captured = nil
	d.CDIFaults = cdiFaults(t, gpus, readCDI(t, dirs))
}

func cdiFaults(t tree, gpus []inventory.GPU, specs []CDISpec) map[string]inventory.CDIFault {
	faults, majors, minors := map[string]inventory.CDIFault{}, nvidiaMajors(t), map[string]int{}
	for _, g := range gpus {
		if g.Vendor == "nvidia" && g.UUID != "" {
			minors[g.UUID] = g.Minor
		}
		for _, m := range g.MIG {
			minors[m.UUID] = g.Minor
		}
	}
	counts, both := CountingCDI(specs)
	for name, why := range both {
		faults[name] = inventory.CDIFault{Detail: why}
	}
	for name, s := range counts {
		uuid, ours := strings.CutPrefix(name, "nvidia.com/gpu=")
		if !ours {
			continue
		}
		minor, known := minors[uuid]
		if !known {
			minor = -1
		}
		e := s.edits[name]
		e.DeviceNodes, e.Mounts = slices.Concat(s.common.DeviceNodes, e.DeviceNodes), slices.Concat(s.common.Mounts, e.Mounts)
		if f := e.fault(t, majors, minor); f.Detail != "" {
			f.Spec = s.Path
			f.Detail = s.Path + " " + f.Detail
			faults[name] = f
		}
	}
	return faults
}

// fault returns what is wrong with all that a container gets; what it gives follows the file's name. minor is
// that of the device's GPU, -1 if unknown.
func (e cdiEdits) fault(t tree, majors map[string]uint32, minor int) inventory.CDIFault {
	var gpus []string
	uvm, missing := false, ""
	for _, n := range e.DeviceNodes {
		name := n.Path
		if n.HostPath != "" {
			name = n.HostPath
		}
		uvm = uvm || name == "/dev/nvidia-uvm"
		if k, ok := strings.CutPrefix(name, "/dev/nvidia"); ok {
			if _, err := strconv.Atoi(k); err == nil {
				gpus = append(gpus, name)
			}
		}
		major, is := dynamicMajor(majors, name)
		has, there := t.deviceNumber(name)
		switch {
		case is && there && unix.Major(has) != major:
			return inventory.CDIFault{Detail: fmt.Sprintf("gives %s, which has the major number %d, and the driver has %d", name, unix.Major(has), major), Node: true}
		case n.Major == 0:
			if missing == "" && t.absent(strings.TrimPrefix(name, "/")) { // the engine looks at it, and starts no container
				missing = name
			}
		case there && unix.Mkdev(n.Major, n.Minor) != has:
			return inventory.CDIFault{Detail: fmt.Sprintf("gives %s the number %d:%d, and it has %d:%d", name, n.Major, n.Minor, unix.Major(has), unix.Minor(has))}
		case is && !there && n.Major != major:
			return inventory.CDIFault{Detail: fmt.Sprintf("gives %s the major number %d, and the driver has %d", name, n.Major, major)}
		}
	}
	for _, m := range e.Mounts {
		if name := strings.TrimPrefix(m.HostPath, "/"); strings.HasPrefix(path.Base(name), "libcuda.so.") && t.absent(name) {
			return inventory.CDIFault{Detail: fmt.Sprintf("names %s, which does not exist", m.HostPath)}
		}
	}
	switch want := fmt.Sprintf("/dev/nvidia%d", minor); {
	case len(gpus) > 0 && !uvm: // it was written before the module was loaded
		return inventory.CDIFault{Detail: "does not give /dev/nvidia-uvm"}
	case len(gpus) > 0 && minor >= 0 && !slices.Contains(gpus, want):
		return inventory.CDIFault{Detail: fmt.Sprintf("gives %s, and the GPU is %s now", gpus[0], want)}
	case missing != "": // such as nvidia-uvm's after a boot, or a card's that has another number now
		return inventory.CDIFault{Detail: fmt.Sprintf("gives %s, which does not exist", missing), Node: strings.HasPrefix(missing, "/dev/nvidia")}
	}
	return inventory.CDIFault{}
}

// dynamicDrivers have no fixed number: the kernel gives them one when their module is loaded.
var dynamicDrivers = []string{"nvidia-caps-imex-channels", "nvidia-caps", "nvidia-uvm", "nvidia-nvswitch", "nvidia-nvlink"}

// dynamicMajor returns the major number that the driver of a device node has now.
func dynamicMajor(majors map[string]uint32, node string) (major uint32, ok bool) {
	for _, driver := range dynamicDrivers {
		if strings.HasPrefix(node, "/dev/"+driver) {
			major, ok = majors[driver]
			return major, ok
		}
	}
	return 0, false
}

// nvidiaMajors returns the major numbers of NVIDIA's character devices in /proc/devices, by driver.
func nvidiaMajors(t tree) map[string]uint32 {
	majors := map[string]uint32{}
	characters, _, _ := strings.Cut(t.text("proc/devices"), "Block devices:")
	for line := range strings.Lines(characters) {
		words := strings.Fields(line)
		if len(words) != 2 || !strings.HasPrefix(words[1], "nvidia") {
			continue
		}
		if major, err := strconv.ParseUint(words[0], 10, 32); err == nil && major > 0 {
			majors[words[1]] = uint32(major)
		}
	}
	return majors
}

// deviceNumber returns the number of a character device, false if there is none.
func (t tree) deviceNumber(name string) (uint64, bool) {
	info, err := fs.Stat(t.files, strings.TrimPrefix(name, "/"))
	if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return uint64(st.Rdev), true //nolint:unconvert // it has 32 bits on some machines
}
