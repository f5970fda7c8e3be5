package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/inventory"
)

// containerdRoot is where containerd keeps its data, unless its config.toml says otherwise.
// Docker's data-root does not move it.
const containerdRoot = "/var/lib/containerd"

// imageDisk returns the disk that holds images and layers, and false if it was not read.
func (m *Machine) imageDisk() (inventory.DiskFree, bool) {
	if m.Docker.Snapshotter {
		v, err := m.Volume(containerdRoot)
		return inventory.DiskFree{Path: containerdRoot, FreeBytes: int64(v.Bavail) * v.Bsize, TotalBytes: int64(v.Blocks) * v.Bsize}, err == nil
	}
	i := slices.IndexFunc(m.Inventory.Disks, func(d inventory.DiskFree) bool { return d.Path == m.Docker.RootDir })
	if i < 0 {
		return inventory.DiskFree{}, false
	}
	return m.Inventory.Disks[i], true
}

// leftFree returns what pulls leave free on Docker's disk, in bytes.
func leftFree(total int64) int64 { return min(10<<30, total/10) }

func dockerStorageDriver(ctx context.Context, m *Machine) Answer {
	driver := m.Docker.StorageDriver
	switch {
	case driver == "overlay2":
		return found(ok("overlay2"))
	case m.Config.Job.Profile == config.ProfileStrict:
		return found(ok("%s; containers of the strict profile do not write to layers", driver))
	}
	if m.Docker.Snapshotter {
		driver += " of the containerd image store"
	}
	f := warn("the storage driver is %s, whose layers no slot's disk limits: a job can fill Docker's disk; with job.profile: strict, it cannot", cmp.Or(driver, "unknown"))
	return found(storageDriver.change(ctx, m, f))
}

func dockerRoot(_ context.Context, m *Machine) Answer {
	mounts, _ := m.Mounts("self")
	at := host.MountOf(mounts, m.Docker.RootDir)
	move := "set data-root in " + host.DaemonJSON + " to a directory on an ext4 or XFS disk, then run sudo systemctl restart docker; the images are pulled again"
	switch {
	case at.Kind == "":
		return none("the kernel does not say what %s is on", cmp.Or(m.Docker.RootDir, "it"))
	case slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "afs", "virtiofs"}, at.Kind) || strings.HasPrefix(at.Kind, "fuse"):
		return found(fail("%s is on %s (%s), a network file system: overlay2 does not work there, and every job waits for it", m.Docker.RootDir, at.Point, at.Kind).Advise("%s", move))
	case at.Kind == "overlay":
		return found(fail("%s is on an overlay, so this is a container or a live system and does not keep images", m.Docker.RootDir).Advise("%s", move))
	case at.Kind == "tmpfs" || at.Kind == "ramfs":
		return found(warn("%s is in memory (%s), so images take memory from jobs and are lost at a reboot", m.Docker.RootDir, at.Kind).Advise("%s", move))
	}
	return found(ok("%s, %s", m.Docker.RootDir, at.Kind))
}

func dockerSpace(_ context.Context, m *Machine) Answer {
	d, read := m.imageDisk()
	f := ok("%s of %s are free at %s", gib(d.FreeBytes), gib(d.TotalBytes), d.Path)
	switch free := "sudo docker system df shows what uses the space; sudo docker image prune and sudo docker builder prune free unused data"; {
	case !read:
		return none("the free space at %s is unknown", cmp.Or(m.Docker.RootDir, "it"))
	case d.FreeBytes < min(d.TotalBytes/50, 1<<30):
		f = fail("%s", f.Detail).Advise("%s", free)
	case d.FreeBytes < leftFree(d.TotalBytes):
		f = warn("%s; with less than %s, jobs and updates pull no images", f.Detail, gib(leftFree(d.TotalBytes))).Advise("%s", free)
	}
	return found(f)
}
