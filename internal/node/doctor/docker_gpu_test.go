package doctor

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// nvidia returns an engine of a version, on a machine with NVIDIA GPUs.
func nvidia(d inventory.Docker, info docker.Info) *fake {
	if d.Version == "" {
		d.Version = "28.5.2"
	}
	info.Version = d.Version
	f := engine(info)
	f.inv.NVIDIA = &inventory.NVIDIA{DriverVersion: "580.95.05"}
	f.inv.Software.Docker = d
	return f
}

func TestDockerGPUChecks(t *testing.T) {
	t.Parallel()
	amd := engine(docker.Info{})
	installed := nvidia(inventory.Docker{}, docker.Info{})
	installed.inv.Software.Toolkit = "/usr/bin/nvidia-ctk"
	dpkg := func(text string) map[string]string { return map[string]string{"/var/lib/dpkg/status": text} }
	one := func(name, state, version string) string {
		return "Package: " + name + "\nStatus: " + state + "\nVersion: " + version + "\n\n"
	}
	const well = "install ok installed"
	upgrade := "apt-get update && apt-get install -y --only-upgrade nvidia-container-toolkit"
	runtime := func(version string) *fake {
		return nvidia(inventory.Docker{Version: version, Runtimes: []string{"nvidia", "runc"}}, docker.Info{})
	}
	play(t, []scene{

		{"no NVIDIA", "docker-toolkit", amd, nil, "skip: no NVIDIA GPU", ""},
		{"there", "docker-toolkit", installed, nil, "ok: /usr/bin/nvidia-ctk", ""},
		{"missing", "docker-toolkit", nvidia(inventory.Docker{}, docker.Info{}), nil, "fail: nvidia-ctk is missing, so Docker cannot give GPUs to containers", "apt-get update && apt-get install -y nvidia-container-toolkit"},
		{"missing, and not needed yet", "docker-toolkit", nvidia(inventory.Docker{CDIDevices: []string{"nvidia.com/gpu=0"}}, docker.Info{}), nil,
			"warn: nvidia-ctk is missing, so nothing renews the CDI specification when the driver changes", "apt-get update && apt-get install -y nvidia-container-toolkit"},

		{"a good version", "docker-toolkit-version", installed, dpkg(one("bash", well, "5") + one("nvidia-container-toolkit", well, "1.18.0-1") + one("libnvidia-container1", "hold ok installed", "1.18.0-1")), "ok: 1.18.0-1", ""},
		{"the last with the hole", "docker-toolkit-version", installed, dpkg(one("nvidia-container-toolkit", well, "1.17.7-1")), "warn: version 1.17.7-1: an image can become root on the node (CVE-2025-23266, fixed in 1.17.8)", upgrade},
		{"the first without", "docker-toolkit-version", installed, dpkg(one("nvidia-container-toolkit", well, "1.17.8-1")), "ok: 1.17.8-1", ""},
		{"two versions", "docker-toolkit-version", installed, dpkg(one("nvidia-container-toolkit", well, "1.18.0-1") + one("libnvidia-container1", well, "1.17.8-1")),
			"warn: packages of different versions: nvidia-container-toolkit 1.18.0-1, libnvidia-container1 1.17.8-1", upgrade + " libnvidia-container1"},
		{"half installed", "docker-toolkit-version", installed, dpkg(one("nvidia-container-toolkit", "install ok half-configured", "1.18.0-1")),
			"fail: nvidia-container-toolkit 1.18.0-1 is half installed (install ok half-configured)", "dpkg --configure -a && apt-get -f install -y"},
		{"removed", "docker-toolkit-version", installed, dpkg(one("nvidia-container-toolkit", "deinstall ok config-files", "1.10.0-1")), "skip: dpkg did not install it", ""},

		{"on", "docker-cdi", nvidia(inventory.Docker{CDI: true, CDIDirs: []string{"/etc/cdi"}}, docker.Info{}), nil, "ok: /etc/cdi", ""},
		{"AMD", "docker-cdi", amd, nil, "skip: no NVIDIA GPU", ""},
		{"switched off", "docker-cdi", runtime("28.5.2"), file(`{"features": {"cdi": false}}`), "warn: CDI is off, so GPUs come from the NVIDIA runtime, which adds devices that systemd does not know about",
			`sed -i 's/\("cdi"[[:space:]]*:[[:space:]]*\)false/\1true/' /etc/docker/daemon.json && systemctl restart docker`},
		{"not switched on", "docker-cdi", nvidia(inventory.Docker{Version: "26.1.5"}, docker.Info{}), nil, "fail: CDI is off and there is no NVIDIA runtime, so no container gets a GPU with its driver's files",
			`mkdir -p /etc/docker && echo '{"features": {"cdi": true}}' >/etc/docker/daemon.json && systemctl restart docker`},
		{"other features", "docker-cdi", nvidia(inventory.Docker{Version: "26.1.5"}, docker.Info{}), file(`{"features": {"buildkit": true}}`), "fail: CDI is off and there is no NVIDIA runtime, so no container gets a GPU with its driver's files", ""},
		{"too old", "docker-cdi", runtime("24.0.7"), nil, "warn: CDI is off, so GPUs come from the NVIDIA runtime, which adds devices that systemd does not know about", ""},
	})
}

