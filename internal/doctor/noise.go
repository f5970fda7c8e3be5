package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// kernelSetting checks settings that kbnode makes and that do not hold, because the kernel rejects them or
// another program keeps changing them. The check as-planned reports what kbnode will correct.
func kernelSetting(part string) func(context.Context, *Machine) Answer {
	return func(ctx context.Context, m *Machine) Answer {
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

func noiseIsolated(_ context.Context, m *Machine) Answer {
	isolated, _ := cpuset.Parse(m.Value("/sys/devices/system/cpu/isolated"))
	if both := slotsCPUs(m.Plan).Intersect(isolated); both.Len() > 0 {
		return found(warn("CPUs %s are isolated (isolcpus), so all threads of a job run on one of them", both).
			Advise("remove isolcpus= and similar options from the kernel command line (/etc/default/grub, then sudo update-grub or grub2-mkconfig) and reboot"))
	}
	return found(ok("no CPU is isolated"))
}
