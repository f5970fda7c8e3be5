package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

const (
	noNVIDIA = "no NVIDIA GPU and no driver for one"
	noAMD    = "no AMD GPU and no driver for one"
)

// moduleMissing returns why NVIDIA's module is not loaded.
func moduleMissing(m *Machine) Finding {
	if m.Recorded != "" {
		return fail("NVIDIA's driver is not loaded").Advise("sudo kbnode doctor --only nvidia-driver says why, on the machine")
	}
	kernel := m.Inventory.Kernel
	built := m.NVIDIAKernels()
	switch {
	case kernel != "" && slices.Contains(built, kernel):
		f := fail("the module nvidia is installed but not loaded").Safely("modprobe nvidia && modprobe nvidia-uvm")
		if m.SecureBoot() {
			f = f.Advise("if that says \"Key was rejected\", Secure Boot is on: sign the module (mokutil), or turn Secure Boot off")
		}
		return f
	case len(built) > 0:
		f := fail("the module nvidia is installed for kernel %s, but %s is running", strings.Join(built, ", "), kernel).
			Advise("boot that kernel, or install the module for this one")
		if len(m.List("/var/lib/dkms/nvidia*")) > 0 && (m.Inventory.OS.ID == "ubuntu" || m.Inventory.OS.ID == "debian") {
			f = f.By("apt-get update && apt-get install -y linux-headers-%[1]s && dkms autoinstall -k %[1]s && modprobe nvidia && modprobe nvidia-uvm", kernel)
		}
		return f
	}
	return fail("NVIDIA's driver is not installed").Advise("install NVIDIA's data center driver and reboot; on Ubuntu run sudo ubuntu-drivers install --gpgpu")
}

func nvidiaDriver(_ context.Context, m *Machine) Answer {
	switch nv := m.Inventory.NVIDIA; {
	case nv == nil:
		return none(noNVIDIA)
	case nv.DriverVersion == "":
		return found(moduleMissing(m))
	default:
		return found(ok("%s", nv.DriverVersion))
	}
}

func nvidiaLibrary(_ context.Context, m *Machine) Answer {
	nv := m.Inventory.NVIDIA
	switch {
	case nv.NVMLCode == nvml.CodeMismatch:
		is := m.NVIDIALibrary()
		if is == "" || is == nv.DriverVersion {
			is = "another version"
		}
		return found(rebooted(m, fail("the loaded module is %s, but the library is %s: the driver was upgraded, so no CUDA program starts", nv.DriverVersion, is)))
	case nv.Source != "nvml":
		return none("NVML does not answer")
	}
	return found(ok("%s", nv.DriverVersion))
}

func nvidiaNVML(_ context.Context, m *Machine) Answer {
	nv := m.Inventory.NVIDIA
	switch {
	case nv.NVMLCode == nvml.CodeMismatch:
		return none("see nvidia-library")
	case nv.NVMLCode == nvml.CodeNoLibrary:
		return found(fail("%s", nv.NVMLError).Advise("install the driver's libraries in exactly version %s; on Ubuntu they are libnvidia-compute and nvidia-utils of its series", nv.DriverVersion))
	case nv.Source != "nvml":
		return found(warn("%s; the GPUs were read from %s, which has less information", cmp.Or(nv.NVMLError, "it was not queried"), map[string]string{"proc": "/proc/driver/nvidia", "pci": "the PCI bus"}[nv.Source]).
			Advise("run sudo nvidia-smi; if it hangs, sudo dmesg names the GPU that hangs, and the machine needs a reboot"))
	}
	return found(ok("CUDA %s", nv.CUDAVersion))
}

func nvidiaUVM(_ context.Context, m *Machine) Answer {
	if m.Inventory.NVIDIA.UVMMajor == 0 {
		return found(fail("the module nvidia-uvm is not loaded").Safely("modprobe nvidia-uvm && echo nvidia-uvm >/etc/modules-load.d/nvidia-uvm.conf"))
	}
	return found(ok("loaded"))
}

func amdDriver(_ context.Context, m *Machine) Answer {
	amd := m.Inventory.AMD
	if amd == nil {
		return none(noAMD)
	}
	if !m.Exists("/sys/module/amdgpu") && amd.DriverVersion == "" && !amd.KFD {
		return found(fail("the module amdgpu is not loaded").Safely("modprobe amdgpu"))
	}
	if !amd.KFD {
		return found(fail("amdgpu is loaded without its compute driver (KFD)").
			Advise("see what sudo dmesg says about kfd; a kernel without CONFIG_HSA_AMD needs AMD's own driver: install amdgpu-dkms"))
	}
	return found(ok("%s", cmp.Or(amd.DriverVersion, "of the kernel "+m.Inventory.Kernel)))
}

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
		return found(fail("it exits immediately (%s, exit status %d)", u.Result, u.ExitStatus).
			Advise("its version must be the driver's, %s; see sudo journalctl -b -u nvidia-fabricmanager, and /var/log/fabricmanager.log", driver))
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