func TestCDIChecks(t *testing.T) {
	t.Parallel()
	const etc, run = "/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"
	spec := "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: GPU-a\n  containerEdits:\n    deviceNodes: [{path: /dev/nvidia0}]\ncontainerEdits:\n" +
		"  deviceNodes: [{path: /dev/nvidia-uvm}]\n  mounts: [{hostPath: /lib/libcuda.so.580.95.05, containerPath: /lib/libcuda.so.580.95.05}]\n  hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook}]\n"
	other := "kind: vendor.com/nic\ndevices: [{name: a}]\n"
	files := func(pairs ...string) map[string]string {
		all := map[string]string{"/dev/nvidia0": "", "/dev/nvidia-uvm": "", "/lib/libcuda.so.580.95.05": "", "/usr/bin/nvidia-cdi-hook": ""}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
			if pairs[i+1] == "-" {
				delete(all, pairs[i])
			}
		}
		return all
	}
	on := func(units ...slot.Unit) *fake {
		f := nvidia(inventory.Docker{CDI: true, CDIDirs: inventory.DefaultCDIDirs()}, docker.Info{})
		f.units = append(f.units, units...)
		return f
	}
	service := slot.Unit{Name: refreshUnit, Load: "loaded", Active: "inactive"}
	skipped := slot.Unit{Name: refreshUnit, Load: "loaded", Active: "inactive", Skipped: true}
	failed := slot.Unit{Name: refreshUnit, Load: "loaded", Active: "failed", Result: "exit-code", ExitStatus: 1}
	watch := slot.Unit{Name: refreshPath, Load: "loaded", Active: "active"}
	const restart = "systemctl restart nvidia-cdi-refresh.service"
	wants := "/etc/systemd/system/multi-user.target.wants/"
	byRuntime := on()
	byRuntime.inv.Software.Docker.Runtimes = []string{"nvidia", "runc"}
	stale := strings.ReplaceAll(spec, "580.95.05", "550.54.15")
	newer := on()
	newer.inv.NVIDIA = &inventory.NVIDIA{DriverVersion: "590.10"}
	play(t, []scene{
		{"one", "docker-cdi-spec", on(), files(etc, spec, "/etc/cdi/nic.json", other), "ok: /etc/cdi/nvidia.yaml", ""},
		{"none", "docker-cdi-spec", on(), files("/etc/cdi/nic.json", other), "fail: no CDI specification for NVIDIA GPUs in /etc/cdi or /var/run/cdi", installer.GenerateCDI},
		{"none, with the service", "docker-cdi-spec", on(service), nil, "fail: no CDI specification for NVIDIA GPUs in /etc/cdi or /var/run/cdi", restart},
		{"none, and the runtime gives GPUs", "docker-cdi-spec", byRuntime, nil, "warn: no CDI specification for NVIDIA GPUs in /etc/cdi or /var/run/cdi", installer.GenerateCDI},
		{"no CDI", "docker-cdi-spec", nvidia(inventory.Docker{}, docker.Info{}), nil, "skip: CDI is off", ""},
		{"one broken", "docker-cdi-spec", on(), files(etc, spec, "/etc/cdi/a b.yaml", "kind: {"), "warn: /etc/cdi/a b.yaml is ignored: yaml: line 1: did not find expected node content", "mv '/etc/cdi/a b.yaml' '/etc/cdi/a b.yaml'.broken"},
		{"twice beside each other", "docker-cdi-spec", on(), files(etc, spec, "/etc/cdi/gpus.yaml", spec), "fail: /etc/cdi/gpus.yaml and /etc/cdi/nvidia.yaml both name nvidia.com/gpu=GPU-a, so Docker ignores both", "mv /etc/cdi/gpus.yaml /etc/cdi/gpus.yaml.off"},
		{"one hidden", "docker-cdi-spec", on(), files(etc, spec, run, spec), "warn: /etc/cdi/nvidia.yaml is hidden by /var/run/cdi/nvidia.yaml, which names the same GPUs, so renewing it has no effect", "mv /etc/cdi/nvidia.yaml /etc/cdi/nvidia.yaml.off"},

		{"fresh", "docker-cdi-driver", on(), files(etc, spec), "ok: 580.95.05", ""},
		{"of an older driver", "docker-cdi-driver", newer, files(etc, spec), "fail: driver 590.10 runs, but containers get the files of 580.95.05", installer.GenerateCDI},
		{"a file is gone", "docker-cdi-driver", on(service), files(run, spec, "/usr/bin/nvidia-cdi-hook", "-"), "fail: /var/run/cdi/nvidia.yaml names missing files, so no container starts with it: /usr/bin/nvidia-cdi-hook (1 in all)", restart},
		{"the persistence daemon was stopped", "docker-cdi-driver", on(service, slot.Unit{Name: "nvidia-persistenced.service", Load: "loaded", Active: "inactive"}),
			files(run, strings.Replace(spec, "mounts: [", "mounts: [{hostPath: /run/nvidia-persistenced/socket, containerPath: /run/nvidia-persistenced/socket}, ", 1)),
			"fail: /var/run/cdi/nvidia.yaml names missing files, so no container starts with it: /run/nvidia-persistenced/socket (1 in all)", "systemctl restart nvidia-persistenced.service"},
		{"a daemon's socket whose daemon is gone", "docker-cdi-driver", on(service), files(run, strings.Replace(spec, "mounts: [", "mounts: [{hostPath: /run/nvidia-persistenced/socket, containerPath: /run/nvidia-persistenced/socket}, ", 1)),
			"fail: /var/run/cdi/nvidia.yaml names missing files, so no container starts with it: /run/nvidia-persistenced/socket (1 in all)", restart},
		{"a stale one is hidden", "docker-cdi-driver", on(service), files(etc, stale, run, spec, "/run/cdi/nvidia.yaml", spec), "ok: 580.95.05", ""},
		{"a stale one beside it", "docker-cdi-driver", on(), files(etc, stale), "fail: driver 580.95.05 runs, but containers get the files of 550.54.15", installer.GenerateCDI},
		{"a node is not made yet", "docker-cdi-driver", on(), files(etc, spec, "/dev/nvidia-uvm", "-"), "fail: /etc/cdi/nvidia.yaml names missing files, so no container starts with it: /dev/nvidia-uvm (1 in all)", "nvidia-modprobe -c=0 -u -m"},
		{"the module has another number now", "docker-cdi-driver", on(service), files(run, strings.Replace(spec, "nvidia-uvm}", "nvidia-uvm, major: 510}", 1), "/proc/devices", "Character devices:\n508 nvidia-uvm\n"),
			"fail: /var/run/cdi/nvidia.yaml gives /dev/nvidia-uvm the major number 510, and the driver has 508, so CUDA does not start in containers (1 device)", restart},
		{"it has, without the service", "docker-cdi-driver", on(), files(run, strings.Replace(spec, "nvidia-uvm}", "nvidia-uvm, major: 510}", 1), "/proc/devices", "Character devices:\n508 nvidia-uvm\n"),
			"fail: /var/run/cdi/nvidia.yaml gives /dev/nvidia-uvm the major number 510, and the driver has 508, so CUDA does not start in containers (1 device)", "nvidia-ctk cdi generate --output=" + run},

		{"in /etc", "docker-cdi-refresh", on(), files(etc, spec), "ok: in /etc/cdi; renew it by hand after a driver upgrade", ""},
		{"none, and the runtime gives GPUs", "docker-cdi-refresh", byRuntime, nil, "skip: there is no CDI specification for NVIDIA GPUs; see docker-cdi-spec", ""},
		{"only a broken one", "docker-cdi-refresh", on(), files("/etc/cdi/a.yaml", "kind: {"), "skip: there is no CDI specification for NVIDIA GPUs; see docker-cdi-spec", ""},
		{"gone after a reboot, beside a broken one", "docker-cdi-refresh", on(), files("/etc/cdi/a.yaml", "kind: {", run, spec),
			"warn: it is only in /var/run/cdi, which is empty after a reboot, and nothing renews it", installer.GenerateCDI},
		{"gone after a reboot", "docker-cdi-refresh", on(), files(run, spec), "warn: it is only in /var/run/cdi, which is empty after a reboot, and nothing renews it", installer.GenerateCDI},
		{"renewed", "docker-cdi-refresh", on(service, watch), files(run, spec, wants+refreshUnit, "", wants+refreshPath, ""), "ok: nvidia-cdi-refresh.service renews it", ""},
		{"not watched", "docker-cdi-refresh", on(service, watch), files(run, spec, wants+refreshUnit, ""), "warn: nvidia-cdi-refresh.service and nvidia-cdi-refresh.path are not both enabled, so nothing renews it",
			"systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service"},
		{"masked", "docker-cdi-refresh", on(slot.Unit{Name: refreshUnit, Load: "masked", Active: "inactive"}, watch), files(run, spec), "warn: nvidia-cdi-refresh.service or nvidia-cdi-refresh.path is masked, so nothing renews it",
			"systemctl unmask nvidia-cdi-refresh.service nvidia-cdi-refresh.path && systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service"},
		{"skipped by its condition", "docker-cdi-refresh", on(skipped, watch), files(run, spec, wants+refreshUnit, "", wants+refreshPath, ""), "warn: nvidia-cdi-refresh.service does nothing, because one of its conditions does not hold, so nothing renews it", ""},
		{"none, and the service is skipped", "docker-cdi-spec", on(skipped), nil, "fail: no CDI specification for NVIDIA GPUs in /etc/cdi or /var/run/cdi", installer.GenerateCDI},
		{"failed", "docker-cdi-refresh", on(failed, watch), files(run, spec), "warn: nvidia-cdi-refresh.service failed (exit-code, exit status 1)", restart},
	})
}

