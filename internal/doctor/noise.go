package doctor

import (
	"context"
	"path"
	"path/filepath"
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
		About: "no other program moves interrupts to the slots' CPUs",
		Run:   irqbalance,
	},
	{
		ID: "noise-isolated", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"plan"},
		About: "the kernel spreads threads over the slots' CPUs",
		Run: func(_ context.Context, m *Machine) Answer {
			text, _ := m.read("/sys/devices/system/cpu/isolated")
			isolated, _ := cpuset.Parse(text)
			if both := slotsCPUs(m.Plan).Intersect(isolated); both.Len() > 0 {
				return found(warn("CPUs %s are isolated (isolcpus), so all threads of a job run on one of them", both).
					advise("remove isolcpus= and similar options from the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot"))
			}
			return found(ok("no CPU is isolated"))
		},
	},
	{
		ID: "noise-timers", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"system-systemd"},
		About: "no system timer starts heavy work",
		Run:   func(ctx context.Context, m *Machine) Answer { return m.timers(ctx) },
	},
	{
		ID: "noise-upgrades", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"system-systemd"},
		About: "packages do not upgrade automatically",
		Run:   func(ctx context.Context, m *Machine) Answer { return m.upgrades(ctx) },
	},
	{
		ID: "noise-swap", Group: "noise", Bare: true, Worst: Warn,
		About: "the system has no swap on a disk",
		Run:   func(_ context.Context, m *Machine) Answer { return m.swap() },
	},
	{
		ID: "noise-turbo", Group: "noise", Bare: true, Worst: Warn,
		About: "for information: whether CPUs exceed their nominal clock",
		Run:   func(_ context.Context, m *Machine) Answer { return m.turbo() },
	},
	{
		ID: "noise-idle-states", Group: "noise", Bare: true, Worst: Warn,
		About: "for information: how long idle CPUs take to wake up",
		Run:   func(_ context.Context, m *Machine) Answer { return m.idleStates() },
	},
	{
		ID: "noise-smt", Group: "noise", Bare: true, Worst: Warn, Needs: []string{"inventory"},
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
						all = append(all, warn("%s", w).advise("%s", m.whoChanges(ctx)))
					}
				}
			}
			switch {
			case len(values) == 0:
				return none("this kernel has no such setting")
			case len(all) == 0:
				all = []Finding{ok("%s", strings.Join(values, ", "))}
			}
			return Answer{Findings: all}
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
	var run []string
	for _, name := range []string{"tuned.service", "power-profiles-daemon.service", "thermald.service", "irqbalance.service", "cpufrequtils.service", "auto-cpufreq.service", "tlp.service"} {
		if u, err := m.unit(ctx, name); err == nil && u.Running() {
			run = append(run, name)
		}
	}
	who := "find out what changes it"
	if len(run) > 0 {
		who = "run systemctl disable --now " + strings.Join(run, " ") + " if that is what changes it"
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
		text, _ := m.read(file)
		for line := range strings.Lines(text) {
			value, is := strings.CutPrefix(strings.TrimSpace(line), "IRQBALANCE_BANNED_CPULIST=")
			if banned, err := cpuset.Parse(strings.Trim(value, `"'`)); is && err == nil && slotsCPUs(m.Plan).Difference(banned).Len() == 0 {
				return found(ok("irqbalance runs, but leaves the slots' CPUs alone"))
			}
		}
	}
	return found(warn("irqbalance runs and moves interrupts to the slots' CPUs").by("systemctl disable --now irqbalance.service"))
}

// turbo informs people: scores made with different settings do not compare.
func (m *Machine) turbo() Answer {
	for _, f := range []struct{ path, on string }{
		{"/sys/devices/system/cpu/intel_pstate/no_turbo", "0"},
		{"/sys/devices/system/cpu/cpufreq/boost", "1"},
	} {
		text, err := m.read(f.path)
		if err != nil {
			continue
		}
		state := map[bool]string{true: "on", false: "off"}[strings.TrimSpace(text) == f.on]
		return found(ok("%s (%s)", state, path.Base(f.path)))
	}
	return none("the kernel does not report it")
}

// idleStates looks at the first CPU; all CPUs of a machine are alike.
func (m *Machine) idleStates() Answer {
	name, longest := "", -1
	dirs, _ := filepath.Glob(m.path("/sys/devices/system/cpu/cpu0/cpuidle/state*"))
	for _, dir := range dirs {
		at := "/sys/devices/system/cpu/cpu0/cpuidle/" + path.Base(dir)
		disabled, _ := m.read(at + "/disable")
		text, _ := m.read(at + "/latency")
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || strings.TrimSpace(disabled) == "1" || n <= longest {
			continue
		}
		label, _ := m.read(at + "/name")
		name, longest = strings.TrimSpace(label), n
	}
	if longest < 0 {
		return none("the kernel does not report it")
	}
	return found(ok("up to %d µs (%s)", longest, name))
}
