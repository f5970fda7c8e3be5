package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/tree"
)

// trashPoll is the time between two checks of whether what was discarded is deleted.
const trashPoll = 250 * time.Millisecond

// maxVolumes bounds the volumes that an image may declare.
const maxVolumes = 64

// slotDisk is the slot's file system of fixed size. What a job writes goes there, into its own directory
// below the work root, because all slots share Docker's own disk.
type slotDisk struct {
	dir  string                            // mount point; "" for a slot without a disk
	bind func(source, target string) error // mounts one directory on another, where the engine sees it
	// mounted returns an error, a sentence, if the disk is not mounted.
	mounted func() error
	statfs  func(path string, st *unix.Statfs_t) error
	log     *slog.Logger

	deleting atomic.Int32 // directories that discard still deletes
}

// newDisk returns the disk that the policy gives a slot.
func newDisk(p plan.JobPolicy, log *slog.Logger) *slotDisk {
	d := &slotDisk{statfs: unix.Statfs, log: log}
	if p.DiskBytes > 0 {
		d.dir = plan.DiskMount(p.Slot)
		d.bind = func(source, target string) error {
			return disk.OnHost(func() error { return unix.Mount(source, target, "", unix.MS_BIND, "") })
		}
		d.mounted = func() error {
			same, err1 := sameDevice(d.dir, filepath.Dir(d.dir))
			home, err2 := sameDevice(d.dir, plan.WorkDir(p.Slot))
			if err := errors.Join(err1, err2); err != nil || same || !home {
				return errors.Join(fmt.Errorf("the disk of slot %s is not mounted, so jobs cannot run; run systemctl restart %s on the node", p.Name, plan.GuardUnit(p.Slot)), err)
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

// prepare gives a container directories in a job's directory in place of the image's volumes.
func (d *slotDisk) prepare(wanted *container.CreateRequest, volumes []string, top string) (err error) {
	if d.dir == "" {
		return nil
	}
	h := wanted.HostConfig
	for i, target := range volumes {
		if i == maxVolumes {
			return forbid("image %.120q declares more than %d volumes; use one that declares fewer", wanted.Image, maxVolumes)
		}
		if target, err = job.MountTarget(target); err != nil {
			return forbid("image %.120q declares a volume: %s", wanted.Image, err)
		}
		_, tmpfs := h.Tmpfs[target]
		if tmpfs || slices.ContainsFunc(h.Mounts, func(m mount.Mount) bool { return m.Target == target }) {
			continue
		}
		source := filepath.Join(top, "volume"+strconv.Itoa(i))
		if err := openDir(source); err != nil {
			return fmt.Errorf("prepare the slot's disk: %w", err)
		}
		h.Mounts = append(h.Mounts, bind(source, target, false))
	}
	return nil
}

// openDir makes a directory that any user in the container can write to and no one outside can
// reach.
func openDir(path string) error {
	return errors.Join(os.Mkdir(path, 0o777), os.Chmod(path, 0o777)) //nolint:gosec // its parent is root's alone
}

// tidy removes what jobs left, and makes the disk ready for the next job, which needs room: of a disk that
// is more than three quarters full, it waits until everything that was discarded is deleted.
func (d *slotDisk) tidy(ctx context.Context) error {
	// Nothing can be moved out of the mount of the work root. An earlier kbnode had containers beside it.
	for _, dir := range []string{"home/builds", "containers"} {
		entries, err := os.ReadDir(filepath.Join(d.dir, dir))
		if ignoreAbsent(err) != nil {
			return err
		}
		for _, e := range entries {
			d.discard(filepath.Join(d.dir, dir, e.Name()))
		}
	}
	full, err := d.full()
	for err == nil && full && d.deleting.Load() > 0 {
		err = limit.Sleep(ctx, trashPoll)
	}
	if err != nil {
		return fmt.Errorf("empty the slot's disk: %w", err)
	}
	return nil
}

// full reports whether more than three quarters of the disk's blocks or inodes are used.
func (d *slotDisk) full() (bool, error) {
	var st unix.Statfs_t
	if err := d.statfs(d.dir, &st); err != nil {
		return false, err
	}
	return st.Bavail*4 <= st.Blocks || st.Ffree*4 <= st.Files, nil
}

// discard removes a directory of the disk: it moves it away at once, and deletes it in the
// background. The next boot removes what a stop interrupts. What cannot be moved, as on a disk
// without a free block, is deleted where it is.
func (d *slotDisk) discard(path string) {
	away := filepath.Join(d.dir, "trash", rand.Text())
	err := os.Mkdir(filepath.Dir(away), 0o700)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.Rename(path, away)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		away = path
	}
	d.deleting.Add(1)
	go func() {
		defer d.deleting.Add(-1)
		root, err := os.OpenRoot(filepath.Dir(away))
		if err == nil {
			// os.RemoveAll would hold open every directory on the way down.
			err = errors.Join(tree.Remove(root, filepath.Base(away)), root.Close())
		}
		if err != nil {
			d.log.Warn("directory left behind", "path", path, "err", err)
		}
	}()
}
