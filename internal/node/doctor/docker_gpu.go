package doctor

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	refreshUnit = "nvidia-cdi-refresh.service"
	refreshPath = "nvidia-cdi-refresh.path"
)

func namesGPUs(devices []string) bool {
	return slices.ContainsFunc(devices, func(name string) bool { return strings.HasPrefix(name, "nvidia.com/gpu=") })
}

// toolkitPackages must all have the same version.
var toolkitPackages = []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}

func dockerToolkit(_ context.Context, m *Machine) Answer {
	sw := m.Inventory.Software
	switch {
	case m.Inventory.NVIDIA == nil:
		return none("no NVIDIA GPU")
	case sw.Toolkit != "":
		return found(ok("%s", sw.Toolkit))
	}
	f := fail("nvidia-ctk is missing, so Docker cannot give GPUs to containers")
	if namesGPUs(sw.Docker.CDIDevices) || slices.Contains(sw.Docker.Runtimes, "nvidia") {
		f = warn("nvidia-ctk is missing, so nothing renews the CDI specification when the driver changes")
	}
	return found(f.By("%s", installer.Toolkit.Command(m.Inventory.OS)).
		Advise("if there is no such package, add NVIDIA's repository first: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"))
}

func dockerToolkitVersion(_ context.Context, m *Machine) Answer {
	list, _ := m.Packages(toolkitPackages...)
	if len(list) == 0 {
		return none("dpkg did not install it")
	}
	var there, shown []string
	for _, p := range list {
		there = append(there, p.Name)
		shown = append(shown, p.Name+" "+p.Version)
		if !strings.HasSuffix(p.State, " ok installed") {
			return found(fail("%s %s is half installed (%s)", p.Name, p.Version, p.State).By("dpkg --configure -a && apt-get -f install -y"))
		}
	}
	upgrade := "apt-get update && apt-get install -y --only-upgrade " + strings.Join(there, " ")
	for _, p := range list {
		if p.Version != list[0].Version {
			return found(warn("packages of different versions: %s", strings.Join(shown, ", ")).By("%s", upgrade))
		}
	}
	if older(list[0].Version, "1.17.8") {
		return found(warn("version %s: an image can become root on the node (CVE-2025-23266, fixed in 1.17.8)", list[0].Version).By("%s", upgrade))
	}
	return found(ok("%s", list[0].Version))
}

func dockerCDI(ctx context.Context, m *Machine) Answer {
	d := m.Inventory.Software.Docker
	switch {
	case m.Inventory.NVIDIA == nil:
		return none("no NVIDIA GPU")
	case d.CDI:
		return found(ok("%s", cmp.Or(strings.Join(d.CDIDirs, ", "), "on")))
	}
	f := warn("CDI is off, so GPUs come from the NVIDIA runtime, which adds devices that systemd does not know about")
	if !slices.Contains(d.Runtimes, "nvidia") {
		f = fail("CDI is off and there is no NVIDIA runtime, so no container gets a GPU with its driver's files")
	}
	if older(d.Version, "25") {
		return found(f.Advise("Docker supports CDI from 25.0 on, and this is %s: upgrade it", d.Version))
	}
	return found(cdi.change(ctx, m, f))
}

// renewCDI returns the command that describes the GPUs again. If the toolkit has a service
// for it, a separate file would be hidden behind the service's.
func renewCDI(ctx context.Context, m *Machine) string {
	if u, err := m.unit(ctx, refreshUnit); err == nil && u.Exists() && u.Load != "masked" && !u.Skipped {
		return "systemctl restart " + refreshUnit
	}
	return installer.GenerateCDI
}

// gpuSpecs returns the CDI specifications that name NVIDIA GPUs, and the broken ones.
func gpuSpecs(m *Machine) ([]detect.CDISpec, error) {
	dirs := m.Inventory.Software.Docker.CDIDirs
	if len(dirs) == 0 {
		dirs = inventory.DefaultCDIDirs()
	}
	specs, err := detect.ReadCDI(m.Root, dirs)
	return slices.DeleteFunc(specs, func(s detect.CDISpec) bool { return s.Err == nil && !namesGPUs(s.Devices) }), err
}

// shared returns the first GPU that two specifications name, or "".
func shared(a, b detect.CDISpec) string {
	for _, name := range b.Devices {
		if a.Err == nil && b.Err == nil && strings.HasPrefix(name, "nvidia.com/gpu=") && slices.Contains(a.Devices, name) {
			return name
		}
	}
	return ""
}

