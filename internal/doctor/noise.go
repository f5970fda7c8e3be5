package doctor

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// noiseChecks look for what makes a job's timings depend on anything but the job. None of
// it makes a node unfit.
var noiseChecks = []Check{
	settingCheck("noise-governor", "the slots' CPUs run at full speed", "cpufreq/"),
	settingCheck("noise-hugepages", "nothing moves memory into huge pages while jobs run", "transparent_hugepage/"),
	settingCheck("noise-ksm", "the kernel does not merge pages of different jobs", "/ksm/"),
	settingCheck("noise-numa-balancing", "the kernel does not move pages between NUMA nodes", "numa_balancing"),
	settingCheck("noise-interrupts", "devices interrupt only the reserved CPUs", "/proc/irq/"),
	settingCheck("noise-workqueues", "the kernel does its own work on the reserved CPUs", "/workqueue/"),
	{
		ID: "noise-irqbalance", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"system-systemd", "plan"},
		Doc:   "Stop irqbalance, or list these CPUs in `IRQBALANCE_BANNED_CPULIST=` in `/etc/default/irqbalance` (RHEL: `/etc/sysconfig/irqbalance`).",
		About: "no other program moves interrupts to the slots' CPUs",
		Run:   irqbalance,
	},
	{
		ID: "noise-isolated", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"plan"},
		Doc:   "`isolcpus=` puts all threads of a job on one CPU. Remove it; the cpuset partition replaces it.",
		About: "the kernel spreads threads over the slots' CPUs",
		Run: func(_ context.Context, m *Machine) Answer {
			isolated, _ := cpuset.Parse(m.Value("/sys/devices/system/cpu/isolated"))
			if both := slotsCPUs(m.Plan).Intersect(isolated); both.Len() > 0 {
				return found(warn("CPUs %s are isolated (isolcpus), so all threads of a job run on one of them", both).
					Advise("remove isolcpus= and similar options from the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot"))
			}
			return found(ok("no CPU is isolated"))
		},
	},
	{
		ID: "noise-timers", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"system-systemd"},
		Doc:   "Disable timers that read the disk or start a package manager, or expect some slow jobs.",
		About: "no system timer starts heavy work",
		Run:   func(ctx context.Context, m *Machine) Answer { return m.timers(ctx) },
	},
	{
		ID: "noise-upgrades", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"system-systemd"},
		Doc:   "Upgrading the driver stops jobs until a reboot; upgrading Docker ends them. Upgrade by hand with the slots drained, or exclude `nvidia` and `docker` in `/etc/apt/apt.conf.d/50unattended-upgrades`, which this check does not see.",
		About: "packages do not upgrade automatically",
		Run:   func(ctx context.Context, m *Machine) Answer { return m.upgrades(ctx) },
	},
	{
		ID: "noise-swap", Group: "noise", Bare: true, Worst: Warn,
		Doc:   "Swap delays kbnode and Docker, not jobs. Run `sudo swapoff -a`, which takes a while, and edit `/etc/fstab`. If memory is short, raise `reserve.memory`.",
		About: "the system has no swap on a disk",
		Run:   func(_ context.Context, m *Machine) Answer { return m.swap() },
	},
	{
		ID: "noise-turbo", Group: "noise", Bare: true, Worst: Warn,
		Doc:   "Scores of nodes that differ do not compare.",
		About: "for information: whether CPUs exceed their nominal clock",
		Run:   func(_ context.Context, m *Machine) Answer { return m.turbo() },
	},
	{
		ID: "noise-idle-states", Group: "noise", Bare: true, Worst: Warn,
		Doc:   "Change it in the BIOS, or until the next boot with `cpupower idle-set -D 10`.",
		About: "for information: how long idle CPUs take to wake up",
		Run:   func(_ context.Context, m *Machine) Answer { return m.idleStates() },
	},
	{
		ID: "noise-smt", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"inventory"},
		Doc:   "Slots never share cores.",
		About: "for information: threads per core",
		Run: func(_ context.Context, m *Machine) Answer {
			cores := map[int]bool{}
			for _, c := range m.Inventory.CPU.List {
				cores[c.Core] = true
			}
			if len(cores) == 0 {
				return none("the machine does not report it")
			}
			return found(ok("%d CPUs on %d cores; slots and the system share none", len(m.Inventory.CPU.List), len(cores)))
		},
	},
}

