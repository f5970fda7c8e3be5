package doctor

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

func TestNoiseChecks(t *testing.T) {
	t.Parallel()
	tunables := []plan.Tunable{
		{Name: "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", Value: "performance", Form: plan.Word},
		{Name: "/sys/devices/system/cpu/cpufreq/policy4/scaling_governor", Value: "performance", Form: plan.Word},
		{Name: "/sys/kernel/mm/transparent_hugepage/enabled", Value: "madvise", Form: plan.Choice},
		{Name: "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", Value: "0", Form: plan.Word},
		{Name: "/proc/sys/kernel/numa_balancing", Value: "0", Form: plan.Word},
		{Name: "/proc/irq/default_smp_affinity", Value: "3", Form: plan.Mask},
		{Name: "/proc/irq/*/smp_affinity_list", Value: "0-1", Form: plan.List},
		{Name: "/sys/devices/virtual/workqueue/cpumask", Value: "3", Form: plan.Mask},
	}
	machine := func(warnings []string, running ...string) *fake {
		f := &fake{
			inv:   &inventory.Inventory{CPU: inventory.CPU{List: []inventory.LogicalCPU{{ID: 0, Core: 0}, {ID: 1, Core: 0}}}},
			plan:  &plan.Plan{Slots: []plan.Slot{{Index: 0, CPUs: "2-3"}, {Index: 1, CPUs: "4-7"}}, Tunables: tunables},
			state: &reconcile.State{Warnings: warnings},
		}
		for _, name := range running {
			f.units = append(f.units, slot.Unit{Name: name, Load: "loaded", Active: "active"})
		}
		return f
	}
	off := machine([]string{"/proc/sys/kernel/numa_balancing is not set: no"})
	off.cfg = &config.Config{Hygiene: config.Hygiene{Disabled: true}}
	ksm := machine([]string{"/sys/kernel/mm/ksm/run is not set: no"})
	ksm.plan.Tunables = []plan.Tunable{{Name: "/sys/kernel/mm/ksm/run", Value: "0", Form: plan.Word}}
	nothing := machine(nil)
	nothing.plan = &plan.Plan{Slots: []plan.Slot{{CPUs: "2-3"}}}
	daily := map[string]string{"/etc/apt/apt.conf.d/20auto-upgrades": "APT::Periodic::Update-Package-Lists \"1\";\nAPT::Periodic::Unattended-Upgrade \"1\";\n"}
	held := map[string]string{"/var/lib/snapd/snaps/lxd_1.snap": "", "/var/lib/snapd/state.json": `{"more":"` + strings.Repeat("x", 2<<20) + `","data":{"config":{"core":{"refresh":{"hold":"forever"}}}}}`}
	play(t, []scene{

		{"does not run", "noise-irqbalance", machine(nil), nil, "ok: irqbalance does not run", ""},
		{"runs", "noise-irqbalance", machine(nil, "irqbalance.service"), nil, "warn: irqbalance runs and moves interrupts to the slots' CPUs", "systemctl disable --now irqbalance.service"},
		{"is told", "noise-irqbalance", machine(nil, "irqbalance.service"), map[string]string{"/etc/default/irqbalance": "#X=1\nIRQBALANCE_BANNED_CPULIST=\"2-7\"\n"}, "ok: irqbalance runs, but leaves the slots' CPUs alone", ""},
		{"is told too little", "noise-irqbalance", machine(nil, "irqbalance.service"), map[string]string{"/etc/default/irqbalance": "IRQBALANCE_BANNED_CPULIST=2-6\n"},
			"warn: irqbalance runs and moves interrupts to the slots' CPUs", "systemctl disable --now irqbalance.service"},
		{"may run", "noise-irqbalance", nothing, nil, "skip: interrupts are left where they are", ""},

		{"none", "noise-isolated", machine(nil), map[string]string{"/sys/devices/system/cpu/isolated": "\n"}, "ok: no CPU is isolated", ""},
		{"some of a slot", "noise-isolated", machine(nil), map[string]string{"/sys/devices/system/cpu/isolated": "3-4,9\n"}, "warn: CPUs 3-4 are isolated (isolcpus), so all threads of a job run on one of them", ""},

		{"none", "noise-timers", machine(nil), nil, "ok: none", ""},
		{"two", "noise-timers", machine(nil, "fstrim.timer", "man-db.timer", "logrotate.timer"), nil, "warn: man-db.timer, fstrim.timer may start while a job is timed", "systemctl disable --now man-db.timer fstrim.timer"},

		{"none", "noise-upgrades", machine(nil), daily, "ok: nothing upgrades packages automatically", ""},
		{"unattended", "noise-upgrades", machine(nil, "apt-daily-upgrade.timer"), daily,
			"warn: apt-daily-upgrade.timer upgrades packages automatically: a new driver stops all jobs until a reboot, and the work disturbs them", "systemctl disable --now apt-daily-upgrade.timer"},
		{"the timer alone", "noise-upgrades", machine(nil, "apt-daily-upgrade.timer"), nil, "ok: nothing upgrades packages automatically", ""},
		{"switched off later", "noise-upgrades", machine(nil, "apt-daily-upgrade.timer"), map[string]string{
			"/etc/apt/apt.conf.d/20auto-upgrades": daily["/etc/apt/apt.conf.d/20auto-upgrades"], "/etc/apt/apt.conf.d/99ours": "APT::Periodic::Unattended-Upgrade \"0\";",
		}, "ok: nothing upgrades packages automatically", ""},
		{"all of it switched off", "noise-upgrades", machine(nil, "apt-daily-upgrade.timer"), map[string]string{
			"/etc/apt/apt.conf.d/20auto-upgrades": daily["/etc/apt/apt.conf.d/20auto-upgrades"], "/etc/apt/apt.conf.d/99ours": "APT::Periodic::Enable \"0\";",
		}, "ok: nothing upgrades packages automatically", ""},
		{"snaps", "noise-upgrades", machine(nil, "snapd.service"), map[string]string{"/var/lib/snapd/snaps/lxd_1.snap": ""}, "warn: snapd refreshes its snaps automatically", "snap set system refresh.hold=forever"},
		{"snaps that are held", "noise-upgrades", machine(nil, "snapd.service"), held, "ok: nothing upgrades packages automatically", ""},
		{"no snaps", "noise-upgrades", machine(nil, "snapd.service"), nil, "ok: nothing upgrades packages automatically", ""},

		{"none", "noise-swap", machine(nil), map[string]string{"/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n"}, "ok: no swap", ""},
		{"in memory", "noise-swap", machine(nil), map[string]string{"/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 8388604 1024 100\n"}, "ok: no swap", ""},
		{"on a disk", "noise-swap", machine(nil), map[string]string{"/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/swap.img file 8388604 4194304 -2\n"},
			"warn: the system swaps to /swap.img, which sometimes slows the beginning and end of a job; jobs themselves have no swap", "swapoff -a"},
		{"not in the kernel", "noise-swap", machine(nil), nil, "skip: this kernel has no swap", ""},
	})
}
