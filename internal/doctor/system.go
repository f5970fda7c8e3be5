package doctor

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// systemChecks check the operating system that kbnode builds on.
var systemChecks = []Check{
	{
		ID: "system-systemd", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		Doc:   "kbnode needs systemd 249: Ubuntu 22.04, Debian 12, RHEL 9. If its version is unknown, this is a container, or systemd hangs: `systemctl is-system-running`.",
		About: "systemd has every feature that units and slices need",
		Run: func(_ context.Context, m *Machine) Answer {
			version := m.Inventory.Software.Systemd
			switch v, err := strconv.Atoi(version); {
			case err != nil:
				return found(fail("systemd does not report its version: %s", cmp.Or(m.problem("systemd"), "it is missing")).Advise("run kbnode on the host, not in a container; see systemctl is-system-running"))
			case v < installer.MinSystemd:
				return found(fail("systemd %d; slice limits and unit credentials need %d", v, installer.MinSystemd).Advise("upgrade to Ubuntu 22.04, Debian 12, RHEL 9 or newer"))
			}
			return found(ok("%s", version))
		},
	},
	{
		ID: "system-cgroup", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		Doc:   "Version 1 must not be mounted. Remove `systemd.unified_cgroup_hierarchy=0` and `cgroup_disable=memory` from `/etc/default/grub`, run `sudo update-grub` (RHEL: `sudo grub2-mkconfig -o /boot/grub2/grub.cfg`) and reboot.",
		About: "cgroup v2 is mounted, with all controllers that limit a slot",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.controllers()) },
	},
	{
		ID: "system-kernel", Group: "system", Bare: true, Worst: Warn, Needs: []string{"inventory"},
		Doc:   "The message names what is missing. RHEL 9 is not judged by version. Without Landlock, a non-root submission can read its own payload, tests and seed included.",
		About: "the kernel has every feature that isolates slots",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.kernel()) },
	},
	{
		ID: "system-modules", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		Doc:   "After a kernel upgrade, reboot. Cloud kernels may lack some. `sudo modprobe nf_tables` says why one does not load.",
		About: "the kernel has the file systems and the firewall that slots need",
		Run:   func(_ context.Context, m *Machine) Answer { return m.modules() },
	},
	{
		ID: "system-read-only", Group: "system", Bare: true, Worst: Fail,
		Doc:   "kbnode writes to `/etc`, `/usr/local`, `/var/lib` and `/run`; immutable systems are not supported. If the disk failed, `sudo dmesg` says so.",
		About: "kbnode can write where its files go",
		Run:   func(_ context.Context, m *Machine) Answer { return m.writable() },
	},
	{
		ID: "system-space", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		Doc:   "Only `df -i` shows free inodes.",
		About: "the system's disks have free space and inodes",
		Run:   func(_ context.Context, m *Machine) Answer { return m.space() },
	},
	{
		ID: "system-git", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		Doc:   "Install the package that the report names. Without it, no step with a checkout runs. Where git needs a proxy, set `http.proxy` in `/etc/gitconfig`.",
		About: "git is installed; it fetches the jobs' repositories",
		Run: func(_ context.Context, m *Machine) Answer {
			return found(installed(m.Inventory.Software.Git, installer.Git.Command(m.Inventory.OS), "git"))
		},
	},
	{
		ID: "system-mkfs", Group: "system", Bare: true, Worst: Fail, Needs: []string{"inventory"},
		Doc:   "It is in the package e2fsprogs.",
		About: "mkfs.ext4 is installed; it makes the slots' disks",
		Run: func(_ context.Context, m *Machine) Answer {
			return found(installed(m.Inventory.Software.MkfsExt4, installer.MkfsExt4.Command(m.Inventory.OS), "mkfs.ext4"))
		},
	},
	{
		ID: "system-users", Group: "system", Bare: true, Worst: Fail, Needs: []string{"plan"},
		Doc:   "Groups such as `sudo` or `disk` are as good as root. The command restarts the agent after its job.",
		About: "the users of slots and of git have their own IDs, and are in no privileged group",
		Run:   func(_ context.Context, m *Machine) Answer { return m.users() },
	},
	{
		ID: "system-sandbox", Group: "system", Bare: true, Worst: Fail,
		Doc:   "Seccomp and AppArmor (Debian, Ubuntu) or SELinux (RHEL) must be on. [docker-seccomp](#docker-seccomp) checks Docker.",
		About: "the kernel can filter system calls and confine containers",
		Run:   func(_ context.Context, m *Machine) Answer { return found(m.sandbox()) },
	},
	{
		ID: "system-core-pattern", Group: "system", Bare: true, Worst: Warn,
		Doc:   "A crash handler such as apport reads it, whatever the core limit. With a plain name in `/proc/sys/kernel/core_pattern`, nothing is written.",
		About: "no program outside the slot gets a crashed job's memory",
		Run:   func(_ context.Context, m *Machine) Answer { return m.corePattern() },
	},
	{
		ID: "system-ptrace", Group: "system", Worst: Warn, Needs: []string{"state"},
		Doc:   "kbnode sets `kernel.yama.ptrace_scope` to 1 and keeps 2 and 3. At 0, a process that a judge starts can open `/proc/PID/mem` of the judge and write its verdict there, wherever the filter of `kbnode runner` does not hold. Without Yama (`CONFIG_SECURITY_YAMA`, and `yama` in `/sys/kernel/security/lsm`), only [that filter](security.md#the-verdict) does.",
		About: "a process cannot reach the memory of its parent",
		Run:   func(ctx context.Context, m *Machine) Answer { return m.ptrace(ctx) },
	},
	{
		ID: "system-pids", Group: "system", Bare: true, Worst: Warn, Needs: []string{"plan"},
		Doc:   "Otherwise one slot can starve the others. The command raises the kernel's limit; lowering `job.tasks_max` also helps.",
		About: "the kernel allows enough processes for all slots together",
		Run:   func(_ context.Context, m *Machine) Answer { return m.pids() },
	},
	{
		ID: "system-clock", Group: "system", Bare: true, Worst: Warn, Needs: []string{"system-systemd"},
		Doc:   "With a wrong clock, certificates look invalid, and agents do not connect. If `timedatectl set-ntp true` is refused, install chrony.",
		About: "something synchronizes the clock",
		Run: func(ctx context.Context, m *Machine) Answer {
			node, _ := health.ReadNode(m.Root, nil) // its error is about other parts
			return m.clock(ctx, node.Clock)
		},
	},
}

