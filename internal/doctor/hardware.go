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
	goodNetwork = 1000  // Mbit/s
)

// sizeAnswer returns what a slot lacks, or its share of the machine.
func sizeAnswer(least string, share, good int64, name func(int64) string) Answer {
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
	counted := map[int64]bool{}
	for _, d := range disks {
		counted[d.TotalBytes] = true
	}
	for size := range counted {
		sum += size
	}
	return sum
}

func hardwareNetwork(_ context.Context, m *Machine) Answer {
	dev := m.DefaultDevice()
	if dev == "" {
		return none("there is no default route")
	}
	speed, err := strconv.Atoi(m.Value("/sys/class/net/" + dev + "/speed"))
	if err != nil || speed <= 0 {
		return none("%s does not report its speed", dev) // virtual, wireless, or without a link
	}
	if speed < goodNetwork {
		return found(warn("%s has %d Mbit/s; %d is recommended", dev, speed, goodNetwork).Advise("see sudo ethtool %s, the cable and the switch", dev))
	}
	return found(ok("%s has %d Mbit/s", dev, speed))
}

// slotsCPUs returns the planned CPUs of all slots.
func slotsCPUs(p *plan.Plan) (all cpuset.Set) {
	for _, s := range p.Slots {
		cpus, _ := cpuset.Parse(s.CPUs)
		all = all.Union(cpus)
	}
	return all
}

func hardwareMemory(_ context.Context, m *Machine) Answer {
	_, least, _ := plan.TooSmall(m.Inventory, m.Plan)
	return sizeAnswer(least, m.Inventory.Memory.TotalBytes/int64(len(m.Plan.Slots)), goodMemory, func(n int64) string { return fmt.Sprintf("%d GB of memory", n/1e9) })
}

func hardwareCores(_ context.Context, m *Machine) Answer {
	least, _, _ := plan.TooSmall(m.Inventory, m.Plan)
	return sizeAnswer(least, int64(len(m.Inventory.CPU.List)/len(m.Plan.Slots)), goodCPUs, func(n int64) string { return strconv.FormatInt(n, 10) + " CPUs" })
}

func hardwareDisk(_ context.Context, m *Machine) Answer {
	_, _, least := plan.TooSmall(m.Inventory, m.Plan)
	bytes := diskBytes(m.Inventory.Disks)
	if bytes == 0 {
		return none("the size of the disks is unknown")
	}
	return sizeAnswer(least, bytes/int64(len(m.Plan.Slots)), goodDisk, func(n int64) string { return fmt.Sprintf("%d GB of disk", n/1e9) })
}
