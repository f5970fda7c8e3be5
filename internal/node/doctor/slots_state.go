package doctor

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

func slotDisk(_ context.Context, m *Machine) Answer {
	list, read := m.Mounts("1")
	if !read {
		return found(warn("/proc/1/mountinfo cannot be read").Advise("check why, as root"))
	}
	mounts := map[string]host.Mount{} // by mount point; the last one is on top
	for _, at := range list {
		mounts[at.Point] = at
	}
	planned := 0
	all := m.eachSlot(func(s plan.Slot) Finding {
		if s.DiskBytes == 0 || s.Parked != "" { // the socket, whose unit mounts the disk, does not run for a parked slot
			return Finding{}
		}
		if why := m.isNew(s.Index); why != "" {
			return skip("the slot is new, and %s", why)
		}
		planned++
		d := diskState{busy: m.State.Slot(s.Index).Busy(), mount: mounts[plan.DiskMount(s.Index)], home: mounts[plan.WorkDir(s.Index)]}
		if info, err := os.Stat(m.Path(plan.DiskDir(s.Index) + "/image")); err == nil {
			d.bytes = info.Size()
		}
		if d.mount.Device != "" {
			_ = unix.Statfs(m.Path(plan.DiskMount(s.Index)), &d.use)
		}
		return d.judge(s)
	})
	if planned == 0 {
		return none("slots have no disks of their own (job.disk)")
	}
	return foundOr(all, ok("%d disks of %s", planned, config.Size(m.Plan.Slots[0].DiskBytes)))
}

// diskState is the state of a slot's disk.
type diskState struct {
	busy        string
	mount, home host.Mount
	bytes       int64 // of the image
	use         unix.Statfs_t
}

func (d diskState) judge(s plan.Slot) Finding {
	k := s.Index
	// Only a disk that is not mounted is made again.
	recreate := fmt.Sprintf("kbnode drain %d --wait && umount %s %s && kbnode disk --slot %d && kbnode resume %d",
		k, plan.WorkDir(k), plan.DiskMount(k), k, k)
	switch {
	case d.mount.Device == "" || d.mount.Device != d.home.Device:
		return fail("its disk is not mounted, so no container starts").Safely("kbnode disk --slot %d", k)
	case d.mount.ReadOnly || d.home.ReadOnly:
		return fail("its disk has become read-only; the kernel log says why").By("%s", recreate)
	case d.bytes != s.DiskBytes && d.busy != "":
		return warn("its disk has %s instead of the planned %s; the change waits for %s", config.Size(d.bytes), config.Size(s.DiskBytes), d.busy).Advise("it is then recreated automatically")
	case d.bytes != s.DiskBytes:
		return warn("its disk has %s instead of the planned %s", config.Size(d.bytes), config.Size(s.DiskBytes)).By("%s", recreate)
	case d.busy == "" && (d.use.Bavail < d.use.Blocks/10 || d.use.Ffree < d.use.Files/10):
		return warn("its disk is nearly full, although no job runs").By("%s", recreate)
	}
	return Finding{}
}

func slotParked(_ context.Context, m *Machine) Answer {
	var all []Finding
	for _, s := range m.Plan.Slots {
		if s.Parked != "" { // the checks of GPUs say more
			all = append(all, warn("it takes no jobs because of its GPU").Of(s.Index).Advise("sudo kbnode status says why; the slot returns by itself when its GPU does"))
		}
		for _, r := range m.State.Slot(s.Index).Parked {
			all = append(all, fail("%s", r.Reason).Of(s.Index).Advise("do what the message says; the slot then returns by itself"))
		}
	}
	return foundOr(together(all), ok("none"))
}

// ofLimits reports whether a change is of the limits of a running slice.
func (m *Machine) ofLimits(c reconcile.Change) bool {
	return c.Kind == reconcile.Set && m.State.Units[c.Subject].Running()
}

// wrongLimits returns how slices that run differ from their planned limits.
func (m *Machine) wrongLimits() []Finding { return m.drift(m.ofLimits) }

func slotLimits(_ context.Context, m *Machine) Answer {
	return foundOr(m.wrongLimits(), ok("%d slices", len(m.Plan.Slices)))
}
