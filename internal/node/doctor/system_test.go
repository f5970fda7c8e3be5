package doctor

import (
	"maps"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

func TestSystemChecks(t *testing.T) {
	t.Parallel()
	machine := func(change func(*inventory.Inventory)) *fake {
		inv := &inventory.Inventory{
			Kernel:   "6.12.0-13-amd64",
			OS:       inventory.OS{ID: "debian", VersionID: "13"},
			Software: inventory.Software{Systemd: "257", CgroupV2: true, Git: "/usr/bin/git", MkfsExt4: "/usr/sbin/mkfs.ext4", Docker: inventory.Docker{Version: "28.1"}},
		}
		if change != nil {
			change(inv)
		}
		return &fake{inv: inv, state: &reconcile.State{}, plan: &plan.Plan{
			Slots:  []plan.Slot{{Index: 0, User: "kbnode-gpu0"}, {Index: 1, User: "kbnode-gpu1"}},
			Slices: []plan.Slice{{Slot: -1, TasksMax: 99999}, {Slot: 0, TasksMax: 8192}, {Slot: 1, TasksMax: 8192}},
		}}
	}
	tasks := func(n int64) *fake {
		f := machine(nil)
		f.plan.Slices[1].TasksMax = n
		return f
	}
	kernel := func(v string) *fake { return machine(func(i *inventory.Inventory) { i.Kernel = v }) }
	file := func(list ...string) map[string]string {
		all := map[string]string{}
		for i := 0; i < len(list); i += 2 {
			all[list[i]] = list[i+1]
		}
		return all
	}
	const controllers, lsm, core = "/sys/fs/cgroup/cgroup.controllers", "/sys/kernel/security/lsm", "/proc/sys/kernel/core_pattern"
	const seccomp, passwd = "/proc/sys/kernel/seccomp/actions_avail", "root:x:0:0::/:\nkbnode-gpu0:x:990:990::/:\nkbnode-gpu1:x:991:991::/:\n"
	rhel := machine(func(i *inventory.Inventory) { i.OS.ID = "rhel" })
	loaded := file("/proc/modules", "", "/proc/filesystems", "nodev\toverlay\n\text4\n", "/sys/module/nf_tables/x", "", "/sys/module/nf_conntrack_netlink/x", "", "/sys/module/bridge/x", "", "/sys/module/loop/x", "")
	with := func(base map[string]string, list ...string) map[string]string {
		all := file(list...)
		maps.Copy(all, base)
		return all
	}
	const scope = "/proc/sys/kernel/yama/ptrace_scope"
	unbooted := machine(func(i *inventory.Inventory) {
		i.Software.Systemd, i.Problems = "", []inventory.Problem{{Subject: "systemd", Detail: "not booted with it"}}
	})
	play(t, []scene{
		{"good", "system-systemd", machine(nil), nil, "ok: 257", ""},
		{"old", "system-systemd", machine(func(i *inventory.Inventory) { i.Software.Systemd = "247" }), nil, "fail: systemd 247; slice limits and unit credentials need 249", ""},
		{"another init", "system-systemd", unbooted, nil, "fail: systemd does not report its version: not booted with it", ""},
		{"in a container", "system-systemd", unbooted, file("/.dockerenv", ""), "fail: this is a container, in which systemd does not run", ""},
		{"in a container with systemd", "system-systemd", machine(nil), file("/run/systemd/container", "lxc"), "ok: 257", ""},

		{"good", "system-cgroup", machine(nil), file(controllers, "cpuset cpu io memory pids\n"), "ok: v2 with cpuset, cpu, io, memory, pids", ""},
		{"version 1", "system-cgroup", machine(func(i *inventory.Inventory) { i.Software.CgroupV2 = false }), nil, "fail: cgroup v2 is not mounted at /sys/fs/cgroup, and with version 1 slots' limits do not work", ""},
		{"without memory", "system-cgroup", machine(nil), file(controllers, "cpuset cpu io pids\n"), "fail: the cgroup controllers memory are missing, so slots have no such limits", ""},
		{"without io", "system-cgroup", machine(nil), file(controllers, "cpuset cpu memory pids\n"), "warn: the cgroup controllers io are missing, so less is known about a job", ""},

		{"good", "system-kernel", machine(nil), file(lsm, "lockdown,capability,landlock,yama,apparmor\n"), "ok: 6.12.0-13-amd64", ""},
		{"Ubuntu 22.04", "system-kernel", kernel("5.15.0-91-generic"), nil, "warn: Linux 5.15 cannot: hide the payload from a non-root submission (Landlock); " +
			"reliably keep other programs off the slots' CPUs (cpuset partitions); keep the CPUs that a thread chose while limits change", ""},
		{"new enough", "system-kernel", kernel("6.2.0-1-generic"), nil, "ok: 6.2.0-1-generic", ""},
		{"RHEL 9", "system-kernel", kernel("5.14.0-503.el9.x86_64"), file("/sys/fs/cgroup/init.scope/cgroup.kill", ""), "ok: 5.14.0-503.el9.x86_64", ""},
		{"before cgroup.kill", "system-kernel", kernel("5.10.0-1.el9"), nil, "warn: Linux 5.10 cannot: end all processes of a job at once", ""},
		{"Landlock is off", "system-kernel", machine(nil), file(lsm, "capability,yama\n"), "warn: Landlock is off (capability,yama), so a non-root submission can read its job's payload", ""},
		{"odd version", "system-kernel", kernel("custom"), nil, `skip: unknown kernel version "custom"`, ""},

		{"loaded", "system-modules", machine(nil), with(loaded, "/sys/module/veth/x", ""), "ok: all are loaded", ""},
		{"can be loaded", "system-modules", machine(nil), with(loaded, "/lib/modules/6.12.0-13-amd64/modules.dep", "kernel/drivers/net/veth.ko.xz:\n"), "ok: loaded when needed: veth", ""},
		{"upgraded", "system-modules", machine(nil), loaded, "warn: not loaded: veth, and /lib/modules/6.12.0-13-amd64 is missing: the kernel was upgraded since the last boot, or has them built in", ""},
		{"missing", "system-modules", machine(nil), with(loaded, "/lib/modules/6.12.0-13-amd64/modules.builtin", "kernel/x.ko\n"), "fail: the kernel has no veth, which the slots' networks need", ""},
		{"missing on Ubuntu", "system-modules", machine(func(i *inventory.Inventory) { i.OS.ID = "ubuntu" }), with(loaded, "/lib/modules/6.12.0-13-amd64/modules.dep", ""),
			"fail: the kernel has no veth, which the slots' networks need", "apt-get update && apt-get install -y linux-modules-extra-6.12.0-13-amd64"},
		{"RHEL 10 without the extra ones", "system-modules", rhel, with(loaded, "/sys/module/veth/x", "", "/lib/modules/6.12.0-13-amd64/modules.dep", "kernel/x.ko:\n"),
			"fail: the kernel has no xt_addrtype, which Docker's networks need", "dnf install -y kernel-modules-extra-6.12.0-13-amd64 && modprobe xt_addrtype"},
		{"RHEL 10 with them", "system-modules", rhel, with(loaded, "/sys/module/veth/x", "", "/lib/modules/6.12.0-13-amd64/modules.dep", "extra/xt_addrtype.ko.xz:\n"), "ok: all are loaded", ""},
		{"no modules", "system-modules", machine(nil), nil, "skip: this kernel loads no modules and does not report what it has", ""},

		{"good", "system-git", machine(nil), nil, "ok: /usr/bin/git", ""},
		{"none", "system-git", machine(func(i *inventory.Inventory) { i.Software.Git = "" }), nil, "fail: git is not installed", "apt-get update && apt-get install -y git"},
		{"good", "system-mkfs", machine(nil), nil, "ok: /usr/sbin/mkfs.ext4", ""},
		{"none", "system-mkfs", machine(func(i *inventory.Inventory) { i.Software.MkfsExt4, i.OS.ID = "", "rocky" }), nil, "fail: mkfs.ext4 is not installed", "dnf install -y e2fsprogs"},

		{"good", "system-users", machine(nil), file("/etc/passwd", passwd, "/etc/group", "docker:x:9:alice\n"), "ok: 2 users", ""},
		{"in a group of roots", "system-users", machine(nil), file("/etc/passwd", passwd, "/etc/group", "video:x:8:kbnode-gpu1\nsudo:x:9:alice,kbnode-gpu1\ndocker:x:10:kbnode-gpu1\n"),
			"fail: user kbnode-gpu1 is in group sudo, which is as good as root (and 1 more)", "gpasswd -d kbnode-gpu1 sudo && systemctl try-restart --no-block buildkite-agent-gpu1.service"},
		{"a shared ID", "system-users", machine(nil), file("/etc/passwd", passwd+"alice:x:990:990::/:\n"), "fail: user kbnode-gpu0 shares the ID 990 with alice", ""},
		{"root by another name", "system-users", machine(nil), file("/etc/passwd", "root:x:0:0::/:\nkbnode-gpu0:x:0:0::/:\n"), "fail: user kbnode-gpu0 shares the ID 0 with root", ""},
		{"git's in a group of roots", "system-users", machine(nil), file("/etc/passwd", passwd+"kbnode-git:x:992:992::/:\n", "/etc/group", "sudo:x:9:kbnode-git\n"),
			"fail: user kbnode-git is in group sudo, which is as good as root", "gpasswd -d kbnode-git sudo"},
		{"git's is a slot's", "system-users", machine(nil), file("/etc/passwd", passwd+"kbnode-git:x:990:990::/:\n"), "fail: user kbnode-gpu0 shares the ID 990 with kbnode-git (and 1 more)", ""},

		{"good", "system-sandbox", machine(nil), file(seccomp, "", lsm, "capability,apparmor\n"), "ok: seccomp, AppArmor", ""},
		{"SELinux", "system-sandbox", machine(nil), file(seccomp, "", lsm, "capability,selinux\n"), "ok: seccomp, SELinux", ""},
		{"no list of modules", "system-sandbox", machine(nil), file(seccomp, "", "/sys/module/apparmor/parameters/enabled", "Y\n"), "ok: seccomp, AppArmor", ""},
		{"neither", "system-sandbox", machine(nil), file(seccomp, "", lsm, "capability\n"), "warn: neither AppArmor nor SELinux is on; only seccomp and capabilities confine containers", ""},
		{"no seccomp", "system-sandbox", machine(nil), nil, "fail: this kernel has no seccomp, so containers can make any system call", ""},

		{"a file", "system-core-pattern", machine(nil), file(core, "core\n"), `ok: "core", and the limit of jobs is 0`, ""},
		{"systemd", "system-core-pattern", machine(nil), file(core, "|/usr/lib/systemd/systemd-coredump %P\n"), "ok: systemd-coredump, which keeps nothing if the limit is 0", ""},
		{"apport", "system-core-pattern", machine(nil), file(core, "|/usr/share/apport/apport -p%p\n"), `warn: a crashed job's memory goes to "/usr/share/apport/apport -p%p", outside the slot`,
			"systemctl disable --now apport.service && sysctl -w kernel.core_pattern=core"},
		{"another program", "system-core-pattern", machine(nil), file(core, "|/usr/libexec/abrt-hook-ccpp\n"), `warn: a crashed job's memory goes to "/usr/libexec/abrt-hook-ccpp", outside the slot`,
			"echo kernel.core_pattern=core > /etc/sysctl.d/99-core-pattern.conf && sysctl -p /etc/sysctl.d/99-core-pattern.conf"},

		{"good", "system-ptrace", machine(nil), file(scope, "1\n"), "ok: kernel.yama.ptrace_scope is 1", ""},
		{"closed further", "system-ptrace", machine(nil), file(scope, "3\n"), "ok: kernel.yama.ptrace_scope is 3", ""},
		{"open", "system-ptrace", machine(nil), file(scope, "0\n"), "warn: kernel.yama.ptrace_scope is 0, so what a judge starts can reach the judge's memory", "kbnode reconcile"},
		{"without Yama", "system-ptrace", machine(nil), nil, "skip: this kernel has no Yama, so it has no kernel.yama.ptrace_scope", ""},

		{"good", "system-pids", machine(nil), file("/proc/sys/kernel/pid_max", "4194304\n", "/proc/sys/kernel/threads-max", "126000\n"), "ok: 16384 for the slots, of 126000", ""},
		{"few", "system-pids", machine(nil), file("/proc/sys/kernel/pid_max", "16384\n", "/proc/sys/kernel/threads-max", "126000\n"), "warn: all slots together may have 16384 processes and threads, but kernel.pid_max is 16384",
			"echo kernel.pid_max=49152 > /etc/sysctl.d/99-pid-max.conf && sysctl -p /etc/sysctl.d/99-pid-max.conf"},
		{"almost all", "system-pids", tasks(3 << 20), file("/proc/sys/kernel/pid_max", "32768\n"), "warn: all slots together may have 3153920 processes and threads, but kernel.pid_max is 32768",
			"echo kernel.pid_max=4194304 > /etc/sysctl.d/99-pid-max.conf && sysctl -p /etc/sysctl.d/99-pid-max.conf"},
		{"more than Linux has", "system-pids", tasks(1 << 22), file("/proc/sys/kernel/pid_max", "4194304\n"), "warn: all slots together may have 4202496 processes and threads, and Linux has 4194304 at most", ""},
		{"not told", "system-pids", machine(nil), nil, "skip: the kernel does not report it", ""},
	})
}

func TestClock(t *testing.T) {
	t.Parallel()
	chrony := &fake{units: []slot.Unit{{Name: "chrony.service", Load: "loaded", Active: "active"}}}
	for _, tt := range []struct {
		name      string
		f         *fake
		state     health.Clock
		installed bool
		want      string
		fix       string
	}{
		{"kept right", chrony, health.ClockSynchronised, false, "ok chrony.service", ""},
		{"by somebody unknown", &fake{}, health.ClockSynchronised, false, "ok synchronized", ""},
		{"not yet", chrony, health.ClockAdrift, false, "warn chrony.service runs, but has not set the clock yet", ""},
		{"by nobody", &fake{}, health.ClockAdrift, false, "warn nothing synchronizes the clock: if it is wrong, Buildkite and registries refuse the node", "timedatectl set-ntp true"},
		{"the daemon looks", &fake{}, health.ClockAdrift, true, " it is not synchronized; kbnode.service watches it, and health reports it after ten minutes", ""},
		{"unknown", &fake{}, health.ClockUnknown, false, " the kernel does not report it", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{}
			if tt.installed {
				files[plan.BindingsPath] = "{}"
			}
			a := machineOf(t, tt.f, files).clock(t.Context(), tt.state)
			got, fix := " "+a.Detail, ""
			if len(a.Findings) > 0 {
				got, fix = a.Findings[0].Status.String()+" "+a.Findings[0].Detail, a.Findings[0].Fix
				played(Result{ID: "system-clock", Status: a.Findings[0].Status})
			}
			if got != tt.want || fix != tt.fix {
				t.Errorf("%q, %q", got, fix)
			}
		})
	}
}

