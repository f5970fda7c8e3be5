package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// systemChecks check the operating system that kbnode builds on.
var systemChecks = []Check{
	{
		ID: "system-systemd", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "systemd has every feature that units and slices need",
		Run: func(_ context.Context, m *Machine) Answer {
			version := m.Inventory.Software.Systemd
			switch v, err := strconv.Atoi(version); {
			case err != nil:
				return found(fail("systemd does not report its version: %s", cmp.Or(m.problem("systemd"), "it is missing")).advise("run kbnode on the host, not in a container; see systemctl is-system-running"))
			case v < installer.MinSystemd:
				return found(fail("systemd %d; slice limits and unit credentials need %d", v, installer.MinSystemd).advise("upgrade to Ubuntu 22.04, Debian 12, RHEL 9 or newer"))
			}
			return found(ok("%s", version))
		},
	},
	{
		ID: "system-cgroup", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "cgroup v2 is mounted, with all controllers that limit a slot",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.controllers()) },
	},
	{
		ID: "system-kernel", Group: "system", Bare: true, Worst: Warn, Needs: []string{"inventory"},
		About: "the kernel has every feature that isolates slots",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.kernel()) },
	},
	{
		ID: "system-modules", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "the kernel has the file systems and the firewall that slots need",
		Run:   func(_ context.Context, m *Machine) Answer { return m.modules() },
	},
	{
		ID: "system-read-only", Group: "system", Bare: true, Worst: Fail,
		About: "kbnode can write where its files go",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.writable()...) },
	},
	{
		ID: "system-space", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "the system's disks have free space and inodes",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.space()...) },
	},
	{
		ID: "system-git", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "git is installed; agents fetch repositories and plugins with it",
		Run: func(_ context.Context, m *Machine) Answer {
			return found(installed(m.Inventory.Software.Git, installer.Git.Command(m.Inventory.OS), "git"))
		},
	},
	{
		ID: "system-mkfs", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		About: "mkfs.ext4 is installed; it makes the slots' disks",
		Run: func(_ context.Context, m *Machine) Answer {
			return found(installed(m.Inventory.Software.MkfsExt4, installer.MkfsExt4.Command(m.Inventory.OS), "mkfs.ext4"))
		},
	},
	{
		ID: "system-users", Group: "system", Bare: true, Worst: Fail, Needs: []string{"plan"},
		About: "the slots' users have their own IDs, and are in no privileged group",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.users()...) },
	},
	{
		ID: "system-sandbox", Group: "system", Bare: true, Worst: Fail,
		About: "the kernel can filter system calls and confine containers",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.sandbox()) },
	},
	{
		ID: "system-core-pattern", Group: "system", Bare: true, Worst: Warn,
		About: "no program outside the slot gets a crashed job's memory",
		Run:   func(_ context.Context, m *Machine) Answer { return m.corePattern() },
	},
	{
		ID: "system-pids", Group: "system", Bare: true, Worst: Warn, Needs: []string{"plan"},
		About: "the kernel allows enough processes for all slots together",
		Run:   func(_ context.Context, m *Machine) Answer { return m.pids() },
	},
	{
		ID: "system-clock", Group: "system", Bare: true, Worst: Warn, Needs: []string{"system-systemd"},
		About: "something synchronizes the clock",
		Run: func(ctx context.Context, m *Machine) Answer {
			node, _ := health.ReadNode(m.Root, nil) // its error is about other parts
			return m.clock(ctx, node.Clock)
		},
	},
}

func installed(path, command, name string) Finding {
	if path == "" {
		return fail("%s is not installed", name).by("%s", command)
	}
	return ok("%s", path)
}

