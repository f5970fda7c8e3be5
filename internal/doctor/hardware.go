package doctor

import (
	"context"
	"fmt"
	"strconv"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Recommendations of the vendors' guide per GPU, for the whole machine: kbnode itself keeps
// a part of it for the system. The guide counts CPUs as nproc does, and bytes as disk
// vendors do.
const (
	goodMemory  = 32e9  // bytes
	goodCPUs    = 16    // hardware threads
	goodDisk    = 100e9 // bytes
	minNetwork  = 100   // Mbit/s
	goodNetwork = 1000  // Mbit/s
)

// hardwareChecks compare the machine with the vendors' guide.
var hardwareChecks = []Check{
	{
		ID: "hardware-memory", Group: "hardware", Bare: true, Worst: Warn, Needs: []string{"plan"},
		Doc:   "Minimum 16 GB per slot, recommended 32 GB per GPU. Jobs with too little are killed.",
		About: "there is enough memory for each slot",
		Run: func(_ context.Context, m *Machine) Answer {
			_, least, _ := plan.TooSmall(m.Inventory, m.Plan)
			return enough(least, m.Inventory.Memory.TotalBytes/int64(len(m.Plan.Slots)), goodMemory, func(n int64) string { return fmt.Sprintf("%d GB of memory", n/1e9) })
		},
	},
	{
		ID: "hardware-cores", Group: "hardware", Bare: true, Worst: Warn, Needs: []string{"plan"},
		Doc:   "Minimum 8 cores per slot, recommended 16 CPUs per GPU as `nproc` counts, or compiling is slow. If the system's reserve is why, set `reserve.cpus: 0`.",
		About: "there are enough CPU cores for each slot",
		Run: func(_ context.Context, m *Machine) Answer {
			least, _, _ := plan.TooSmall(m.Inventory, m.Plan)
			return enough(least, int64(len(m.Inventory.CPU.List)/len(m.Plan.Slots)), goodCPUs, func(n int64) string { return strconv.FormatInt(n, 10) + " CPUs" })
		},
	},
	{
		ID: "hardware-disk", Group: "hardware", Bare: true, Worst: Warn, Needs: []string{"plan"},
		Doc:   "Minimum 50 GB per slot, recommended 100 GB per GPU, for `/var/lib/buildkite-agent` and Docker together. Slots' disks take half, at most 50 GiB each; see `job.disk`.",
		About: "there is enough disk for each slot",
		Run: func(_ context.Context, m *Machine) Answer {
			_, _, least := plan.TooSmall(m.Inventory, m.Plan)
			bytes := diskBytes(m.Inventory.Disks)
			if bytes == 0 {
				return none("the size of the disks is unknown")
			}
			return enough(least, bytes/int64(len(m.Plan.Slots)), goodDisk, func(n int64) string { return fmt.Sprintf("%d GB of disk", n/1e9) })
		},
	},
	{
		ID: "hardware-network", Group: "hardware", Bare: true, Worst: Warn,
		Doc:   "Minimum 100 Mbit/s, recommended 1 Gbit/s, or images take hours. See `ethtool DEVICE`; suspect the cable.",
		About: "the network is fast enough for images and artifacts",
		Run:   func(_ context.Context, m *Machine) Answer { return m.network() },
	},
}

// enough returns what a slot lacks, or its share of the machine.
func enough(least string, share, good int64, name func(int64) string) Answer {
	const advice = "use fewer GPUs (gpus in the configuration, or sudo kbnode install --gpus), or upgrade the machine"
	switch {
	case least != "":
		return found(warn("%s", least).Advise(advice))
	case share < good:
		return found(warn("%s per slot; %s recommended", name(share), name(good)).Advise(advice))
	}
	return found(ok("%s per slot", name(share)))
}

// diskBytes sums the sizes of the file systems that slots and Docker write to. It counts
// equal sizes once, because the inventory names a shared file system for each use.
func diskBytes(disks []inventory.DiskFree) (sum int64) {
	seen := map[int64]bool{}
	for _, d := range disks {
		if !seen[d.TotalBytes] {
			sum += d.TotalBytes
		}
		seen[d.TotalBytes] = true
	}
	return sum
}

func (m *Machine) network() Answer {
	dev := m.DefaultDevice()
	if dev == "" {
		return none("there is no default route")
	}
	speed, err := strconv.Atoi(m.Value("/sys/class/net/" + dev + "/speed"))
	if err != nil || speed <= 0 {
		return none("%s does not report its speed", dev) // virtual, wireless, or without a link
	}
	saw := fmt.Sprintf("%s has %d Mbit/s", dev, speed)
	switch {
	case speed < minNetwork:
		return found(warn("%s; the minimum is %d", saw, minNetwork).Advise("see sudo ethtool %s, the cable and the switch", dev))
	case speed < goodNetwork:
		return found(warn("%s; %d is recommended", saw, goodNetwork).Advise("see sudo ethtool %s, the cable and the switch", dev))
	}
	return found(ok("%s", saw))
}

// slotsCPUs returns the planned CPUs of all slots.
func slotsCPUs(p *plan.Plan) (all cpuset.Set) {
	for _, s := range p.Slots {
		cpus, _ := cpuset.Parse(s.CPUs)
		all = all.Union(cpus)
	}
	return all
}
