package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// driverless reports whether no GPU of g's vendor has its driver.
func driverless(inv *inventory.Inventory, g inventory.GPU) bool {
	if g.Vendor == "amd" {
		return inv.AMD == nil || !inv.AMD.KFD
	}
	return inv.NVIDIA == nil || inv.NVIDIA.DriverVersion == ""
}

// unusable returns why a GPU cannot be used.
func unusable(m *Machine, g inventory.GPU) Finding {
	f := fail("the GPU at %s: %s", g.PCI, g.Error)
	want := map[string]string{"nvidia": "nvidia", "amd": "amdgpu"}[g.Vendor]
	at := host.PCI(g.PCI)
	switch driver := m.PCIDriver(g.PCI); {
	case strings.Contains(g.Error, "NVreg_ExcludedGpus"):
		return f.Advise("remove NVreg_ExcludedGpus from /etc/modprobe.d and the kernel command line, and reboot")
	case m.Exists(at) && driver == "" && g.Vendor == "amd" && m.Recorded == "":
		return f.Safely("echo %s >/sys/bus/pci/drivers_probe", g.PCI)
	case driver != "" && driver != want && path.Base(driver) == driver:
		return f.By("echo %s >%s/driver_override && echo %s >/sys/bus/pci/drivers/%s/unbind && echo %s >/sys/bus/pci/drivers_probe", want, at, g.PCI, driver, g.PCI)
	}
	return f.Advise("see what sudo dmesg says about it, and reboot; if that does not help, check its seat and power")
}

// reset returns the finding and fix for a GPU that needs a reset. nvidia-persistenced keeps
// running, because CDI specifications mount its socket; it frees this GPU when asked to.
func reset(g inventory.GPU, slots []int) Finding {
	f := fail("the GPU at %s needs a reset: %s", g.PCI, g.Error).Of(slots...).
		Advise("if that says that the GPU is in use, stop what monitors it, but not nvidia-persistenced, without whose socket no slot starts a container; on machines with NVSwitches, reboot instead")
	steps := fmt.Sprintf("nvidia-smi -pm 0 -i %[1]s && nvidia-smi -r -i %[1]s && nvidia-smi -pm 1 -i %[1]s", g.PCI)
	if len(slots) != 1 {
		return f.By("%s", steps)
	}
	return f.By("kbnode drain %[1]d --wait && %[2]s && kbnode resume %[1]d", slots[0], steps)
}

// deviceFault returns what is wrong with a device file, or a finding without a detail.
func deviceFault(m *Machine, name string) Finding {
	_, gid, mode := m.TargetOwner(name)
	amd := name == "/dev/kfd" || strings.HasPrefix(name, "/dev/dri/")
	switch what := "is a file, not a device"; {
	case mode&fs.ModeCharDevice == 0:
		if mode == 0 {
			what = "is missing"
		}
		f := fail("%s %s", name, what)
		if amd {
			return f.Advise("see ls -l %s, then reload the driver or reboot", name)
		}
		return f.Safely("rm -rf %s && nvidia-smi -L && nvidia-modprobe -c=0 -u -m", name).Advise("if it is still missing, see ls -l %s, then reload the driver or reboot", name)
	case amd && !openToJobs(mode, gid):
		return warn("%s has mode %04o and group %d: only jobs that are root in their container can open it", name, mode.Perm(), gid).
			Safely("groupadd -rf render && chgrp render %[1]s && chmod 660 %[1]s", name).
			Advise("if this comes back after a reboot, look below /etc/udev/rules.d for a rule that takes it from the group render")
	}
	return Finding{}
}

// openToJobs reports whether everyone may read and write a file, or a group other than root's, which a job
// that is not root gets.
func openToJobs(mode fs.FileMode, gid int) bool {
	return mode&0o006 == 0o006 || mode&0o060 == 0o060 && gid != 0
}

