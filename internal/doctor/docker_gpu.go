package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/lazy"
)

const (
	refreshUnit = "nvidia-cdi-refresh.service"
	refreshPath = "nvidia-cdi-refresh.path"
	toolkitConf = "/etc/nvidia-container-runtime/config.toml"
)

var askUnprivileged = lazy.Regexp(`(?m)^\s*accept-nvidia-visible-devices-envvar-when-unprivileged\s*=\s*false`)

func namesGPUs(devices []string) bool {
	return slices.ContainsFunc(devices, func(name string) bool { return strings.HasPrefix(name, "nvidia.com/gpu=") })
}

// toolkitPackages must all have the same version.
var toolkitPackages = []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}

func dockerDefaultRuntime(ctx context.Context, m *Machine) Answer {
	runtime := m.Docker.DefaultRuntime
	switch conf, _ := m.Read(toolkitConf); {
	case !strings.Contains(runtime, "nvidia"):
		return found(ok("%s", cmp.Or(runtime, "runc")))
	case askUnprivileged().MatchString(conf):
		return found(ok("%s, which ignores an image's NVIDIA_VISIBLE_DEVICES", runtime))
	}
	f := warn("the default runtime is %s: a container started by hand gets all GPUs if its image says so, even while jobs run", runtime)
	return found(defaultRuntime.change(ctx, m, f))
}

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