func (m *Machine) controllers() Finding {
	text, err := m.read("/sys/fs/cgroup/cgroup.controllers")
	if !m.Inventory.Software.CgroupV2 || err != nil {
		return fail("cgroup v2 is not mounted at /sys/fs/cgroup, and with version 1 slots' limits do not work").
			advise("add systemd.unified_cgroup_hierarchy=1 to the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot")
	}
	has := strings.Fields(text)
	lacks := func(names ...string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(has, n) })
	}
	const how = "remove cgroup_disable= and mounts of cgroup v1 (cat /proc/cmdline; grep cgroup /proc/mounts) and reboot"
	if list := lacks("cpuset", "memory", "pids"); len(list) > 0 {
		return fail("the cgroup controllers %s are missing, so slots have no such limits", strings.Join(list, ", ")).advise(how)
	}
	if list := lacks("cpu", "io"); len(list) > 0 {
		return warn("the cgroup controllers %s are missing, so less is known about a job", strings.Join(list, ", ")).advise(how)
	}
	return ok("v2 with %s", strings.Join(has, ", "))
}

// since lists kernel features that keep slots apart. If a file shows the feature, it
// decides, because distributions backport some to older kernels.
var since = []struct {
	major, minor int
	file         string
	lacks        string
}{
	{5, 14, "/sys/fs/cgroup/init.scope/cgroup.kill", "end all processes of a job at once"},
	{5, 19, "", "hide the payload from a non-root submission (Landlock)"},
	{6, 1, "", "reliably keep other programs off the slots' CPUs (cpuset partitions)"},
	{6, 2, "", "keep the CPUs that a thread chose while limits change"},
}

func (m *Machine) kernel() Finding {
	version := m.Inventory.Kernel
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return skip("unknown kernel version %.40q", version)
	}
	backports := strings.Contains(version, ".el")
	var lacks []string
	for _, s := range since {
		old := major < s.major || major == s.major && minor < s.minor
		if s.file != "" {
			_, err := os.Stat(m.path(s.file))
			old = old && err != nil
		} else {
			old = old && !backports
		}
		if old {
			lacks = append(lacks, s.lacks)
		}
	}
	if lsm, err := m.read("/sys/kernel/security/lsm"); err == nil && !strings.Contains(lsm, "landlock") && !slices.Contains(lacks, since[1].lacks) {
		return warn("Landlock is off (%s), so a non-root submission can read its job's payload", strings.TrimSpace(lsm)).
			advise("add lsm=landlock,%s to the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot; if CONFIG_SECURITY_LANDLOCK=y is not in /boot/config-%s, boot a newer kernel", strings.TrimSpace(lsm), m.Inventory.Kernel)
	}
	if len(lacks) > 0 {
		how := "boot kernel 6.8 or newer"
		if m.Inventory.OS.ID == "ubuntu" && m.Inventory.OS.VersionID == "22.04" {
			how = "run apt-get update && apt-get install -y linux-generic-hwe-22.04, drain the slots and reboot"
		}
		return warn("Linux %d.%d cannot: %s", major, minor, strings.Join(lacks, "; ")).advise("%s", how)
	}
	return ok("%s", version)
}

// clock reports what the kernel thinks of its clock. On a node the daemon judges that, and
// knows for how long.
func (m *Machine) clock(ctx context.Context, state health.Clock) Answer {
	run, err := m.running(ctx, "chrony.service", "chronyd.service", "systemd-timesyncd.service", "ntp.service", "ntpd.service", "ntpsec.service", "openntpd.service")
	switch {
	case state == health.ClockUnknown:
		return none("the kernel does not report it")
	case state == health.ClockSynchronised:
		return found(ok("%s", cmp.Or(strings.Join(run, ", "), "synchronized")))
	case m.wasInstalled():
		return none("it is not synchronized; %s watches it, and health reports it after ten minutes", plan.NodeService)
	case err != nil:
		return found(skip("%s", err))
	case len(run) > 0:
		return found(warn("%s runs, but has not set the clock yet", strings.Join(run, ", ")).
			advise("wait a few minutes; then see journalctl -u %s, and check that outgoing UDP port 123 is open", run[0]))
	}
	return found(warn("nothing synchronizes the clock: if it is wrong, Buildkite and registries refuse the node").by("timedatectl set-ntp true"))
}
