package doctor

import (
	"context"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/lazy"
)

const fabricUnit = "nvidia-fabricmanager.service"

func fabricManager(ctx context.Context, m *Machine) Answer {
	u, err := m.unit(ctx, fabricUnit)
	if err != nil {
		return none("systemd does not answer: %s", err)
	}
	switches := m.NVSwitches()
	joined, waiting := fabricStates(m.Inventory.GPUs)
	driver := m.Inventory.NVIDIA.DriverVersion
	wanted := u.Exists() && m.StartsAtBoot(fabricUnit)
	runs := u.Running() && u.Sub != "auto-restart"
	switch {
	case runs && !wanted:
		return found(warn("it runs, but will not start after a reboot").Safely("systemctl enable %s", fabricUnit))
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
			Advise("install the package nvidia-fabricmanager in exactly version %s (from B200 on, also nvlsm), and run sudo systemctl enable --now nvidia-fabricmanager", driver))
	case u.Active == "failed" || u.Sub == "auto-restart":
		if other := fabricVersion(m, driver); other != "" {
			return found(fail("the fabric manager is version %s, but the driver is %s: without the same version, no CUDA program starts", other, driver).
				Advise("install nvidia-fabricmanager version %s, and run sudo systemctl restart nvidia-fabricmanager", driver))
		}
		return found(fail("it exits immediately (%s, exit status %d)", u.Result, u.ExitStatus).
			Advise("see sudo journalctl -b -u nvidia-fabricmanager, and /var/log/fabricmanager.log"))
	}
	return found(fail("it is %s", u.Active).Safely("systemctl enable --now %s", fabricUnit))
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
		all := fabricMismatch().FindAllStringSubmatch(m.End(name), -1)
		if len(all) > 0 && all[len(all)-1][2] == driver {
			return all[len(all)-1][1]
		}
	}
	return ""
}