func installed(path, command, name string) Finding {
	if path == "" {
		return fail("%s is not installed", name).By("%s", command)
	}
	return ok("%s", path)
}

func (m *Machine) controllers() Finding {
	text, err := m.Read(host.CgroupRoot + "/cgroup.controllers")
	if !m.Inventory.Software.CgroupV2 || err != nil {
		return fail("cgroup v2 is not mounted at /sys/fs/cgroup, and with version 1 slots' limits do not work").
			Advise("add systemd.unified_cgroup_hierarchy=1 to the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot")
	}
	has := strings.Fields(text)
	lacks := func(names ...string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(has, n) })
	}
	const how = "remove cgroup_disable= and mounts of cgroup v1 (cat /proc/cmdline; grep cgroup /proc/mounts) and reboot"
	if list := lacks("cpuset", "memory", "pids"); len(list) > 0 {
		return fail("the cgroup controllers %s are missing, so slots have no such limits", strings.Join(list, ", ")).Advise(how)
	}
	if list := lacks("cpu", "io"); len(list) > 0 {
		return warn("the cgroup controllers %s are missing, so less is known about a job", strings.Join(list, ", ")).Advise(how)
	}
	return ok("v2 with %s", strings.Join(has, ", "))
}

// since lists kernel features that keep slots apart. If a file shows the feature, it
// decides, because distributions backport some to older kernels.
var since = []struct {
	version string
	file    string
	lacks   string
}{
	{"5.14", "/sys/fs/cgroup/init.scope/cgroup.kill", "end all processes of a job at once"},
	{"5.19", "", "hide the payload from a non-root submission (Landlock)"},
	{"6.1", "", "reliably keep other programs off the slots' CPUs (cpuset partitions)"},
	{"6.2", "", "keep the CPUs that a thread chose while limits change"},
}

func (m *Machine) kernel() Finding {
	version := m.Inventory.Kernel
	v := numbers(version)
	if len(v) < 2 {
		return skip("unknown kernel version %.40q", version)
	}
	backports := strings.Contains(version, ".el")
	var lacks []string
	for _, s := range since {
		if has := s.file == "" && backports || s.file != "" && m.Exists(s.file); older(version, s.version) && !has {
			lacks = append(lacks, s.lacks)
		}
	}
	if lsm := m.Value("/sys/kernel/security/lsm"); lsm != "" && !strings.Contains(lsm, "landlock") && !slices.Contains(lacks, since[1].lacks) {
		return warn("Landlock is off (%s), so a non-root submission can read its job's payload", lsm).
			Advise("add lsm=landlock,%s to the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot; if CONFIG_SECURITY_LANDLOCK=y is not in /boot/config-%s, boot a newer kernel", lsm, m.Inventory.Kernel)
	}
	if len(lacks) > 0 {
		how := "boot kernel 6.8 or newer"
		if m.Inventory.OS.ID == "ubuntu" && m.Inventory.OS.VersionID == "22.04" {
			how = "run apt-get update && apt-get install -y linux-generic-hwe-22.04, drain the slots and reboot"
		}
		return warn("Linux %d.%d cannot: %s", v[0], v[1], strings.Join(lacks, "; ")).Advise("%s", how)
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
	case m.Exists(plan.BindingsPath):
		return none("it is not synchronized; %s watches it, and health reports it after ten minutes", plan.NodeService)
	case err != nil:
		return found(skip("%s", err))
	case len(run) > 0:
		return found(warn("%s runs, but has not set the clock yet", strings.Join(run, ", ")).
			Advise("wait a few minutes; then see sudo journalctl -u %s, and check that outgoing UDP port 123 is open", run[0]))
	}
	return found(warn("nothing synchronizes the clock: if it is wrong, Buildkite and registries refuse the node").By("timedatectl set-ntp true"))
}
