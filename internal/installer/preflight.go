package installer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/inventory"
)

// MinSystemd is the oldest systemd that supports what units and slices need.
const MinSystemd = 249

// Preflight lists what keeps this machine from being a node, each with what to
// type. It checks what plan.Build does not need.
func Preflight(inv *inventory.Inventory) []string {
	var missing []string
	say := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	sw := inv.Software
	if sw.Systemd == "" {
		say("systemd does not report its version (%s); kbnode needs systemd, so run kbnode on the host, not in a container", problem(inv, "systemd"))
	} else if v, err := strconv.Atoi(strings.TrimFunc(strings.SplitN(sw.Systemd, ".", 2)[0], func(r rune) bool { return r < '0' || r > '9' })); err == nil && v < MinSystemd {
		say("systemd is version %s; kbnode needs %d or newer (Ubuntu 22.04, Debian 12, RHEL 9)", sw.Systemd, MinSystemd)
	}
	if !sw.CgroupV2 {
		say("cgroup v1 is mounted at /sys/fs/cgroup; boot with systemd.unified_cgroup_hierarchy=1 on the kernel command line")
	}
	if sw.Docker.Version == "" {
		say("Docker does not answer (%s); %s", problem(inv, "docker"), hint(Docker.Command(inv.OS)))
	} else if sw.Docker.CgroupDriver != "systemd" {
		say("Docker uses the %s cgroup driver, with which slices do not limit containers; put {\"exec-opts\": [\"native.cgroupdriver=systemd\"]} into /etc/docker/daemon.json and run systemctl restart docker", cmp.Or(sw.Docker.CgroupDriver, "unknown"))
	}
	if sw.Git == "" {
		say("git is not installed; %s", hint(Git.Command(inv.OS)))
	}
	if sw.MkfsExt4 == "" {
		say("mkfs.ext4 is not installed; %s", hint(MkfsExt4.Command(inv.OS)))
	}
	if inv.NVIDIA != nil && sw.Docker.Version != "" && !givesGPUs(sw.Docker) {
		say("Docker cannot give NVIDIA GPUs to containers; %s", hint(Toolkit.Command(inv.OS)+" && "+GenerateCDI))
	}
	return missing
}

// hint tells a user to run a command that is for a root shell.
func hint(command string) string {
	return "run: sudo " + strings.ReplaceAll(command, "&& ", "&& sudo ") + " (or kbnode install --install-deps)"
}

// problem returns what the inventory says about a subject that it could not read.
func problem(inv *inventory.Inventory, subject string) string {
	for _, p := range inv.Problems {
		if p.Subject == subject {
			return p.Detail
		}
	}
	return "not found"
}

// givesGPUs reports whether an engine can give an NVIDIA GPU to a container.
func givesGPUs(d inventory.Docker) bool {
	return slices.Contains(d.Runtimes, "nvidia") ||
		d.CDI && slices.ContainsFunc(d.CDIDevices, func(n string) bool { return strings.HasPrefix(n, "nvidia.com/gpu=") })
}