func TestVolume(t *testing.T) {
	t.Parallel()
	machine := func(blocks, free, files, filesFree uint64, flags int64) unix.Statfs_t {
		return unix.Statfs_t{Frsize: 4096, Blocks: blocks, Bavail: free, Files: files, Ffree: filesFree, Flags: flags}
	}
	for _, tt := range []struct {
		name string
		v    unix.Statfs_t
		want string
	}{
		{"room", machine(100<<20, 50<<20, 1000, 900, 0), "ok"},
		{"without inodes", machine(100<<20, 50<<20, 0, 0, 0), "ok"},
		{"nearly full", machine(100<<20, 4<<20, 1000, 900, 0), "warn"},
		{"full", machine(100<<20, 1<<10, 1000, 900, 0), "fail"},
		{"few inodes", machine(100<<20, 50<<20, 1000, 40, 0), "warn"},
		{"no inodes", machine(100<<20, 50<<20, 1000, 9, 0), "fail"},
		{"read-only, and so always full", machine(100<<20, 0, 1000, 0, unix.ST_RDONLY), "ok"},
	} {
		f := full("/var", tt.v)
		played(Result{ID: "system-space", Status: f.Status})
		if f.Status.String() != tt.want || f.Status > OK && f.Advice == "" {
			t.Errorf("%s: %+v, want %s", tt.name, f, tt.want)
		}
	}
	f := readOnly("/var/lib", machine(1, 1, 1, 1, unix.ST_RDONLY))
	played(Result{ID: "system-read-only", Status: f.Status})
	if f.Status != Fail || f.Detail != "/var/lib is mounted read-only" {
		t.Errorf("read-only: %+v", f)
	}
	if f := readOnly("/var/lib", machine(1, 1, 1, 1, 0)); f.Status > OK {
		t.Error("a disk that can be written to is read-only")
	}
	m := machineOf(t, &fake{inv: &inventory.Inventory{}}, nil)
	if got := answer(t, m, "system-read-only"); got.Status != OK {
		t.Errorf("a temporary directory: %+v", got)
	}
	if got := answer(t, m, "system-space"); len(got.Findings) != 1 {
		t.Errorf("one file system: %+v", got)
	}
}
