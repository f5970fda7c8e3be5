package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/disk"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// maxVolumes bounds the volumes that an image may declare.
const maxVolumes = 64

// slotDisk is the slot's file system of fixed size. What a job writes goes there, into its own directory
// below the work root, because all slots share Docker's own disk.
type slotDisk struct {
	dir  string                            // mount point; "" for a slot without a disk
	bind func(source, target string) error // mounts one directory on another, where the engine sees it
	// mounted returns an error, a sentence, if the disk is not mounted.
	mounted func() error
}

// newDisk returns the disk that the policy gives a slot.
func newDisk(p plan.JobPolicy) *slotDisk {
	d := &slotDisk{}
	if p.DiskBytes > 0 {
		d.dir = plan.DiskMount(p.Slot)
		d.bind = func(source, target string) error {
			return disk.OnHost(func() error { return unix.Mount(source, target, "", unix.MS_BIND, "") })
		}
		d.mounted = func() error {
			same, err1 := sameDevice(d.dir, filepath.Dir(d.dir))
			home, err2 := sameDevice(d.dir, plan.WorkDir(p.Slot))
			if err := errors.Join(err1, err2); err != nil || same || !home {
				return errors.Join(fmt.Errorf("the disk of slot %s is not mounted, so jobs cannot run; run kbnode disk --slot %d on the node", p.Name, p.Slot), err)
			}
			return nil
		}
	}
	return d
}

func sameDevice(a, b string) (bool, error) {
	var x, y unix.Stat_t
	if err := errors.Join(unix.Stat(a, &x), unix.Stat(b, &y)); err != nil {
		return false, err
	}
	return x.Dev == y.Dev, nil
}

// prepare adds to a container, in a job's directory, the mounts known before it exists: the image's
// volumes, and the files that Docker writes below /etc and would keep on its own disk.
func (d *slotDisk) prepare(wanted *container.CreateRequest, volumes []string, top string) (err error) {
	if d.dir == "" {
		return nil
	}
	h := wanted.HostConfig
	taken := map[string]bool{}
	for _, m := range h.Mounts {
		taken[m.Target] = true
	}
	for target := range h.Tmpfs {
		taken[target] = true
	}
	give := func(target, name string, make func(string) error) error {
		if taken[target] {
			return nil
		}
		source := filepath.Join(top, name)
		if err := make(source); err != nil {
			return fmt.Errorf("prepare the slot's disk: %w", err)
		}
		h.Mounts = append(h.Mounts, bind(source, target, false))
		return nil
	}
	for i, target := range volumes {
		if i == maxVolumes {
			return forbid("image %.120q declares more than %d volumes; use one that declares fewer", wanted.Image, maxVolumes)
		}
		if target, err = job.MountTarget(target); err != nil {
			return forbid("image %.120q declares a volume: %s", wanted.Image, err)
		}
		if err := give(target, "volume"+strconv.Itoa(i), openDir); err != nil {
			return err
		}
	}
	if !h.ReadonlyRootfs { // otherwise they are read-only too
		for _, name := range etcFiles {
			if err := give("/etc/"+name, name, func(path string) error { return os.WriteFile(path, nil, 0o644) }); err != nil { //nolint:gosec // for all in the container to read
				return err
			}
		}
	}
	return nil
}

// openDir makes a directory that any user in the container can write to and no one outside can
// reach.
func openDir(path string) error {
	return errors.Join(os.Mkdir(path, 0o777), os.Chmod(path, 0o777)) //nolint:gosec // its parent is root's alone
}
