package doctor

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// feature is a kernel feature, and what needs it.
type feature struct{ module, why string }

// features are the kernel features that slots need.
var features = []feature{
	{"nf_tables", "the firewall between slots"},
	{"nf_conntrack_netlink", "containers that get no connections of earlier ones"},
	{"overlay", "Docker's images"},
	{"ext4", "the slots' disks"},
	{"loop", "the slots' disks"},
	{"bridge", "the slots' networks"},
	{"veth", "the slots' networks"},
}

// dockerModules are those without which dockerd does not start, and that RHEL 10 and Fedora have in a package of
// their own. Other distributions have them beside the rest.
var dockerModules = []feature{{"xt_addrtype", "Docker's networks"}}

// lackingModules returns a finding for each feature that this kernel certainly lacks.
func lackingModules(m *Machine, list []feature) (all []Finding) {
	known, there := m.Modules(m.Inventory.Kernel)
	if !there {
		return nil
	}
	filesystems := strings.Fields(m.Value("/proc/filesystems"))
	for _, f := range list {
		if m.Exists("/sys/module/"+f.module) || slices.Contains(filesystems, f.module) || known[f.module] {
			continue
		}
		finding := fail("the kernel has no %s, which %s need", f.module, f.why)
		switch {
		case m.Inventory.OS.ID == "ubuntu":
			finding = finding.By("apt-get update && apt-get install -y linux-modules-extra-%s", m.Inventory.Kernel)
		case installer.HasDNF(m.Inventory.OS):
			finding = finding.By("dnf install -y kernel-modules-extra-%s && modprobe %s", m.Inventory.Kernel, f.module)
		default:
			finding = finding.Advise("boot the distribution's standard kernel")
		}
		all = append(all, finding)
	}
	return all
}

func systemModules(_ context.Context, m *Machine) Answer {
	if !m.Exists("/proc/modules") {
		return none("this kernel loads no modules and does not report what it has")
	}
	filesystems := strings.Fields(m.Value("/proc/filesystems"))
	var absent []string
	for _, f := range features {
		if !m.Exists("/sys/module/"+f.module) && !slices.Contains(filesystems, f.module) {
			absent = append(absent, f.module)
		}
	}
	if installer.HasDNF(m.Inventory.OS) {
		if lacking := lackingModules(m, slices.Concat(features, dockerModules)); len(lacking) > 0 {
			return found(lacking...)
		}
	}
	if len(absent) == 0 {
		return found(ok("all are loaded"))
	}
	if _, there := m.Modules(m.Inventory.Kernel); !there {
		return found(warn("not loaded: %s, and %s is missing: the kernel was upgraded since the last boot, or has them built in", strings.Join(absent, ", "), "/lib/modules/"+m.Inventory.Kernel).
			Advise("reboot, unless sudo modprobe %s succeeds", absent[0]))
	}
	return foundOr(lackingModules(m, features), ok("loaded when needed: %s", strings.Join(absent, ", ")))
}

// systemCorePattern checks for a core-dump program. The limit on core files, which is 0 for jobs,
// keeps the kernel from writing files, not from calling a program.
func systemCorePattern(_ context.Context, m *Machine) Answer {
	text, err := m.Read("/proc/sys/kernel/core_pattern")
	if err != nil {
		return none("the kernel does not report it")
	}
	pattern := strings.TrimSpace(text)
	program, piped := strings.CutPrefix(pattern, "|")
	switch {
	case !piped:
		return found(ok("%.60q, and the limit of jobs is 0", pattern))
	case strings.Contains(program, "systemd-coredump"):
		return found(ok("systemd-coredump, which keeps nothing if the limit is 0"))
	}
	f := warn("a crashed job's memory goes to %.80q, outside the slot", program)
	if strings.Contains(program, "/apport") {
		return found(f.By("systemctl disable --now apport.service && sysctl -w kernel.core_pattern=core"))
	}
	return found(f.By("echo kernel.core_pattern=core > /etc/sysctl.d/99-core-pattern.conf && sysctl -p /etc/sysctl.d/99-core-pattern.conf"))
}

