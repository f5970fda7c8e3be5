package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

const (
	// minSlotDisk is the minimum for a slot, in bytes, from the vendors' guide,
	// and the most that it gets by default.
	minSlotDisk = 50 << 30
	// diskStep is the multiple that sizes of disks are rounded down to, in bytes.
	diskStep = 64 << 20
	// poolShare is the fraction (1/16) by which a share may differ from the disks that slots have: a file system
	// of ZFS is as large as what it and its pool have free, so others that use the pool change its size.
	poolShare = 16
)

// diskShare returns the size of each slot's disk: an even share of half the file system, at
// most minSlotDisk. It depends on the size and not on the free space, so that it stays the
// same once the disks exist. It is 0 if the size is unknown.
func diskShare(disks []inventory.DiskFree, slots int) int64 {
	for _, d := range disks {
		if d.Path == agentsDir {
			return min(minSlotDisk, max(0, d.TotalBytes)/2/int64(slots)) / diskStep * diskStep
		}
	}
	return 0
}

// chooseDisks gives each slot its disk: as configured, else its share. While that is nearly the share that it had, the
// file system counts as it was.
func (b *builder) chooseDisks() error {
	size := int64(b.cfg.Job.Disk)
	known := slices.ContainsFunc(b.inv.Disks, func(d inventory.DiskFree) bool { return d.Path == agentsDir })
	if why := b.inv.WhyUnread(inventory.DiskSubject(agentsDir)); size == 0 && !known && why != "" {
		return fmt.Errorf("the size of %s could not be read (%s), so slot %s cannot have its own disk; set its size with job.disk, or try again", agentsDir, why, b.slots[0].Name)
	}
	share := diskShare(b.inv.Disks, len(b.slots))
	b.disks = b.inv.Disks
	if b.last != nil {
		was := diskShare(b.last.Disks, len(b.slots))
		if more := share - was; max(more, -more) <= was/poolShare || size > 0 && was > 0 { // which no slot has then
			share, b.disks = was, b.last.Disks
		}
	}
	for i := range b.slots {
		b.slots[i].DiskBytes = cmp.Or(size, share)
	}
	return nil
}

// unboundDisks returns warnings about jobs that can fill more than their own disk.
func unboundDisks(inv *inventory.Inventory, cfg config.Config, slots []assignment) []string {
	size, driver := slots[0].DiskBytes, inv.Software.Docker.StorageDriver
	var warnings []string
	if len(inv.Disks) > 0 && size == 0 {
		warnings = append(warnings, fmt.Sprintf("the size of %s is unknown, so slots have no disks of their own and a job can fill the node's; set job.disk", agentsDir))
	}
	if driver != "" && driver != "overlay2" && cfg.Job.Profile != config.ProfileStrict {
		warnings = append(warnings, fmt.Sprintf("Docker's storage driver %s does not limit what containers write: a job can fill Docker's disk; put {\"features\": {\"containerd-snapshotter\": false}, \"storage-driver\": \"overlay2\"} into /etc/docker/daemon.json, or set job.profile: strict", driver))
	}
	return warnings
}
