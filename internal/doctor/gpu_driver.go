package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Error codes from nvml.h.
const (
	nvmlNoLibrary = 12 // NVML_ERROR_LIBRARY_NOT_FOUND
	nvmlLost      = 15 // NVML_ERROR_GPU_IS_LOST
	nvmlReset     = 16 // NVML_ERROR_RESET_REQUIRED
	nvmlMismatch  = 18 // NVML_ERROR_LIB_RM_VERSION_MISMATCH
)

const (
	noNVIDIA = "no NVIDIA GPU and no driver for one"
	noAMD    = "no AMD GPU and no driver for one"
)

var driverChecks = []Check{
	{
		ID: "nvidia-driver", Group: "gpu", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "NVIDIA's kernel module is loaded",
		Run: func(_ context.Context, m *Machine) Answer {
			switch nv := m.Inventory.NVIDIA; {
			case nv == nil:
				return none(noNVIDIA)
			case nv.DriverVersion == "":
				return found(moduleMissing(m))
			default:
				return found(ok("%s", nv.DriverVersion))
			}
		},
	},
	{
		ID: "nvidia-library", Group: "gpu", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"nvidia-driver"},
		About: "the driver's library and the loaded module have the same version",
		Run: func(_ context.Context, m *Machine) Answer {
			nv := m.Inventory.NVIDIA
			switch {
			case nv.NVMLCode == nvmlMismatch:
				is := "another version"
				if v := libraryVersion(m); v != "" && v != nv.DriverVersion {
					is = v
				}
				return found(rebooted(m, fail("the loaded module is %s, but the library is %s: the driver was upgraded, so no CUDA program starts", nv.DriverVersion, is)))
			case nv.Source != "nvml":
				return none("NVML does not answer")
			}
			return found(ok("%s", nv.DriverVersion))
		},
	},
	{
		ID: "nvidia-nvml", Group: "gpu", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"nvidia-driver"},
		About: "NVML answers",
		Run: func(_ context.Context, m *Machine) Answer {
			nv := m.Inventory.NVIDIA
			switch {
			case nv.NVMLCode == nvmlMismatch:
				return none("see nvidia-library")
			case nv.NVMLCode == nvmlNoLibrary:
				return found(fail("%s", nv.NVMLError).advise("install the driver's libraries in exactly version %s; on Ubuntu they are libnvidia-compute and nvidia-utils of its series", nv.DriverVersion))
			case nv.Source != "nvml":
				why := nv.NVMLError
				if why == "" {
					why = "it was not queried"
				}
				return found(warn("%s; the GPUs were read from %s, which has less information", why, map[string]string{"proc": "/proc/driver/nvidia", "pci": "the PCI bus"}[nv.Source]).
					advise("run sudo nvidia-smi; if it hangs, sudo dmesg names the GPU that hangs, and the machine needs a reboot"))
			}
			return found(ok("CUDA %s", nv.CUDAVersion))
		},
	},
	{
		ID: "nvidia-uvm", Group: "gpu", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"nvidia-driver"},
		About: "NVIDIA's module for unified memory, which CUDA needs, is loaded",
		Run: func(_ context.Context, m *Machine) Answer {
			if m.Inventory.NVIDIA.UVMMajor == 0 {
				return found(fail("the module nvidia-uvm is not loaded").safely("modprobe nvidia-uvm && echo nvidia-uvm >/etc/modules-load.d/nvidia-uvm.conf"))
			}
			return found(ok("loaded"))
		},
	},
	{
		ID: "amd-driver", Group: "gpu", Vendor: "amd", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "the kernel module amdgpu is loaded, with its compute driver (KFD)",
		Run: func(_ context.Context, m *Machine) Answer {
			amd := m.Inventory.AMD
			if amd == nil {
				return none(noAMD)
			}
			version := amd.DriverVersion
			if _, err := os.Stat(m.path("/sys/module/amdgpu")); err != nil && version == "" && !amd.KFD {
				return found(fail("the module amdgpu is not loaded").safely("modprobe amdgpu"))
			}
			if !amd.KFD {
				return found(fail("amdgpu is loaded without its compute driver (KFD)").
					advise("see what sudo dmesg says about kfd; a kernel without CONFIG_HSA_AMD needs AMD's own driver: install amdgpu-dkms"))
			}
			if version == "" {
				version = "of the kernel " + m.Inventory.Kernel
			}
			return found(ok("%s", version))
		},
	},
}

// moduleMissing returns why NVIDIA's module is not loaded.
func moduleMissing(m *Machine) Finding {
	kernel := m.Inventory.Kernel
	built := kernelsWith(m, "*")
	switch {
	case kernel != "" && slices.Contains(built, kernel):
		f := fail("the module nvidia is installed but not loaded").safely("modprobe nvidia && modprobe nvidia-uvm")
		if hasSecureBoot(m) {
			f = f.advise("if that says \"Key was rejected\", Secure Boot is on: sign the module (mokutil), or turn Secure Boot off")
		}
		return f
	case len(built) > 0:
		f := fail("the module nvidia is installed for kernel %s, but %s is running", strings.Join(built, ", "), kernel).
			advise("boot that kernel, or install the module for this one")
		if dkms, _ := filepath.Glob(m.path("/var/lib/dkms/nvidia*")); len(dkms) > 0 && (m.Inventory.OS.ID == "ubuntu" || m.Inventory.OS.ID == "debian") {
			f = f.by("apt-get update && apt-get install -y linux-headers-%[1]s && dkms autoinstall -k %[1]s && modprobe nvidia && modprobe nvidia-uvm", kernel)
		}
		return f
	}
	return fail("NVIDIA's driver is not installed").advise("install NVIDIA's data center driver and reboot; on Ubuntu run sudo ubuntu-drivers install --gpgpu")
}

// kernelsWith returns the kernels below /lib/modules that have NVIDIA's module.
func kernelsWith(m *Machine, kernel string) []string {
	var kernels []string
	for _, dir := range []string{"updates", "updates/dkms", "extra", "extra/nvidia", "weak-updates", "kernel/drivers/video", "kernel/nvidia-*", "kernel/nvidia-*/bits"} {
		files, _ := filepath.Glob(m.path(filepath.Join("/lib/modules", kernel, dir, "nvidia.ko*")))
		for _, file := range files {
			rest, err := filepath.Rel(m.path("/lib/modules"), file)
			if name, _, below := strings.Cut(rest, "/"); err == nil && below && !slices.Contains(kernels, name) {
				kernels = append(kernels, name)
			}
		}
	}
	slices.Sort(kernels)
	return kernels[:min(len(kernels), 8)]
}

// hasSecureBoot reads the firmware's variable: four bytes of attributes, then 1 for on.
func hasSecureBoot(m *Machine) bool {
	text, err := m.read("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
	return err == nil && len(text) == 5 && text[4] == 1
}

// libraryVersion returns the version in the name of the library that programs load, or ""
// if there is not exactly one.
func libraryVersion(m *Machine) string {
	var versions []string
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"} {
		files, _ := filepath.Glob(m.path(dir + "/libnvidia-ml.so.*.*"))
		for _, file := range files {
			if _, v, is := strings.Cut(filepath.Base(file), ".so."); is && !slices.Contains(versions, v) {
				versions = append(versions, fmt.Sprintf("%.32s", v))
			}
		}
	}
	if len(versions) != 1 {
		return ""
	}
	return versions[0]
}
