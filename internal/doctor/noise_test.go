package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/slot"
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
		{"good", "noise-governor", machine(nil), nil, "ok: performance", ""},
		{"somebody else's", "noise-governor", machine([]string{"no cpuset partition: x", "/sys/devices/system/cpu/cpufreq/policy4/scaling_governor is left as another program set it"}, "tuned.service"), nil,
			"warn: /sys/devices/system/cpu/cpufreq/policy4/scaling_governor is left as another program set it", ""},
		{"switched off", "noise-numa-balancing", off, nil, "skip: hygiene.disabled leaves it alone", ""},
		{"refused", "noise-numa-balancing", machine([]string{"/proc/sys/kernel/numa_balancing is not set: permission denied"}), nil, "warn: /proc/sys/kernel/numa_balancing is not set: permission denied", ""},
		{"good", "noise-hugepages", machine(nil), nil, "ok: madvise, 0", ""},
		{"refused", "noise-hugepages", machine([]string{"/sys/kernel/mm/transparent_hugepage/khugepaged/defrag is not set: no"}), nil, "warn: /sys/kernel/mm/transparent_hugepage/khugepaged/defrag is not set: no", ""},
		{"refused", "noise-ksm", ksm, nil, "warn: /sys/kernel/mm/ksm/run is not set: no", ""},
		{"not in this kernel", "noise-ksm", machine(nil), nil, "skip: this kernel has no such setting", ""},
		{"good", "noise-interrupts", machine(nil), nil, "ok: 0-1", ""},
		{"refused", "noise-interrupts", machine([]string{"/proc/irq/*/smp_affinity_list is not set: no space left on device (3 of them)"}), nil,
			"warn: /proc/irq/*/smp_affinity_list is not set: no space left on device (3 of them)", ""},
		{"good", "noise-workqueues", machine([]string{"/proc/irq/*/smp_affinity_list is not set: x"}), nil, "ok: 0-1", ""},
		{"refused", "noise-workqueues", machine([]string{"/sys/devices/virtual/workqueue/cpumask is not set: no"}), nil, "warn: /sys/devices/virtual/workqueue/cpumask is not set: no", ""},

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

func TestHardwareChecks(t *testing.T) {
	t.Parallel()
	// A machine of eight slots with these resources.
	machine := func(memory, disk int64, cores int, slot plan.Slot) *fake {
		f := &fake{
			inv: &inventory.Inventory{
				Memory: inventory.Memory{TotalBytes: memory},
				Disks:  []inventory.DiskFree{{Path: "/var/lib/buildkite-agent", TotalBytes: disk}, {Path: "/var/lib/docker", TotalBytes: disk}},
			},
			plan: &plan.Plan{Slots: slices.Repeat([]plan.Slot{slot}, 8)},
		}
		for id := range 2 * cores {
			f.inv.CPU.List = append(f.inv.CPU.List, inventory.LogicalCPU{ID: id, Core: id % cores})
		}
		return f
	}
	const gb, gib = 1e9, 1 << 30
	good := plan.Slot{MemoryBytes: 30 * gib, DiskBytes: 50 * gib, CPUs: "0-7"}
	node := machine(256*gib, 800*gb, 64, good)
	with := func(speed string, routes ...string) map[string]string {
		files := map[string]string{"/sys/class/net/eno1/speed": speed, "/sys/class/net/wlan0/speed": "54\n"}
		text := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
		for _, r := range routes {
			text += r + "\n"
		}
		files["/proc/net/route"] = text
		return files
	}
	route := func(dev string, metric int) string {
		return fmt.Sprintf("%s\t00000000\t0101A8C0\t0003\t0\t0\t%d\t00000000\t0\t0\t0", dev, metric)
	}
	play(t, []scene{
		{"as the guide has it", "hardware-memory", node, nil, "ok: 34 GB of memory per slot", ""},
		{"less than recommended", "hardware-memory", machine(200*gib, 0, 64, good), nil, "warn: 26 GB of memory per slot; 32 GB of memory recommended", ""},
		{"less than the minimum", "hardware-memory", machine(256*gib, 0, 64, plan.Slot{MemoryBytes: 15 * gib}), nil, "warn: each slot has 15GiB of memory; 16GiB is the minimum", ""},

		{"as the guide has it", "hardware-cores", node, nil, "ok: 16 CPUs per slot", ""},
		{"less than recommended", "hardware-cores", machine(0, 0, 60, good), nil, "warn: 15 CPUs per slot; 16 CPUs recommended", ""},
		{"less than the minimum", "hardware-cores", machine(0, 0, 64, plan.Slot{CPUs: "0-3,64-67"}), nil, "warn: each slot has 4 cores; 8 is the minimum for fair timings", ""},

		{"as the guide has it", "hardware-disk", node, nil, "ok: 100 GB of disk per slot", ""},
		{"less than recommended", "hardware-disk", machine(0, 799*gb, 64, good), nil, "warn: 99 GB of disk per slot; 100 GB of disk recommended", ""},
		{"less than the minimum", "hardware-disk", machine(0, 800*gb, 64, plan.Slot{DiskBytes: 40 * gib}), nil, "warn: each slot has 40GiB of disk; 50GiB is the minimum", ""},
		{"of unknown size", "hardware-disk", machine(0, 0, 64, good), nil, "skip: the size of the disks is unknown", ""},

		{"10 Gbit/s", "hardware-network", node, with("10000\n", route("eno1", 100)), "ok: eno1 has 10000 Mbit/s", ""},
		{"the better route counts", "hardware-network", node, with("10000\n", route("wlan0", 600), route("eno1", 100)), "ok: eno1 has 10000 Mbit/s", ""},
		{"half of the internet is no default", "hardware-network", node, with("10000\n", "wlan0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0", route("eno1", 100)), "ok: eno1 has 10000 Mbit/s", ""},
		{"too slow", "hardware-network", node, with("10\n", route("eno1", 100)), "warn: eno1 has 10 Mbit/s; 1000 is recommended", ""},
		{"virtual", "hardware-network", node, with("-1\n", route("eno1", 100)), "skip: eno1 does not report its speed", ""},
		{"no route", "hardware-network", node, with("10\n", "eno1\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0"), "skip: there is no default route", ""},
		{"IPv6 only", "hardware-network", node, map[string]string{
			"/sys/class/net/eno1/speed": "1000",
			"/proc/net/ipv6_route":      "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 1 0 00000003 eno1\n",
		}, "ok: eno1 has 1000 Mbit/s", ""},
	})
}