func dockerCDISpec(ctx context.Context, m *Machine) Answer {
	if !m.Inventory.Software.Docker.CDI {
		return none("CDI is off")
	}
	dirs := m.Inventory.Software.Docker.CDIDirs
	specs, err := gpuSpecs(m)
	if err != nil {
		return found(fail("%s", err).Advise("check why %s cannot be read", strings.Join(dirs, " and ")))
	}
	var all []Finding
	last := ""
	for i, s := range specs {
		if s.Err != nil {
			all = append(all, warn("%s is ignored: %s", s.Path, lines(s.Err)).By("mv %s %[1]s.broken", text.ShellWord(s.Path)))
			continue
		}
		last = s.Path
		for _, o := range specs[:i] {
			name, extra := shared(o, s), o.Path
			if path.Base(o.Path) == "nvidia.yaml" {
				extra = s.Path
			}
			switch {
			case name == "":
			case path.Dir(o.Path) != path.Dir(s.Path): // the later directory's counts
				all = append(all, warn("%s is hidden by %s, which names the same GPUs, so renewing it has no effect", o.Path, s.Path).By("mv %s %[1]s.off", text.ShellWord(o.Path)))
			default:
				all = append(all, fail("%s and %s both name %s, so Docker ignores both", o.Path, s.Path, name).By("mv %s %[1]s.off", text.ShellWord(extra)))
			}
		}
	}
	if last == "" {
		f := fail("no CDI specification for NVIDIA GPUs in %s", strings.Join(dirs, " or "))
		if slices.Contains(m.Inventory.Software.Docker.Runtimes, "nvidia") {
			f.Status = Warn // slots get their GPUs from that
		}
		all = append(all, f.Safely("%s", renewCDI(ctx, m)))
	}
	return foundOr(all, ok("%s", last))
}

func dockerCDIDriver(ctx context.Context, m *Machine) Answer {
	specs, err := gpuSpecs(m)
	switch {
	case m.Inventory.NVIDIA == nil:
		return none("no NVIDIA GPU")
	case err != nil:
		return none("%s", err)
	}
	loaded := m.Inventory.NVIDIA.DriverVersion
	node, _ := signals.ReadNode(m.Root, nil, m.Inventory.Software.Docker.CDIDirs...) // what it cannot read is empty
	if node.CDIDriver != "" && loaded != "" && node.CDIDriver != loaded {
		return found(fail("driver %s runs, but containers get the files of %s", loaded, node.CDIDriver).Safely("%s", renewCDI(ctx, m)))
	}
	for i, s := range specs {
		if slices.ContainsFunc(specs[i+1:], func(o detect.CDISpec) bool { return path.Dir(o.Path) != path.Dir(s.Path) && shared(o, s) != "" }) {
			continue // docker-cdi-spec reports it
		}
		missing := slices.DeleteFunc(slices.Clone(s.Needs[:min(len(s.Needs), 1000)]), m.Exists)
		if len(missing) == 0 {
			continue
		}
		renew := renewCDI(ctx, m)
		switch daemon := path.Base(path.Dir(missing[0])) + ".service"; {
		case slices.ContainsFunc(missing, func(n string) bool { return strings.HasPrefix(n, "/dev/nvidia-") }):
			renew = "nvidia-modprobe -c=0 -u -m" // creates the nodes that the driver creates late
		case path.Base(missing[0]) == "socket": // such as /run/nvidia-persistenced/socket
			if u, err := m.unit(ctx, daemon); err == nil && u.Exists() {
				renew = "systemctl restart " + text.ShellWord(daemon)
			}
		}
		return found(fail("%s names missing files, so no container starts with it: %s (%d in all)", s.Path, missing[0], len(missing)).Safely("%s", renew))
	}
	faults, _ := detect.ReadCDIFaults(m.Root, m.Inventory, specs)                              // what it cannot read is no fault
	maps.DeleteFunc(faults, func(_ string, f inventory.CDIFault) bool { return f.Spec == "" }) // docker-cdi-spec reports it
	if names := slices.Sorted(maps.Keys(faults)); len(names) > 0 {
		f, renew := faults[names[0]], renewCDI(ctx, m)
		if renew == installer.GenerateCDI { // another file might be hidden by this one
			renew = "nvidia-ctk cdi generate --output=" + text.ShellWord(f.Spec)
		}
		if f.Node {
			renew = "nvidia-modprobe -c=0 -u -m && " + renew
		}
		return found(fail("%s, so CUDA does not start in containers (%s)", f.Detail, text.Count(len(faults), "device")).Safely("%s", renew))
	}
	if node.CDIDriver == "" {
		return found(ok("all files that it names exist"))
	}
	return found(ok("%s", node.CDIDriver))
}

