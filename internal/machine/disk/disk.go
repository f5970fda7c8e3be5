// Package disk makes the file system of a slot: a file of fixed size that is mounted
// through a loop device, so that neither the bytes nor the files of a slot's jobs take
// anything from its neighbors or the system. Project quotas would not do: the owner of a
// file can take it out of its project. It also says how much the node's own disks may still take.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// The inodes of a disk: one for each inodeBytes, at most maxInodes, which a cleanup can
// go through in seconds.
const (
	inodeBytes = 16 << 10
	maxInodes  = 1 << 20
)

// Disk is where a slot's disk is and who uses it.
type Disk struct {
	Dir   string // holds the image and the mount point; owned by root
	Home  string // the slot user's directory, which is bound to home/ of the disk
	Bytes int64
	GID   int // of the slot's user
	Log   *slog.Logger
}

// retryTime is how long after a failure a disk is made again; systemd gives up a start
// after 90 s.
const retryTime = 30 * time.Second

func (d Disk) failed() string { return filepath.Join(d.Dir, "failed") }
func (d Disk) image() string  { return filepath.Join(d.Dir, "image") }
func (d Disk) mount() string  { return filepath.Join(d.Dir, "mnt") }
func (d Disk) home() string   { return filepath.Join(d.mount(), "home") }

// Ensure makes and mounts the disk. A mounted disk of the right size stays as it is. Any
// other is made again, for example after a boot: nothing on it is worth keeping, and
// nothing of a broken one has to be repaired. Ensure must run as root, in OnHost.
func (d Disk) Ensure(ctx context.Context) error {
	mounted, err := d.mounted()
	if err != nil {
		return err
	}
	info, err := os.Stat(d.image())
	if mounted && err == nil && info.Size() == d.Bytes {
		return nil
	}
	if err := d.Close(); errors.Is(err, unix.EBUSY) {
		if mounted, _ := d.mounted(); !mounted {
			return err
		}
		// It is in use: an agent still runs, or someone works below the mount point.
		d.Log.Warn("disk keeps its size until nothing uses it", "path", d.mount())
		return nil
	} else if err != nil {
		return err
	}
	if err = d.make(ctx); err == nil {
		err = d.attach()
	}
	d.note(err)
	if err != nil {
		return fmt.Errorf("make disk %s: %w", d.image(), err)
	}
	d.Log.Info("disk created", "path", d.mount(), "bytes", d.Bytes)
	return nil
}

// mounted reports whether both mounts exist.
func (d Disk) mounted() (bool, error) {
	var dir, mnt, home unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{d.Dir: &dir, d.mount(): &mnt, d.Home: &home} {
		if err := unix.Lstat(path, st); errors.Is(err, unix.ENOENT) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("check %s: %w", path, err)
		}
	}
	return dir.Dev != mnt.Dev && mnt.Dev == home.Dev, nil
}

// Close unmounts the disk. If it is still in use, it stays mounted, and the error is unix.EBUSY.
func (d Disk) Close() error {
	if err := unmount(d.Home); err != nil {
		return err
	}
	err := unmount(d.mount())
	if errors.Is(err, unix.EBUSY) {
		if lost := d.bind(); lost != nil {
			return lost
		}
	}
	return err
}

func unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil // nothing is mounted there (any more)
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// make writes an empty file system of the planned size. If that fails, no part of it is
// left.
func (d Disk) make(ctx context.Context) error {
	// Remove the earlier one first: the space that is set aside must be free.
	if err := os.Remove(d.image()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.pause(ctx); err != nil {
		return err
	}
	// Trying would fill the host's file system, if only for a moment.
	var st unix.Statfs_t
	if err := unix.Statfs(d.Dir, &st); err != nil {
		return fmt.Errorf("check free space: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free-d.Bytes/64 < d.Bytes { // keep some free for the node
		return d.full(fmt.Errorf("only %d MiB are free: %w", free>>20, unix.ENOSPC))
	}
	f, err := os.OpenFile(d.image(), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, d.Bytes)
	if errors.Is(err, unix.EOPNOTSUPP) {
		d.Log.Warn("file system cannot reserve space; the disk may run out of it", "path", d.Dir)
		err = f.Truncate(d.Bytes)
	}
	if errors.Is(err, unix.ENOSPC) {
		err = d.full(err)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.format(ctx)
	}
	if err != nil {
		return errors.Join(err, os.Remove(d.image()))
	}
	return nil
}

func (d Disk) full(err error) error {
	return fmt.Errorf("%d MiB do not fit; free some space, or lower job.disk in %s and run kbnode reconcile: %w", d.Bytes>>20, plan.ConfigPath, err)
}

// pause waits if the last try failed a short time ago: the daemon sees at once that a socket
// has failed, and starts it again.
func (d Disk) pause(ctx context.Context) error {
	info, err := os.Lstat(d.failed())
	if err != nil {
		return nil //nolint:nilerr // no failure, or it is unknown
	}
	age := time.Since(info.ModTime())
	if age < 0 || age > retryTime {
		return nil
	}
	d.Log.Info("disk waits before it is created again", "path", d.mount(), "wait", retryTime-age)
	return limit.Sleep(ctx, retryTime-age)
}

// note records for pause whether the disk could be made.
func (d Disk) note(err error) {
	if err == nil {
		err = os.Remove(d.failed())
	} else {
		err = os.WriteFile(d.failed(), nil, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.Log.Debug("failure not recorded", "path", d.failed(), "err", err)
	}
}

// format makes the file system without a journal, because a disk never outlives a boot,
// and without discard, which would give back the space that was set aside.
func (d Disk) format(ctx context.Context) error {
	inodes := min(d.Bytes/inodeBytes, maxInodes)
	cmd := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal",
		"-E", "nodiscard,lazy_itable_init=1", "-N", strconv.FormatInt(inodes, 10), d.image())
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("mkfs.ext4 is not installed; type kbnode doctor to see how to install it")
	}
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// mountFlags keep device nodes and set-user-ID programs from working on the disk.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV

// attach mounts the image and makes the directories on it.
func (d Disk) attach() error {
	if err := os.MkdirAll(d.mount(), 0o700); err != nil {
		return err
	}
	dev, err := attachLoop(d.image())
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the mount keeps the device, and unmounting frees it
	if err := unix.Mount(dev.Name(), d.mount(), "ext4", mountFlags, "noinit_itable"); err != nil {
		return fmt.Errorf("mount %s: %w", dev.Name(), err)
	}
	home := d.home()
	for _, dir := range []struct {
		path string
		mode uint32
		gid  int
	}{
		{home, plan.WorkMode, d.GID},
		{filepath.Join(home, "builds"), plan.WorkMode, d.GID},
	} {
		// Not os.Chmod, which uses its own mode bits.
		if err := errors.Join(os.Mkdir(dir.path, 0o700), os.Chown(dir.path, 0, dir.gid), unix.Chmod(dir.path, dir.mode)); err != nil {
			return err
		}
	}
	return d.bind()
}

// bind mounts the disk's home/ on the slot user's directory.
func (d Disk) bind() error {
	if err := unix.Mount(d.home(), d.Home, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", d.Home, err)
	}
	// mount(2) ignores these flags when it makes a bind mount.
	if err := unix.Mount("", d.Home, "", unix.MS_BIND|unix.MS_REMOUNT|mountFlags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", d.Home, err)
	}
	return nil
}

// attachLoop attaches a loop device to a file. The device is freed with its last user.
func attachLoop(image string) (*os.File, error) {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("find a loop device (is the kernel module loop loaded?): %w", err)
	}
	defer func() { _ = control.Close() }()
	for try := 0; ; try++ {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a loop device: %w", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = configure(dev, f)
		if err == nil {
			return dev, nil
		}
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) || try == 64 { // other slots do the same
			return nil, fmt.Errorf("configure %s: %w", dev.Name(), err)
		}
	}
}

func configure(dev, image *os.File) error {
	c := unix.LoopConfig{Fd: uint32(image.Fd())}
	copy(c.Info.File_name[:len(c.Info.File_name)-1], image.Name())
	// Bypass the page cache, which would hold everything twice.
	c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	err := unix.IoctlLoopConfigure(int(dev.Fd()), &c)
	if errors.Is(err, unix.EINVAL) { // the file system below does not support it
		c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
	}
	return err
}
