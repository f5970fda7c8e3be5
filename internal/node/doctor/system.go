package doctor

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func installed(name string, p installer.Prerequisite, path func(*Machine) string) func(context.Context, *Machine) Answer {
	return func(_ context.Context, m *Machine) Answer {
		if path := path(m); path != "" {
			return found(ok("%s", path))
		}
		return found(fail("%s is not installed", name).By("%s", p.Command(m.Inventory.OS)))
	}
}

func systemCgroup(_ context.Context, m *Machine) Answer {
	text, err := m.Read(host.CgroupRoot + "/cgroup.controllers")
	if m.Recorded != "" && m.Inventory.Software.CgroupV2 && err != nil {
		return none("version 2, but its controllers are not recorded")
	}
	if !m.Inventory.Software.CgroupV2 || err != nil {
		return found(fail("cgroup v2 is not mounted at /sys/fs/cgroup, and with version 1 slots' limits do not work").
			Advise("add systemd.unified_cgroup_hierarchy=1 to the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot"))
	}
	has := strings.Fields(text)
	lacks := func(names ...string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(has, n) })
	}
	const how = "remove cgroup_disable= and mounts of cgroup v1 (cat /proc/cmdline; grep cgroup /proc/mounts) and reboot"
	if list := lacks("cpuset", "memory", "pids"); len(list) > 0 {
		return found(fail("the cgroup controllers %s are missing, so slots have no such limits", strings.Join(list, ", ")).Advise(how))
	}
	if list := lacks("cpu", "io"); len(list) > 0 {
		return found(warn("the cgroup controllers %s are missing, so less is known about a job", strings.Join(list, ", ")).Advise(how))
	}
	return found(ok("v2 with %s", strings.Join(has, ", ")))
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

func systemKernel(_ context.Context, m *Machine) Answer {
	version := m.Inventory.Kernel
	v := numbers(version)
	if len(v) < 2 {
		return found(skip("unknown kernel version %.40q", version))
	}
	backports := strings.Contains(version, ".el")
	var lacks []string
	for _, s := range since {
		if has := s.file == "" && backports || s.file != "" && m.Exists(s.file); older(version, s.version) && !has {
			lacks = append(lacks, s.lacks)
		}
	}
	if lsm := m.Value("/sys/kernel/security/lsm"); lsm != "" && !strings.Contains(lsm, "landlock") && !slices.Contains(lacks, since[1].lacks) {
		return found(warn("Landlock is off (%.200s), so a non-root submission can read its job's payload", lsm).
			Advise("add lsm=landlock,%.200s to the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot; if CONFIG_SECURITY_LANDLOCK=y is not in /boot/config-%s, boot a newer kernel", lsm, m.Inventory.Kernel))
	}
	if len(lacks) > 0 {
		how := "boot kernel 6.8 or newer"
		if m.Inventory.OS.ID == "ubuntu" && m.Inventory.OS.VersionID == "22.04" {
			how = "run apt-get update && apt-get install -y linux-generic-hwe-22.04, drain the slots and reboot"
		}
		return found(warn("Linux %d.%d cannot: %s", v[0], v[1], strings.Join(lacks, "; ")).Advise("%s", how))
	}
	return found(ok("%s", version))
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

// containerFiles are what Docker, Podman and systemd's containers leave in a container.
var containerFiles = []string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"}

func systemSystemd(_ context.Context, m *Machine) Answer {
	version := m.Inventory.Software.Systemd
	switch v, err := strconv.Atoi(version); {
	case err != nil && slices.ContainsFunc(containerFiles, m.Exists):
		return found(fail("this is a container, in which systemd does not run").Advise("run kbnode on the host"))
	case err != nil:
		return found(fail("systemd does not report its version: %s", cmp.Or(m.problem("systemd"), "it is missing")).Advise("run kbnode on the host, not in a container; see systemctl is-system-running"))
	case v < installer.MinSystemd:
		return found(fail("systemd %d; slice limits and unit credentials need %d", v, installer.MinSystemd).Advise("upgrade to Ubuntu 22.04, Debian 12, RHEL 9 or newer"))
	}
	return found(ok("%s", version))
}

func systemClock(ctx context.Context, m *Machine) Answer {
	node, _ := signals.ReadNode(m.Root, nil) // its error is about other parts
	return m.clock(ctx, node.Clock)
}

func systemReadOnly(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, name := range []string{"/etc", "/usr/local", "/var/lib", "/run"} {
		if v, err := m.Volume(name); err != nil {
			all = append(all, fail("%s: %s", name, err).Advise("see sudo dmesg"))
		} else if f := readOnly(name, v.Statfs_t); f.Status > OK {
			all = append(all, f)
		}
	}
	return foundOr(all, ok("/etc, /usr/local, /var/lib and /run"))
}

func readOnly(name string, v unix.Statfs_t) Finding {
	if v.Flags&unix.ST_RDONLY == 0 {
		return Finding{}
	}
	return fail("%s is mounted read-only", name).
		Advise("see sudo dmesg: the kernel does that when a disk fails. If no disk failed, run sudo mount -o remount,rw $(findmnt -no TARGET -T %s), and correct /etc/fstab", name)
}

func systemSpace(_ context.Context, m *Machine) Answer {
	checked := map[uint64]bool{}
	var all []Finding
	engine := m.Inventory.Software.Docker
	for _, name := range []string{path.Dir(plan.WorkDir(0)), engine.RootDir, cmp.Or(engine.ContainerdDir, docker.ContainerdRoot), "/", "/var"} {
		if name == "" {
			continue
		}
		switch v, err := m.Volume(name); {
		case err != nil:
			all = append(all, warn("%s: %s", name, err).Advise("see sudo dmesg"))
		case !checked[v.Dev]:
			checked[v.Dev] = true
			if f := full(name, v.Statfs_t); f.Status > OK {
				all = append(all, f)
			}
		}
	}
	return foundOr(all, ok("file systems with free space: %d", len(checked)))
}

// full keeps numbers that change all the time out of the finding.
func full(name string, v unix.Statfs_t) Finding {
	size := uint64(v.Frsize)
	total, free := v.Blocks*size, v.Bavail*size
	none, low := min(total/50, 1<<30), min(total/10, 20<<30)
	const usage = "see what uses the space: sudo docker system df; sudo du -xh -d2 / | sort -h | tail -30"
	const count = "see what uses them: sudo du --inodes -x -d2 / | sort -n | tail -30"
	switch {
	case v.Flags&unix.ST_RDONLY != 0: // as a system image is
	case v.Files > 0 && v.Ffree < v.Files/100:
		return fail("%s has no room for more files: less than 1%% of its inodes are free", name).Advise(count)
	case free < none:
		return fail("%s is full: less than %d MiB are free", name, none>>20).Advise(usage)
	case v.Files > 0 && v.Ffree < v.Files/20:
		return warn("%s has little room for more files: less than 5%% of its inodes are free", name).Advise(count)
	case free < low:
		return warn("%s is nearly full: less than %d MiB are free", name, low>>20).Advise(usage)
	}
	return Finding{}
}
