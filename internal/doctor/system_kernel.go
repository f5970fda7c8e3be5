package doctor

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// features are the kernel features that slots need.
var features = []struct{ module, why string }{
	{"nf_tables", "the firewall between slots"},
	{"overlay", "Docker's images"},
	{"ext4", "the slots' disks"},
	{"loop", "the slots' disks"},
	{"bridge", "the slots' networks"},
	{"veth", "the slots' networks"},
}

// maxLong limits a file that is read by lines, in bytes. modules.dep of a large kernel has
// 1 MiB.
const maxLong = 16 << 20

func (m *Machine) modules() Answer {
	if _, err := os.Stat(m.path("/proc/modules")); err != nil {
		return none("this kernel loads no modules and does not report what it has")
	}
	filesystems, _ := m.read("/proc/filesystems")
	dir := "/lib/modules/" + m.Inventory.Kernel
	var absent []string
	for _, f := range features {
		if _, err := os.Stat(m.path("/sys/module/" + f.module)); err != nil && !slices.Contains(strings.Fields(filesystems), f.module) {
			absent = append(absent, f.module)
		}
	}
	if len(absent) == 0 {
		return found(ok("all are loaded"))
	}
	known := map[string]bool{}
	there := false
	for _, file := range []string{"/modules.dep", "/modules.builtin"} {
		there = m.eachLine(dir+file, func(line string) {
			name, _, _ := strings.Cut(line, ":")
			name, _, _ = strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ".ko")
			known[strings.ReplaceAll(name, "-", "_")] = true
		}) || there
	}
	if !there {
		return found(warn("not loaded: %s, and %s is missing: the kernel was upgraded since the last boot, or has them built in", strings.Join(absent, ", "), dir).
			advise("reboot, unless modprobe %s succeeds", absent[0]))
	}
	var all []Finding
	for _, f := range features {
		if !slices.Contains(absent, f.module) || known[f.module] {
			continue
		}
		finding := fail("the kernel has no %s, which %s need", f.module, f.why)
		if m.Inventory.OS.ID == "ubuntu" {
			finding = finding.by("apt-get update && apt-get install -y linux-modules-extra-%s", m.Inventory.Kernel)
		} else {
			finding = finding.advise("boot the distribution's standard kernel")
		}
		all = append(all, finding)
	}
	if len(all) == 0 {
		all = []Finding{ok("loaded when needed: %s", strings.Join(absent, ", "))}
	}
	return Answer{Findings: all}
}

// eachLine calls line for each line of a large file. It returns false if the file cannot be
// read.
func (m *Machine) eachLine(name string, line func(string)) (there bool) {
	f, err := os.Open(m.path(name))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(io.LimitReader(f, maxLong))
	for lines.Scan() {
		line(lines.Text())
	}
	return true
}

// corePattern checks for a core-dump program. The limit on core files, which is 0 for jobs,
// keeps the kernel from writing files, not from calling a program.
func (m *Machine) corePattern() Answer {
	text, err := m.read("/proc/sys/kernel/core_pattern")
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
		return found(f.by("systemctl disable --now apport.service && sysctl -w kernel.core_pattern=core"))
	}
	return found(f.by("echo kernel.core_pattern=core > /etc/sysctl.d/99-core-pattern.conf && sysctl -p /etc/sysctl.d/99-core-pattern.conf"))
}

// pids compares the limits of all slots with what there is. A job that uses all of its own
// must leave some to the others.
func (m *Machine) pids() Answer {
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
		text, err := m.read("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		n, errNum := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || errNum != nil {
			continue
		}
		if least == 0 || n < least {
			least = n
		}
		if n < sum+spare {
			file := "/etc/sysctl.d/99-" + strings.TrimPrefix(strings.ReplaceAll(name, "_", "-"), "kernel.") + ".conf"
			all = append(all, warn("all slots together may have %d processes and threads, but %s is %d", sum, name, n).
				by("echo %s=%d > %s && sysctl -p %s", name, 2*(sum+spare), file, file))
		}
	}
	switch {
	case least == 0:
		return none("the kernel does not report it")
	case len(all) == 0:
		all = []Finding{ok("%d for the slots, of %d", sum, least)}
	}
	return Answer{Findings: all}
}

// sandbox checks the kernel. The check docker-seccomp covers what Docker makes of it.
func (m *Machine) sandbox() Finding {
	if _, err := os.Stat(m.path("/proc/sys/kernel/seccomp/actions_avail")); err != nil {
		return fail("this kernel has no seccomp, so containers can make any system call").advise("boot the distribution's standard kernel")
	}
	lsm, _ := m.read("/sys/kernel/security/lsm")
	has := strings.Split(strings.TrimSpace(lsm), ",")
	enabled, _ := m.read("/sys/module/apparmor/parameters/enabled")
	switch {
	case slices.Contains(has, "selinux"):
		return ok("seccomp, SELinux")
	case slices.Contains(has, "apparmor") || strings.TrimSpace(enabled) == "Y":
		return ok("seccomp, AppArmor")
	}
	return warn("neither AppArmor nor SELinux is on; only seccomp and capabilities confine containers").
		advise("boot with security=apparmor on the kernel command line if the distribution has it")
}

func (m *Machine) users() []Finding {
	var all []Finding
	passwd, err := m.read("/etc/passwd")
	if err != nil {
		return []Finding{fail("%s", err).advise("check why it cannot be read")}
	}
	names, ids := map[string][]string{}, map[string]string{} // by user ID; by name
	for line := range strings.Lines(passwd) {
		if f := strings.Split(line, ":"); len(f) >= 4 {
			names[f[2]] = append(names[f[2]], f[0])
			ids[f[0]] = f[2]
		}
	}
	members := map[string][]string{} // groups, by user
	group, _ := m.read("/etc/group")
	for line := range strings.Lines(group) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) >= 4 {
			for user := range strings.SplitSeq(f[3], ",") {
				members[user] = append(members[user], f[0])
			}
		}
	}
	for _, s := range m.Plan.Slots {
		id, there := ids[s.User]
		if !there {
			continue // as-planned reports it, or an install creates it
		}
		if others := slices.DeleteFunc(slices.Clone(names[id]), func(n string) bool { return n == s.User }); len(others) > 0 {
			all = append(all, fail("user %s shares the ID %s with %s", s.User, id, strings.Join(others, ", ")).of(s.Index).
				advise("give the other user its own ID (usermod -u), or delete user %s and run kbnode reconcile", s.User))
		}
		for _, g := range members[s.User] {
			if slices.Contains(powerful, g) {
				all = append(all, fail("user %s is in group %s, which gives a job's commands control of the host", s.User, g).of(s.Index).
					safely("gpasswd -d %s %s && systemctl try-restart %s", s.User, g, plan.AgentUnit(s.Index)))
			}
		}
	}
	if len(all) == 0 {
		all = []Finding{ok("%d users", len(m.Plan.Slots))}
	}
	return all
}

// powerful are groups whose members are as good as root, except docker, which docker-group
// covers.
var powerful = []string{"root", "sudo", "wheel", "admin", "disk", "lxd", "incus-admin", "libvirt", "kvm", "shadow"}
