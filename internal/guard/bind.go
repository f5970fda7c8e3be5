package guard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/disk"
)

// mountsDir is where what jobs mount is held, beside the slot's socket. Only
// root can enter it.
const mountsDir = "mounts"

// bound is a path that a container mounts: source is the slot user's, who may
// replace any part of it by a link at any time; held is root's. The engine gets
// held, and while it starts the container that is a mount of source, opened
// without following a link. So the engine never walks a path that a job can
// change, and after the start nothing is left of it on the host.
type bound struct {
	held, source string
}

// binder makes and ends mounts.
type binder struct {
	dir string // of held paths
	// mount mounts source on held, and unmount ends that, both where the engine
	// sees it.
	mount   func(source, held string) error
	unmount func(held string) error
}

func newBinder(runDir string) *binder {
	return &binder{
		dir:   filepath.Join(runDir, mountsDir),
		mount: func(source, held string) error { return disk.OnHost(func() error { return bindMount(source, held) }) },
		unmount: func(held string) error {
			return disk.OnHost(func() error { return ignoreGone(unix.Unmount(held, unix.MNT_DETACH)) })
		},
	}
}

// clear removes what a guard that was killed left. A container that was created
// and not yet started cannot start any more.
func (b *binder) clear() error {
	entries, err := os.ReadDir(b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, b.release(bound{held: filepath.Join(b.dir, e.Name())}))
	}
	if err != nil {
		return fmt.Errorf("clear %s: %w", b.dir, err)
	}
	return nil
}

// hold makes a path for a container that is being created.
func (b *binder) hold(source string) (bound, error) {
	info, err := os.Lstat(source)
	if err != nil {
		return bound{}, fmt.Errorf("hold %s: %w", source, err)
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return bound{}, fmt.Errorf("hold %s: %w", source, err)
	}
	held := filepath.Join(b.dir, rand.Text())
	if info.IsDir() {
		err = os.Mkdir(held, 0o700)
	} else {
		err = os.WriteFile(held, nil, 0o600)
	}
	if err != nil {
		return bound{}, fmt.Errorf("hold %s: %w", source, err)
	}
	return bound{held, source}, nil
}

// release ends a mount and removes its path.
func (b *binder) release(list ...bound) error {
	var errs []error
	for _, m := range list {
		if err := b.unmount(m.held); err != nil {
			// Never remove through a mount that is still there.
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.held, err))
			continue
		}
		if err := os.Remove(m.held); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// bindMount mounts exactly what lies at source.
func bindMount(source, held string) error {
	fd, err := openExact(source)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), held, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	return nil
}

// openExact opens a path without following a link, also not one that is put
// there this moment. It goes step by step, as systemd's sandbox has no openat2.
func openExact(path string) (fd int, err error) {
	fd, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for step := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if err != nil {
			break
		}
		dir := fd
		fd, err = unix.Openat(dir, step, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(dir)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	// A link is opened as such, and nothing lies below it: only the last can be one.
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = unix.ELOOP
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

func ignoreGone(err error) error {
	// EINVAL: it is no mount (any more).
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
