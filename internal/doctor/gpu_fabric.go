package doctor

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/lazy"
)

const fabricUnit = "nvidia-fabricmanager.service"

var fabricChecks = []Check{
	{
		ID: "nvidia-fabricmanager", Group: "gpu", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"nvidia-driver"},
		About: "on machines with NVSwitches, the fabric manager runs in the driver's version",
		Run:   fabricManager,
	},
	{
		ID: "nvidia-fabric", Group: "gpu", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"nvidia-fabricmanager"},
		About: "each GPU is part of the NVLink fabric",
		Run:   judged("gpu.fabric"),
	},
}

func fabricManager(ctx context.Context, m *Machine) Answer {
	u, err := m.unit(ctx, fabricUnit)
	if err != nil {
		return none("systemd does not answer: %s", err)
	}
	switches := nvSwitches(m)
	joined, waiting := fabricStates(m.Inventory.GPUs)
	driver := m.Inventory.NVIDIA.DriverVersion
	wanted := u.Exists() && m.linked(fabricUnit)
	runs := u.Running() && u.Sub != "auto-restart"
	switch {
	case runs && !wanted:
		return found(warn("it runs, but will not start after a reboot").safely("systemctl enable %s", fabricUnit))
	case runs:
		return found(ok("running"))
	case switches == 0 && waiting == 0 && joined > 0 && !wanted:
		return found(ok("not needed: the fabric is managed elsewhere")) // GB200: in the switch tray
	case switches == 0 && waiting == 0 && !wanted:
		return none("no NVSwitch")
	case switches == 0 && waiting == 0 && joined == 0 && m.Inventory.NVIDIA.Source == "nvml":
		return none("no NVSwitch") // an image for several kinds of machines enables it everywhere
	case !u.Exists():
		return found(fail("the GPUs use NVSwitches, but there is no fabric manager, so no CUDA program starts").
			advise("install the package nvidia-fabricmanager in exactly version %s (from B200 on, also nvlsm), and run sudo systemctl enable --now nvidia-fabricmanager", driver))
	case u.Active == "failed" || u.Sub == "auto-restart":
		if other := fabricVersion(m, driver); other != "" {
			return found(fail("the fabric manager is version %s, but the driver is %s: without the same version, no CUDA program starts", other, driver).
				advise("install nvidia-fabricmanager version %s, and run sudo systemctl restart nvidia-fabricmanager", driver))
		}
		return found(fail("it exits immediately (%s, exit status %d)", u.Result, u.ExitStatus).
			advise("see sudo journalctl -b -u nvidia-fabricmanager, and /var/log/fabricmanager.log"))
	}
	return found(fail("it is %s", u.Active).safely("systemctl enable --now %s", fabricUnit))
}

// nvSwitches counts NVIDIA's bridges on the PCI bus: up to Hopper, these are NVSwitches.
func nvSwitches(m *Machine) (n int) {
	dirs, _ := filepath.Glob(m.path("/sys/bus/pci/devices/*"))
	for _, dir := range dirs {
		at := filepath.Join("/sys/bus/pci/devices", filepath.Base(dir))
		vendor, _ := m.read(at + "/vendor")
		if class, _ := m.read(at + "/class"); strings.TrimSpace(vendor) == "0x10de" && strings.HasPrefix(class, "0x0680") {
			n++
		}
	}
	return n
}

// fabricStates counts the GPUs that have joined a fabric, and those that wait to.
func fabricStates(gpus []inventory.GPU) (joined, waiting int) {
	for _, g := range gpus {
		if g.NVML == nil || g.NVML.Fabric == nil {
			continue
		}
		switch g.NVML.Fabric.State {
		case "completed":
			joined++
		case "in progress", "not started":
			waiting++
		}
	}
	return joined, waiting
}

// fabricMismatch matches what a fabric manager logs before it exits if its version is not
// the driver's.
var fabricMismatch = lazy.Regexp(`driver interface version ([0-9.]{3,32}) do(?:n't|esn't) match with driver version ([0-9.]{3,32}[0-9])`)

// fabricVersion returns the version of a fabric manager that refused to start with a
// driver, from the end of a log.
func fabricVersion(m *Machine, driver string) string {
	for _, name := range []string{"/var/log/fabricmanager.log", "/var/log/syslog", "/var/log/messages"} {
		all := fabricMismatch().FindAllStringSubmatch(endOf(m.path(name)), -1)
		if len(all) > 0 && all[len(all)-1][2] == driver {
			return all[len(all)-1][1]
		}
	}
	return ""
}

// endOf returns the end of a log.
func endOf(name string) string {
	const most = 256 << 10
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return ""
	} else if fi.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, _ := io.ReadAll(io.LimitReader(f, most))
	return string(text)
}