func TestCDISlots(t *testing.T) {
	t.Parallel()
	slots := func(uuids ...string) *plan.Plan {
		p := &plan.Plan{}
		for i, u := range uuids {
			p.Slots = append(p.Slots, plan.Slot{Index: i, GPUs: []plan.SlotGPU{{UUID: u, Vendor: "nvidia"}}})
		}
		return p
	}
	parked := slots("GPU-a", "GPU-b")
	parked.Slots[1].Parked = "it is lost"
	driverless := slots("GPU-a", "GPU-b")
	driverless.Slots[1].Parked = plan.Driverless(&inventory.Inventory{Software: inventory.Software{Docker: inventory.Docker{
		Version: "28.5.2", CDI: true, CDIDevices: []string{"nvidia.com/gpu=GPU-a"},
	}}}, driverless.Slots[1])
	both, index := []string{"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"}, []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}
	for _, tt := range []struct {
		name         string
		files, taken []string
		runtimes     []string
		plan         *plan.Plan
		want, fix    string
		slots        []int
	}{
		{"all", both, nil, nil, slots("GPU-a", "GPU-b"), "ok: 2 GPUs", "", nil},
		{"one lost and parked", both[:1], nil, nil, parked, "ok: 1 GPUs", "", nil},
		{"one not described and so parked", both[:1], nil, nil, driverless, "fail: Docker does not know nvidia.com/gpu=GPU-b, so jobs get the GPU without its driver's files", installer.GenerateCDI, []int{1}},
		{"one new", both[:1], nil, nil, slots("GPU-a", "GPU-b"), "fail: Docker does not know nvidia.com/gpu=GPU-b, so jobs get the GPU without its driver's files", installer.GenerateCDI, []int{1}},
		{"not taken by the engine", both, both[:1], nil, slots("GPU-a", "GPU-b"), "fail: Docker does not know nvidia.com/gpu=GPU-b, so jobs get the GPU without its driver's files", installer.GenerateCDI, []int{1}},
		{"by index only", index, index, []string{"nvidia"}, slots("GPU-a", "GPU-b"),
			"warn: Docker does not know nvidia.com/gpu=GPU-a, so the GPU comes from the NVIDIA runtime, which adds devices that systemd does not know about", installer.GenerateCDI + " --device-name-strategy=uuid", []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := nvidia(inventory.Docker{CDI: true, CDIDevices: tt.files, Runtimes: tt.runtimes}, docker.Info{CDIDevices: tt.taken})
			f.plan = tt.plan
			got := scene{"", "docker-cdi-slots", f, nil, tt.want, tt.fix}.run(t, nil)
			must.Equal(t, tt.slots, got.Findings[0].Slots)
		})
	}
}