func dockerCDISlots(ctx context.Context, m *Machine) Answer {
	d := m.Inventory.Software.Docker
	known := m.Docker.CDIDevices // what the engine itself has loaded
	if known == nil {
		known = d.CDIDevices
	}
	var missing, named []int
	first := ""
	for _, s := range m.Plan.Slots {
		for _, gpu := range s.GPUs {
			switch name := gpu.Name(); {
			case gpu.Vendor != "nvidia" || name == "" || s.Parked != "" && s.Parked != plan.Driverless(m.Inventory, s):
			case slices.Contains(known, "nvidia.com/gpu="+name):
				named = append(named, s.Index)
			default:
				missing = append(missing, s.Index)
				if first == "" {
					first = name
				}
			}
		}
	}
	renew := renewCDI(ctx, m)
	switch {
	case len(missing) == 0 && len(named) == 0:
		return none("no slot has an NVIDIA GPU")
	case len(missing) == 0:
		return found(ok("%d GPUs", len(named)))
	case renew == installer.GenerateCDI && !slices.ContainsFunc(known, func(n string) bool { return strings.HasPrefix(n, "nvidia.com/gpu=GPU-") }):
		renew = installer.GenerateCDI + " --device-name-strategy=uuid" // toolkits before 1.16 do this only if asked
	}
	f := fail("Docker does not know nvidia.com/gpu=%s, so jobs get the GPU without its driver's files", first)
	if slices.Contains(d.Runtimes, "nvidia") {
		f = warn("Docker does not know nvidia.com/gpu=%s, so the GPU comes from the NVIDIA runtime, which adds devices that systemd does not know about", first)
	}
	return found(f.Of(missing...).Safely("%s", renew))
}

func dockerCDIRefresh(ctx context.Context, m *Machine) Answer {
	service, err := m.unit(ctx, refreshUnit)
	watch, errWatch := m.unit(ctx, refreshPath)
	if err = errors.Join(err, errWatch); err != nil {
		return none("systemd does not answer: %s", lines(err))
	}
	specs, err := gpuSpecs(m)
	specs = slices.DeleteFunc(specs, func(s detect.CDISpec) bool { return s.Err != nil })
	switch stays := slices.ContainsFunc(specs, func(s detect.CDISpec) bool { return strings.HasPrefix(s.Path, "/etc/") }); {
	case err != nil:
		return none("%s", err)
	case !service.Exists() && len(specs) == 0:
		return none("there is no CDI specification for NVIDIA GPUs; see docker-cdi-spec")
	case !service.Exists() && stays:
		return found(ok("in /etc/cdi; renew it by hand after a driver upgrade"))
	case !service.Exists():
		return found(warn("it is only in %s, which is empty after a reboot, and nothing renews it", path.Dir(specs[0].Path)).Safely("%s", installer.GenerateCDI))
	case service.Active == "failed":
		return found(warn("%s failed (%s, exit status %d)", refreshUnit, service.Result, service.ExitStatus).Safely("systemctl restart %s", refreshUnit).
			Advise("if it fails again, sudo journalctl -u %s -n 20 says why", refreshUnit))
	case service.Load == "masked" || watch.Load == "masked":
		return found(warn("%s or %s is masked, so nothing renews it", refreshUnit, refreshPath).
			Safely("systemctl unmask %[1]s %[2]s && systemctl enable --now %[2]s %[1]s", refreshUnit, refreshPath))
	case service.Skipped: // such as ConditionPathExists=/usr/bin/nvidia-smi
		return found(warn("%s does nothing, because one of its conditions does not hold, so nothing renews it", refreshUnit).
			Advise("sudo systemctl status %s names the condition; while it does not hold, run sudo %s after each driver upgrade", refreshUnit, installer.GenerateCDI))
	case !m.StartsAtBoot(refreshUnit) || !m.StartsAtBoot(refreshPath) || !watch.Running():
		return found(warn("%s and %s are not both enabled, so nothing renews it", refreshUnit, refreshPath).Safely("systemctl enable --now %s %s", refreshPath, refreshUnit))
	}
	return found(ok("%s renews it", refreshUnit))
}