func gpuPresent(_ context.Context, m *Machine) Answer {
	bindings := slotBindings(m)
	switch {
	case len(bindings) == 0 && len(m.Inventory.GPUs) == 0:
		return none("no GPU")
	case len(bindings) == 0:
		return found(ok("%d GPUs, no slots yet", len(m.Inventory.GPUs)))
	}
	var wrong []Finding
	lost, replaced := plan.Losses(m.Inventory.GPUs, bindings)
	for _, l := range lost {
		if l.Why != "" {
			now, do, _ := strings.Cut(l.Why, "; ")
			wrong = append(wrong, fail("%s", now).Of(l.Slot).Advise("%s", do))
			continue
		}
		wrong = append(wrong, fail("GPU %s at %s is missing", l.UUID, l.PCI).Of(l.Slot).
			Advise("look for it with lspci and sudo dmesg, and reboot; if it was removed for good, move /var/lib/kbnode/slots.json away and run sudo kbnode install"))
	}
	for _, r := range replaced {
		wrong = append(wrong, warn("%s", r.Why).Of(r.Slot).Safely("kbnode reconcile"))
	}
	return foundOr(wrong, ok("%d GPUs in %d slots", len(m.Inventory.GPUs), len(bindings)))
}

func gpuAnswers(_ context.Context, m *Machine) Answer {
	f := fleetOf(m, "")
	if len(f.gpus) == 0 {
		return none("no GPU")
	}
	dead := signals.ReadBus(m.Root, f.gpus)
	f.gpus = slices.DeleteFunc(f.gpus, func(g inventory.GPU) bool { return driverless(m.Inventory, g) })
	if len(f.gpus) == 0 {
		return none("no driver is loaded")
	}
	var all []Finding
	answer := 0
	for _, g := range f.gpus {
		switch {
		case dead[g.PCI].Dead || g.NVML != nil && g.NVML.Code == nvml.CodeLost:
			all = append(all, rebooted(m, fail("the GPU at %s is lost: %s", g.PCI, cmp.Or(strings.Replace(g.Error, "GPU is lost", "NVML says so", 1), "its PCI configuration reads as all ones"))).Of(f.slots[g.PCI]...))
		case g.NVML != nil && g.NVML.Code == nvml.CodeReset:
			all = append(all, reset(g, f.slots[g.PCI]))
		case !g.Healthy:
			all = append(all, unusable(m, g).Of(f.slots[g.PCI]...))
		case g.Vendor == "nvidia" && g.Unread && g.NVML == nil && m.Inventory.NVIDIA.Source == "nvml": // which answers for others
			all = append(all, rebooted(m, fail("the driver does not answer for the GPU at %s", g.PCI)).Of(f.slots[g.PCI]...))
		case g.NVML != nil && len(g.NVML.Unread) > 0:
			all = append(all, warn("the GPU at %s does not answer all NVML queries: %s", g.PCI, g.NVML.Unread[0]).Of(f.slots[g.PCI]...).
				Advise("see what sudo dmesg says about it; its other values may be wrong, too"))
		default:
			answer++
		}
	}
	if answer > 0 {
		all = append(all, ok("%d GPUs", answer))
	}
	return found(all...)
}

func gpuDevices(_ context.Context, m *Machine) Answer {
	slots := map[string][]int{} // slots, by file
	var names []string
	for _, s := range m.Plan.Slots {
		if s.Parked != "" {
			continue
		}
		for _, name := range s.Devices() {
			if strings.HasPrefix(name, "/dev/nvidia-uvm") && m.Inventory.NVIDIA != nil && m.Inventory.NVIDIA.UVMMajor == 0 {
				continue // nvidia-uvm reports it
			}
			if slots[name] == nil {
				names = append(names, name)
			}
			slots[name] = append(slots[name], s.Index)
		}
	}
	if len(names) == 0 {
		return none("no slot's GPU has device files")
	}
	var all []Finding
	for _, name := range names {
		if f := deviceFault(m, name); f.Detail != "" {
			all = append(all, f.Of(slots[name]...))
		}
	}
	return foundOr(all, ok("%d device files", len(names)))
}
