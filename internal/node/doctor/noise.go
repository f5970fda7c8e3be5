package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// irqbalance avoids CPUs only if told to.
func irqbalance(ctx context.Context, m *Machine) Answer {
	planned := slices.ContainsFunc(m.Plan.Tunables, func(t plan.Tunable) bool { return strings.HasPrefix(t.Name, "/proc/irq/") })
	if !planned {
		return none("interrupts are left where they are")
	}
	u, err := m.unit(ctx, "irqbalance.service")
	if err != nil {
		return found(skip("%s", err))
	}
	if !u.Running() {
		return found(ok("irqbalance does not run"))
	}
	for _, file := range []string{"/etc/default/irqbalance", "/etc/sysconfig/irqbalance"} {
		for line := range strings.Lines(m.Value(file)) {
			value, is := strings.CutPrefix(strings.TrimSpace(line), "IRQBALANCE_BANNED_CPULIST=")
			if banned, err := cpuset.Parse(strings.Trim(value, `"'`)); is && err == nil && slotsCPUs(m.Plan).Difference(banned).Len() == 0 {
				return found(ok("irqbalance runs, but leaves the slots' CPUs alone"))
			}
		}
	}
	return found(warn("irqbalance runs and moves interrupts to the slots' CPUs").By("systemctl disable --now irqbalance.service"))
}

func noiseIsolated(_ context.Context, m *Machine) Answer {
	isolated, _ := cpuset.Parse(m.Value("/sys/devices/system/cpu/isolated"))
	if both := slotsCPUs(m.Plan).Intersect(isolated); both.Len() > 0 {
		return found(warn("CPUs %s are isolated (isolcpus), so all threads of a job run on one of them", both).
			Advise("remove isolcpus= and similar options from the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot"))
	}
	return found(ok("no CPU is isolated"))
}

// heavy are timers that do much disk I/O, or start a package manager, unasked.
var heavy = []string{
	"apt-daily.timer", "dnf-makecache.timer", "man-db.timer", "mlocate-updatedb.timer", "plocate-updatedb.timer", "updatedb.timer",
	"fstrim.timer", "e2scrub_all.timer", "xfs_scrub_all.timer", "mdcheck_start.timer", "mdcheck_continue.timer", "snapd.refresh.timer",
	"raid-check.timer", "btrfs-scrub.timer", "fwupd-refresh.timer",
}

func noiseTimers(ctx context.Context, m *Machine) Answer {
	run, err := m.running(ctx, heavy...)
	switch {
	case err != nil:
		return found(skip("%s", err))
	case len(run) > 0:
		return found(warn("%s may start while a job is timed", strings.Join(run, ", ")).By("systemctl disable --now %s", strings.Join(run, " ")))
	}
	return found(ok("none"))
}

// running returns those of the named units that run.
func (m *Machine) running(ctx context.Context, names ...string) (list []string, err error) {
	for _, name := range names {
		u, err := m.unit(ctx, name)
		if err != nil {
			return nil, err
		}
		if u.Running() {
			list = append(list, name)
		}
	}
	return list, nil
}

// noiseUpgrades looks for programs that replace a driver or Docker while jobs run.
func noiseUpgrades(ctx context.Context, m *Machine) Answer {
	run, err := m.running(ctx, "apt-daily-upgrade.timer", "dnf-automatic.timer", "dnf-automatic-install.timer", "dnf5-automatic.timer", "snapd.service")
	if err != nil {
		return found(skip("%s", err))
	}
	// Without the package, or if it is switched off, the timer does nothing.
	if i := slices.Index(run, "apt-daily-upgrade.timer"); i >= 0 && !m.unattended() {
		run = slices.Delete(run, i, i+1)
	}
	if i := slices.Index(run, "snapd.service"); i >= 0 {
		held := m.Contains("/var/lib/snapd/state.json", `"hold":"forever"`)
		run = slices.Delete(run, i, i+1)
		if len(run) == 0 && len(m.List("/var/lib/snapd/snaps/*.snap")) > 0 && !held {
			return found(warn("snapd refreshes its snaps automatically").By("snap set system refresh.hold=forever"))
		}
	}
	if len(run) > 0 {
		return found(warn("%s upgrades packages automatically: a new driver stops all jobs until a reboot, and the work disturbs them", strings.Join(run, ", ")).
			By("systemctl disable --now %s", strings.Join(run, " ")))
	}
	return found(ok("nothing upgrades packages automatically"))
}

var periodic = lazy.Regexp(`(?m)^\s*APT::Periodic::(Unattended-Upgrade|Enable)\s+"?([^";\s]*)`)

// unattended reads APT's configuration as APT does: the last file wins.
func (m *Machine) unattended() bool {
	set := map[string]string{"Unattended-Upgrade": "0", "Enable": "1"}
	for _, file := range m.List("/etc/apt/apt.conf.d/*") {
		for _, line := range periodic().FindAllStringSubmatch(m.Value(file), -1) {
			set[line[1]] = line[2]
		}
	}
	return set["Enable"] != "0" && set["Unattended-Upgrade"] != "0" && set["Unattended-Upgrade"] != ""
}

// noiseSwap looks for swap on disks. Jobs have none, but it slows what starts and ends them.
// Swap in memory (zram) does not count.
func noiseSwap(_ context.Context, m *Machine) Answer {
	swaps, err := m.Read("/proc/swaps")
	if err != nil {
		return none("this kernel has no swap")
	}
	var areas []string
	for line := range strings.Lines(swaps) {
		if f := strings.Fields(line); len(f) >= 5 && f[0] != "Filename" && !strings.HasPrefix(f[0], "/dev/zram") {
			areas = append(areas, text.Line(f[0], 60))
		}
	}
	if len(areas) == 0 {
		return found(ok("no swap"))
	}
	return found(warn("the system swaps to %s, which sometimes slows the beginning and end of a job; jobs themselves have no swap", strings.Join(areas, ", ")).
		By("swapoff -a").Advise("remove it from /etc/fstab, too, or it comes back at the next boot"))
}

// slotsCPUs returns the planned CPUs of all slots.
func slotsCPUs(p *plan.Plan) (all cpuset.Set) {
	for _, s := range p.Slots {
		cpus, _ := cpuset.Parse(s.CPUs)
		all = all.Union(cpus)
	}
	return all
}
