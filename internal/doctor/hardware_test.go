package doctor

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

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