// systemPids compares the limits of all slots with what there is. A job that uses all of its own
// must leave some to the others.
func systemPids(_ context.Context, m *Machine) Answer {
	var sum int64
	for _, s := range m.Plan.Slices {
		if s.Slot >= 0 {
			sum += s.TasksMax
		}
	}
	const spare = 8192 // for the system
	var all []Finding
	least := int64(0)
	for _, name := range []string{"kernel.pid_max", "kernel.threads-max"} {
		n, err := strconv.ParseInt(m.Value("/proc/sys/"+strings.ReplaceAll(name, ".", "/")), 10, 64)
		if err != nil {
			continue
		}
		if least == 0 || n < least {
			least = n
		}
		switch file := "/etc/sysctl.d/99-" + strings.TrimPrefix(strings.ReplaceAll(name, "_", "-"), "kernel.") + ".conf"; {
		case n >= sum+spare:
		case sum+spare > plan.MaxPIDs:
			return found(warn("all slots together may have %d processes and threads, and Linux has %d at most", sum, plan.MaxPIDs).
				Advise("write a smaller job.tasks_max, as kbnode plan says"))
		default:
			all = append(all, warn("all slots together may have %d processes and threads, but %s is %d", sum, name, n).
				By("echo %s=%d > %s && sysctl -p %s", name, min(2*(sum+spare), plan.MaxPIDs), file, file))
		}
	}
	if least == 0 {
		return none("the kernel does not report it")
	}
	return foundOr(all, ok("%d for the slots, of %d", sum, least))
}

// systemPtrace checks what is in force: a kernel takes 3 for good, and containers see the node's value.
func systemPtrace(_ context.Context, m *Machine) Answer {
	switch scope, err := strconv.Atoi(m.Value("/proc/sys/kernel/yama/ptrace_scope")); {
	case err != nil:
		return none("this kernel has no Yama, so it has no kernel.yama.ptrace_scope")
	case scope > 0:
		return found(ok("kernel.yama.ptrace_scope is %d", scope))
	}
	return found(warn("kernel.yama.ptrace_scope is 0, so what a judge starts can reach the judge's memory").
		Safely("kbnode reconcile").Advise("if the kernel refuses it, the check state says why"))
}

// systemSandbox checks the kernel. The check docker-seccomp covers what Docker makes of it.
func systemSandbox(_ context.Context, m *Machine) Answer {
	if !m.Exists("/proc/sys/kernel/seccomp/actions_avail") {
		return found(fail("this kernel has no seccomp, so containers can make any system call").Advise("boot the distribution's standard kernel"))
	}
	has := strings.Split(m.Value("/sys/kernel/security/lsm"), ",")
	switch {
	case slices.Contains(has, "selinux"):
		return found(ok("seccomp, SELinux"))
	case slices.Contains(has, "apparmor") || m.Value("/sys/module/apparmor/parameters/enabled") == "Y":
		return found(ok("seccomp, AppArmor"))
	}
	return found(warn("neither AppArmor nor SELinux is on; only seccomp and capabilities confine containers").
		Advise("boot with security=apparmor on the kernel command line if the distribution has it"))
}

func systemUsers(_ context.Context, m *Machine) Answer {
	users, err := m.Users()
	groups, _ := m.Groups()
	if err != nil || len(users) == 0 {
		return found(fail("/etc/passwd cannot be read").Advise("check why it cannot be read"))
	}
	var all []Finding
	there := 0
	for _, s := range append(slices.Clone(m.Plan.Slots), plan.Slot{Index: -1, User: plan.GitUser}) {
		u, is := users[s.User]
		if !is {
			continue // as-planned reports it, or an install creates it
		}
		there++
		var wrong []Finding
		for _, other := range slices.Sorted(maps.Keys(users)) {
			if other != s.User && users[other].UID == u.UID {
				wrong = append(wrong, fail("user %s shares the ID %d with %s", s.User, u.UID, other).
					Advise("give the other user its own ID (sudo usermod -u), or delete user %s and run sudo kbnode reconcile", s.User))
			}
		}
		for _, g := range groups {
			if slices.Contains(g.Members, s.User) && slices.Contains(powerful, g.Name) {
				f := fail("user %s is in group %s, which is as good as root", s.User, g.Name).Safely("gpasswd -d %s %s", s.User, g.Name)
				if s.Index >= 0 {
					f = f.Safely("%s && systemctl try-restart --no-block %s", f.Fix, plan.AgentUnit(s.Index))
				}
				wrong = append(wrong, f)
			}
		}
		for _, f := range wrong {
			if s.Index >= 0 {
				f = f.Of(s.Index)
			}
			all = append(all, f)
		}
	}
	return foundOr(all, ok("%d users", there))
}

// powerful are groups whose members are as good as root.
var powerful = []string{"root", "sudo", "wheel", "admin", "docker", "disk", "lxd", "incus-admin", "libvirt", "kvm", "shadow"}
