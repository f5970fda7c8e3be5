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

// mountsDir is the directory beside the slot's socket that holds the paths jobs mount. Only root
// can enter it.
const mountsDir = "mounts"

// bound is a path that a container mounts. The slot's user owns source and may replace any part
// of it with a link at any time. Root owns held. The engine gets held, which is a mount of
// source, opened without following links, while the container starts. So the engine never walks
// a path that a job can change, and nothing of it is left on the host after the start.
type bound struct {
	held, source string
}

// binder mounts and unmounts bound paths.
type binder struct {
	dir string // the directory of held paths
	// mount mounts source on held, and unmount unmounts held, both where the engine sees it.
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

// clear removes what a killed guard left. A container that was created but not started can no
// longer start.
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

// hold creates the held path for a container that is being created. It mounts nothing.
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

// release unmounts held paths and removes them.
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

// bindMount mounts exactly what is at source, without following links.
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

// openExact opens a path without following links, even one that is put there meanwhile. It goes
// step by step because systemd's sandbox has no openat2.
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
	// A link is opened itself, and nothing is below it, so only the last step can be one.
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
	// EINVAL: it is not a mount (any more).
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
