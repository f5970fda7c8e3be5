package doctor

import (
	"cmp"
	"context"
	"fmt"
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

// dockerGPUChecks check how a container gets an NVIDIA GPU. AMD GPUs come through their
// device nodes, which need nothing from Docker.
var dockerGPUChecks = slices.Concat([]Check{
	{
		ID: "docker-default-runtime", Group: "docker", Bare: true, Worst: Warn, Needs: []string{"docker-engine"},
		About: "only containers that ask for a GPU get one",
		Run: func(ctx context.Context, m *Machine) Answer {
			runtime := m.Docker.DefaultRuntime
			switch conf, _ := m.read(toolkitConf); {
			case !strings.Contains(runtime, "nvidia"):
				return found(ok("%s", cmp.Or(runtime, "runc")))
			case askUnprivileged().MatchString(conf):
				return found(ok("%s, which ignores an image's NVIDIA_VISIBLE_DEVICES", runtime))
			}
			f := warn("the default runtime is %s: a container started by hand gets all GPUs if its image says so, even while jobs run", runtime)
			if defaultRuntime().MatchString(readDaemon(ctx, m).text) {
				return found(f.safely(`sed -i 's/\("default-runtime"[[:space:]]*:[[:space:]]*\)"nvidia"/\1"runc"/' %s && systemctl reload docker`, daemonJSON))
			}
			return found(f.advise("remove default-runtime from %s, or from dockerd's command line (systemctl cat docker), then run systemctl reload docker", daemonJSON))
		},
	},
	{
		ID: "docker-toolkit", Group: "docker", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "NVIDIA's container toolkit is installed",
		Run: func(_ context.Context, m *Machine) Answer {
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
			return found(f.by("%s", installer.Toolkit.Command(m.Inventory.OS)).
				advise("if there is no such package, add NVIDIA's repository first: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"))
		},
	},
	{
		ID: "docker-toolkit-version", Group: "docker", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"docker-toolkit"},
		About: "the toolkit's packages match, and have no known container escape",
		Run: func(_ context.Context, m *Machine) Answer {
			list, err := m.packages(toolkitPackages)
			switch {
			case err != nil:
				return none("dpkg did not install it: %s", err)
			case len(list) == 0:
				return none("dpkg did not install it")
			}
			var there, shown []string
			for _, p := range list {
				there = append(there, p.name)
				shown = append(shown, p.name+" "+p.version)
				if !strings.HasSuffix(p.state, " ok installed") {
					return found(fail("%s %s is half installed (%s)", p.name, p.version, p.state).by("dpkg --configure -a && apt-get -f install -y"))
				}
			}
			upgrade := "apt-get update && apt-get install -y --only-upgrade " + strings.Join(there, " ")
			for _, p := range list {
				if p.version != list[0].version {
					return found(warn("packages of different versions: %s", strings.Join(shown, ", ")).by("%s", upgrade))
				}
			}
			major, minor := release(list[0].version)
			patch := 0
			_, _ = fmt.Sscanf(list[0].version, fmt.Sprintf("%d.%d.%%d", major, minor), &patch)
			if major < 1 || major == 1 && (minor < 17 || minor == 17 && patch < 8) {
				return found(warn("version %s: an image can become root on the node (CVE-2025-23266, fixed in 1.17.8)", list[0].version).by("%s", upgrade))
			}
			return found(ok("%s", list[0].version))
		},
	},
	{
		ID: "docker-cdi", Group: "docker", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"docker-engine"},
		About: "Docker gives GPUs to containers through CDI",
		Run: func(ctx context.Context, m *Machine) Answer {
			d := m.Inventory.Software.Docker
			major, minor := release(d.Version)
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
			c := readDaemon(ctx, m)
			switch {
			case major < 25:
				return found(f.advise("Docker supports CDI from 25.0 on, and this is %s: upgrade it", d.Version))
			case cdiOff().MatchString(c.text):
				return found(f.by(`sed -i 's/\("cdi"[[:space:]]*:[[:space:]]*\)false/\1true/' %s && systemctl restart docker`, daemonJSON))
			case (major < 28 || major == 28 && minor < 2) && c.problem == "" && !c.has("features"):
				return found(f.by("%s && systemctl restart docker", c.add(`"features": {"cdi": true}`)))
			}
			return found(f.advise(`put "cdi": true into features of %s, then run systemctl restart docker`, daemonJSON))
		},
	},
}, cdiChecks)

var (
	askUnprivileged = lazy.Regexp(`(?m)^\s*accept-nvidia-visible-devices-envvar-when-unprivileged\s*=\s*false`)
	defaultRuntime  = lazy.Regexp(`"default-runtime"[ \t]*:[ \t]*"nvidia"`)
	cdiOff          = lazy.Regexp(`"cdi"[ \t]*:[ \t]*false`)
)

func namesGPUs(devices []string) bool {
	return slices.ContainsFunc(devices, func(name string) bool { return strings.HasPrefix(name, "nvidia.com/gpu=") })
}

// toolkitPackages must all have the same version.
var toolkitPackages = []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}
