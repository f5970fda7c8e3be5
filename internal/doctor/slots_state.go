package doctor

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

// partition checks what keeps everyone else off the slots' CPUs.
func (m *Machine) partition() Answer {
	i := slices.IndexFunc(m.Plan.Slices, func(s plan.Slice) bool { return s.Partition })
	if i < 0 {
		return none("no partition is planned")
	}
	const again = "rm -f /run/kbnode/partition-refused && kbnode reconcile"
	want := m.Plan.Slices[i]
	now, has := m.State.Slices[want.Unit].Files["cpuset.cpus.partition"]
	switch {
	case !m.State.Units[want.Unit].Running():
		return none("%s does not run", want.Unit) // as-planned reports it
	case now == "root":
		return found(ok("CPUs %s", want.CPUs))
	case !has:
		return found(warn("this kernel has no cpuset partitions, so other programs can run on the slots' CPUs").advise("boot kernel 6.1 or newer"))
	}
	cpus, _ := cpuset.Parse(want.CPUs)
	groups, _ := filepath.Glob(m.path("/sys/fs/cgroup/*/cpuset.cpus"))
	for _, file := range groups {
		name := path.Base(path.Dir(file))
		text, err := m.read("/sys/fs/cgroup/" + name + "/cpuset.cpus")
		set, errParse := cpuset.Parse(text)
		if err == nil && errParse == nil && name != want.Unit && !set.Disjoint(cpus) {
			return found(warn("%s is set to CPUs %s, so the kernel cannot reserve the slots' CPUs for them (%q)", name, set, now).
				advise("remove AllowedCPUs from it (systemctl cat %s shows where it is set), then run %s", name, again))
		}
	}
	why := fmt.Sprintf("cpuset.cpus.partition of %s is %q", want.Unit, now)
	if refused, err := m.read("/run/kbnode/partition-refused"); err == nil {
		if _, words, ok := strings.Cut(strings.TrimSpace(refused), "\n"); ok {
			why = "the kernel refuses it: " + text.Line(words, 200)
		}
	}
	return found(warn("other programs can run on the slots' CPUs: %s", why).by(again))
}

func (m *Machine) disks() Answer {
	mounts := map[string]mounted{} // by mount point; the last one is on top
	if !m.eachLine("/proc/1/mountinfo", func(line string) { addMount(mounts, line) }) {
		return found(warn("/proc/1/mountinfo cannot be read").advise("check why, as root"))
	}
	var all []Finding
	planned := 0
	for _, s := range m.Plan.Slots {
		if s.DiskBytes == 0 || s.Parked != "" { // the guard, which mounts the disk, does not run for a parked slot
			continue
		}
		planned++
		d := slotDisk{slot: s, busy: m.State.Slot(s.Index).Busy(), mount: mounts[plan.DiskMount(s.Index)], home: mounts[plan.WorkDir(s.Index)]}
		if info, err := os.Stat(m.path(plan.DiskDir(s.Index) + "/image")); err == nil {
			d.bytes = info.Size()
		}
		if d.mount.device != "" {
			_ = unix.Statfs(m.path(plan.DiskMount(s.Index)), &d.use)
		}
		if f := d.judge(); f.Status > OK {
			all = append(all, f.of(s.Index))
		}
	}
	switch {
	case planned == 0:
		return none("slots have no disks of their own (job.disk)")
	case len(all) == 0:
		all = []Finding{ok("%d disks of %s", planned, config.Size(m.Plan.Slots[0].DiskBytes))}
	}
	return Answer{Findings: together(all)}
}

// mounted is a mounted file system.
type mounted struct {
	device   string // major:minor
	readOnly bool
}

// addMount parses a line of mountinfo; see proc_pid_mountinfo(5).
func addMount(all map[string]mounted, line string) {
	before, after, _ := strings.Cut(line, " - ")
	f, super := strings.Fields(before), strings.Fields(after)
	if len(f) < 6 || len(super) < 3 {
		return
	}
	ro := slices.Contains(strings.Split(f[5], ","), "ro") || slices.Contains(strings.Split(super[2], ","), "ro")
	all[f[4]] = mounted{f[2], ro}
}

// slotDisk is the state of a slot's disk.
type slotDisk struct {
	slot        plan.Slot
	busy        string
	mount, home mounted
	bytes       int64 // of the image
	use         unix.Statfs_t
}

func (d slotDisk) judge() Finding {
	k := d.slot.Index
	// Only a disk that is not mounted is made again.
	anew := fmt.Sprintf("kbnode drain %d --wait && umount %s %s && systemctl restart %s && kbnode resume %d",
		k, plan.WorkDir(k), plan.DiskMount(k), plan.GuardUnit(k), k)
	switch {
	case d.mount.device == "" || d.mount.device != d.home.device:
		return fail("its disk is not mounted, so no container starts").safely("systemctl restart %s", plan.GuardUnit(k))
	case d.mount.readOnly || d.home.readOnly:
		return fail("its disk has become read-only; the kernel log says why").by("%s", anew)
	case d.bytes != d.slot.DiskBytes && d.busy != "":
		return warn("its disk has %s instead of the planned %s; the change waits for %s", config.Size(d.bytes), config.Size(d.slot.DiskBytes), d.busy).advise("it is then recreated automatically")
	case d.bytes != d.slot.DiskBytes:
		return warn("its disk has %s instead of the planned %s", config.Size(d.bytes), config.Size(d.slot.DiskBytes)).by("%s", anew)
	case d.busy == "" && (d.use.Bavail < d.use.Blocks/10 || d.use.Ffree < d.use.Files/10):
		return warn("its disk is nearly full, although no job runs").by("%s", anew)
	}
	return ok("mounted")
}

func (m *Machine) parked() []Finding {
	var all []Finding
	for _, s := range m.Plan.Slots {
		for _, r := range m.State.Slot(s.Index).Parked {
			all = append(all, fail("%s", r.Reason).of(s.Index).advise("do what the message says; the slot then returns by itself"))
		}
	}
	if len(all) == 0 {
		all = []Finding{ok("none")}
	}
	return together(all)
}