// settingCheck reports a setting that kbnode makes and that does not hold, because the
// kernel rejects it or another program keeps changing it. The check as-planned reports what
// kbnode will correct.
func settingCheck(id, about, part string) Check {
	return Check{
		ID: id, Group: "noise", Worst: Warn, About: about, Needs: []string{"as-planned"},
		Doc: "The kernel refused the setting, or another program changed it 20 times and kbnode gave up. See [where it does not work](configuration.md#where-it-does-not-work).",
		Run: func(ctx context.Context, m *Machine) Answer {
			if m.Config.Hygiene.Disabled {
				return none("hygiene.disabled leaves it alone")
			}
			var all []Finding
			var values []string
			for _, t := range m.Plan.Tunables {
				if !strings.HasPrefix(t.Name, "/") || !strings.Contains(t.Name, part) {
					continue
				}
				if v := shown(t); !slices.Contains(values, v) {
					values = append(values, v)
				}
				for _, w := range m.State.Warnings {
					if ofTunable(t, w) {
						all = append(all, warn("%s", w).Advise("%s", m.whoChanges(ctx)))
					}
				}
			}
			if len(values) == 0 {
				return none("this kernel has no such setting")
			}
			return otherwise(all, ok("%s", strings.Join(values, ", ")))
		},
	}
}

// ofTunable reports whether a warning of the state is about t: it begins with t's name.
func ofTunable(t plan.Tunable, warning string) bool {
	return strings.HasPrefix(t.Name, "/") && strings.HasPrefix(warning, t.Name+" is ")
}

// shown formats a planned value for people.
func shown(t plan.Tunable) string {
	if t.Form == plan.Mask {
		if s, err := cpuset.ParseMask(t.Value); err == nil {
			return s.String()
		}
	}
	return t.Value
}

// whoChanges names running programs that are known to change the same settings.
func (m *Machine) whoChanges(ctx context.Context) string {
	run, _ := m.running(ctx, "tuned.service", "power-profiles-daemon.service", "thermald.service", "irqbalance.service", "cpufrequtils.service", "auto-cpufreq.service", "tlp.service")
	who := "find out what changes it"
	if len(run) > 0 {
		who = "run sudo systemctl disable --now " + strings.Join(run, " ") + " if that is what changes it"
	}
	return who + "; " + Pages + "configuration.md under \"Where it does not work\" says how to try again"
}

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

// turbo informs people: scores made with different settings do not compare.
func (m *Machine) turbo() Answer {
	for _, f := range []struct{ path, on string }{
		{"/sys/devices/system/cpu/intel_pstate/no_turbo", "0"},
		{"/sys/devices/system/cpu/cpufreq/boost", "1"},
	} {
		if v := m.Value(f.path); v != "" {
			return found(ok("%s (%s)", map[bool]string{true: "on", false: "off"}[v == f.on], path.Base(f.path)))
		}
	}
	return none("the kernel does not report it")
}

// idleStates looks at the first CPU; all CPUs of a machine are alike.
func (m *Machine) idleStates() Answer {
	name, longest := "", -1
	for _, dir := range m.List("/sys/devices/system/cpu/cpu0/cpuidle/state*") {
		if n, err := strconv.Atoi(m.Value(dir + "/latency")); err == nil && m.Value(dir+"/disable") != "1" && n > longest {
			name, longest = m.Value(dir+"/name"), n
		}
	}
	if longest < 0 {
		return none("the kernel does not report it")
	}
	return found(ok("up to %d µs (%s)", longest, name))
}
