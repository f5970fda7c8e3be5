package reconcile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/disk"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// owner is the owner of a new file. -1 leaves it as it is created.
type owner struct{ uid, gid int }

// write replaces a file in one step: anyone who opens the path sees the old file or the
// new one, complete and with its mode and owner, whatever happens meanwhile. If like is
// not nil, the file gets its modification time.
func (h *Host) write(name string, mode uint32, own owner, content io.Reader, like fs.FileInfo) error {
	if err := h.begin("write", name); err != nil {
		return err
	}
	target := h.path(name)
	t, err := renameio.NewPendingFile(target, renameio.WithTempDir(filepath.Dir(target)), renameio.WithPermissions(0o600))
	if err != nil {
		return err
	}
	// Not deferred: in tests a panic simulates kill -9, after which nothing is cleaned
	// up.
	if err := h.fill(t, name, mode, own, content, like); err != nil {
		_ = t.Cleanup()
		return err
	}
	return h.syncDir(path.Dir(name))
}

// Store writes a file of kbnode's own state.
func (h *Host) Store(name, text string) error {
	return wrap(h.write(name, 0o644, owner{0, 0}, strings.NewReader(text), nil), "write "+name)
}

// ReadDrains reads which slots take no jobs.
func (h *Host) ReadDrains() ([]plan.Drain, error) {
	text, err := readSmall(h.path(plan.DrainsPath))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read drained slots: %w", err)
	}
	return plan.ParseDrains(text)
}

// WriteDrains saves which slots take no jobs. The caller must hold the node's lock. The
// next Apply changes the machine itself.
func (h *Host) WriteDrains(drains []plan.Drain) error {
	text, err := plan.RenderDrains(drains)
	if err != nil {
		return err
	}
	return h.Store(plan.DrainsPath, text)
}

// WriteAgent saves which agent slots run. The caller must hold the node's lock. The next
// Apply changes the machine itself.
func (h *Host) WriteAgent(r plan.AgentRelease) error {
	text, err := plan.RenderAgent(r)
	if err != nil {
		return err
	}
	return h.Store(plan.AgentsPath, text)
}

func (h *Host) fill(t *renameio.PendingFile, name string, mode uint32, own owner, content io.Reader, like fs.FileInfo) error {
	if _, err := io.Copy(t, content); err != nil {
		return err
	}
	if canChown() && own.uid >= 0 {
		if err := t.Chown(own.uid, own.gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(int(t.Fd()), mode); err != nil { // after chown, which clears setuid bits
		return err
	}
	if like != nil {
		if err := os.Chtimes(t.Name(), like.ModTime(), like.ModTime()); err != nil {
			return err
		}
	}
	if err := h.callStep("rename", name); err != nil {
		return err
	}
	return t.CloseAtomicallyReplace()
}

// syncDir makes a rename in a directory durable.
func (h *Host) syncDir(dir string) error {
	if err := h.callStep("sync", dir); err != nil {
		return err
	}
	f, err := os.Open(h.path(dir))
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

// modeAndOwner returns the mode of a file, as in chmod(2), and its owner.
func modeAndOwner(info fs.FileInfo) (mode uint32, own owner) {
	sys := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // on Linux
	return sys.Mode & 0o7777, owner{int(sys.Uid), int(sys.Gid)}
}

// begin begins a change at a path. It refuses one that leads through a symbolic link that
// root did not make, because a job could have put it there.
func (h *Host) begin(verb, name string) error {
	if err := h.callStep(verb, name); err != nil {
		return err
	}
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		info, err := os.Lstat(h.path(dir))
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		if _, own := modeAndOwner(info); own.uid != 0 && own.uid != os.Geteuid() {
			return fmt.Errorf("%s is a symbolic link that root did not create; remove it", dir)
		}
	}
	return nil
}

// chmod sets the mode and owner of what is at a path, never of a link's target.
func (h *Host) chmod(name string, mode uint32, own owner) error {
	if err := h.begin("chmod", name); err != nil {
		return err
	}
	fd, err := unix.Open(h.path(name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	if canChown() && own.uid >= 0 {
		if err := f.Chown(own.uid, own.gid); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, mode)
}

// mkdir makes a directory, and its missing parents as root's.
func (h *Host) mkdir(name string, mode uint32, own owner) error {
	if err := h.begin("mkdir", name); err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(path.Dir(name)), 0o755); err != nil { //nolint:gosec // system directories are for all to read
		return err
	}
	made := os.Mkdir(h.path(name), 0o700)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return made
	}
	err := h.chmod(name, mode, own)
	if err != nil && made == nil {
		_ = os.Remove(h.path(name)) // or the next run thinks that the operator chose its mode
	}
	return err
}

// remove deletes a file or, if all is set, a directory with everything in it. It is not
// an error if the path is already gone or, without all, if it is a directory that is not
// empty.
func (h *Host) remove(name string, all bool) error {
	if err := h.callStep("remove", name); err != nil {
		return err
	}
	target := h.path(name)
	if all {
		// A mount there, such as a slot's disk, would stay busy.
		if err := unmountBelow(target); err != nil {
			return err
		}
		// It may be a file, or what a job may have made: endlessly nested directories.
		if err := disk.Wipe(target); err != nil && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	err := os.Remove(target)
	if errors.Is(err, fs.ErrNotExist) || !all && (errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)) {
		return nil
	}
	return err
}

// unmountBelow unmounts everything at and below a path, the last mount first.
func unmountBelow(target string) error {
	mounts, ok := host.Tree{Root: "/"}.Mounts("self")
	if !ok {
		return errors.New("read /proc/self/mountinfo")
	}
	var errs []error
	for _, m := range slices.Backward(mounts) {
		if m.Point == target || strings.HasPrefix(m.Point, target+"/") {
			if err := unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", m.Point, err))
			}
		}
	}
	return errors.Join(errs...)
}

// wantedOwner returns the owner of a planned file or directory.
func wantedOwner(s map[string]host.User, name string) (owner, error) {
	if name == "" || name == "root" {
		return owner{0, 0}, nil
	}
	user, ofRoot := strings.CutPrefix(name, "root:")
	u, ok := s[user]
	if !ok {
		return owner{-1, -1}, fmt.Errorf("user %s does not exist", user)
	}
	if ofRoot {
		return owner{0, u.GID}, nil
	}
	return owner{u.UID, u.GID}, nil
}
