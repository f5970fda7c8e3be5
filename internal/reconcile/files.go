package reconcile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// owner is whom a new file belongs to. -1 leaves it as it is made.
type owner struct{ uid, gid int }

// write puts a file in place in one step: whoever opens the path sees the old
// file or the new one, whole and with its mode and owner, whatever happens
// meanwhile.
func (h *Host) write(name string, mode uint32, own owner, content io.Reader, like fs.FileInfo) error {
	if err := h.before("write", name); err != nil {
		return err
	}
	target := h.path(name)
	if err := h.noPlantedLink(name); err != nil {
		return err
	}
	t, err := renameio.NewPendingFile(target, renameio.WithTempDir(filepath.Dir(target)), renameio.WithPermissions(0o600))
	if err != nil {
		return err
	}
	// Not deferred: a panic stands for kill -9 in tests, and nothing is cleaned
	// up after that.
	if err := h.fill(t, name, mode, own, content, like); err != nil {
		_ = t.Cleanup()
		return err
	}
	return syncDir(filepath.Dir(target))
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
	if err := t.Chmod(fileMode(mode)); err != nil { // after chown, which clears setuid bits
		return err
	}
	if like != nil {
		if err := os.Chtimes(t.Name(), like.ModTime(), like.ModTime()); err != nil {
			return err
		}
	}
	if err := h.before("rename", name); err != nil {
		return err
	}
	return t.CloseAtomicallyReplace()
}

// syncDir makes a rename in a directory last.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

// fileMode is the reverse of modeBits.
func fileMode(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for _, b := range []struct {
		from uint32
		to   fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if bits&b.from != 0 {
			m |= b.to
		}
	}
	return m
}

// noPlantedLink refuses a path that leads through a symbolic link which root
// did not make: a job could have put it there.
func (h *Host) noPlantedLink(name string) error {
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		info, err := os.Lstat(h.path(dir))
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok && (sys.Uid == 0 || int(sys.Uid) == os.Geteuid()) {
			continue
		}
		return fmt.Errorf("%s is a symbolic link that root did not make; remove it", dir)
	}
	return nil
}

// chmod sets mode and owner of what is at a path, never of what a link there
// points to.
func (h *Host) chmod(name string, mode uint32, own owner) error {
	if err := h.before("chmod", name); err != nil {
		return err
	}
	if err := h.noPlantedLink(name); err != nil {
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
	return f.Chmod(fileMode(mode))
}

// mkdir makes a directory, and those above it as root's.
func (h *Host) mkdir(name string, mode uint32, own owner) error {
	if err := h.before("mkdir", name); err != nil {
		return err
	}
	if err := h.noPlantedLink(name); err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(path.Dir(name)), 0o755); err != nil { //nolint:gosec // system directories are for all to read
		return err
	}
	if err := os.Mkdir(h.path(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return h.chmod(name, mode, own)
}

// remove deletes a file or, where all is set, a directory with all in it. What
// is gone already is no error, and neither is a directory that is still used.
func (h *Host) remove(name string, all bool) error {
	if err := h.before("remove", name); err != nil {
		return err
	}
	target := h.path(name)
	if all {
		return os.RemoveAll(target) // follows no link
	}
	err := os.Remove(target)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

// backupPath is where the n-th backup of a path lies: outside of all
// directories that systemd, cron or the agent read.
func backupPath(name string, n int) string { return backupDir + name + "." + strconv.Itoa(n) }

// backupOf is the reverse of backupPath below backupDir; n is 0 for another
// file.
func backupOf(name string) (original string, n int) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return name, 0
	}
	n, err := strconv.Atoi(name[dot+1:])
	if err != nil || n < 1 {
		return name, 0
	}
	return name[:dot], n
}

// backup copies what is at a path, with its mode, owner and time, or a link as
// a link. The newest backup is not repeated.
func (h *Host) backup(name string, have int) error {
	info, err := os.Lstat(h.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	to := backupPath(name, have+1)
	if err := h.mkdir(backupDir, 0o700, owner{0, 0}); err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(path.Dir(to)), 0o700); err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(h.path(name))
		if err != nil {
			return err
		}
		if have > 0 {
			if kept, err := os.Readlink(h.path(backupPath(name, have))); err == nil && kept == target {
				return nil
			}
		}
		return h.copyLink(name, to)
	case info.Mode().IsRegular():
		return h.copyFile(name, to)
	}
	return fmt.Errorf("%s is neither a file nor a link; move it away", name)
}

func (h *Host) copyLink(from, to string) error {
	target, err := os.Readlink(h.path(from))
	if err != nil {
		return err
	}
	if err := h.before("symlink", to); err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(path.Dir(to)), 0o755); err != nil { //nolint:gosec // as it was
		return err
	}
	return renameio.Symlink(target, h.path(to))
}

// copyFile copies a file with its mode, owner and time.
func (h *Host) copyFile(from, to string) error {
	f, err := os.Open(h.path(from))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	own := owner{-1, -1}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		own = owner{int(sys.Uid), int(sys.Gid)}
	}
	return h.write(to, modeBits(info.Mode()), own, f, info)
}

// restore puts back what was adopted: the oldest backup at its path, later ones
// beside it. A file that somebody put there since stays.
func (h *Host) restore(name string, n int, ours bool) error {
	for i := n; i >= 1; i-- {
		from, to := backupPath(name, i), name
		if i > 1 || !ours && exists(h.path(name)) {
			to = name + ".kbnode-backup-" + strconv.Itoa(i)
		}
		info, err := os.Lstat(h.path(from))
		if errors.Is(err, fs.ErrNotExist) {
			continue // put back by a run that was interrupted
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			err = h.copyLink(from, to)
		} else if err = os.MkdirAll(h.path(path.Dir(to)), 0o755); err == nil { //nolint:gosec // as it was
			err = h.copyFile(from, to)
		}
		if err != nil {
			return err
		}
		if err := h.remove(from, false); err != nil {
			return err
		}
	}
	return nil
}

// WriteInput writes a file that kbnode also reads, such as the token, readable
// by root alone. Its text carries plan.Marker, by which uninstall knows it.
func (h *Host) WriteInput(name, text string) error {
	if err := os.MkdirAll(h.path(path.Dir(name)), 0o755); err != nil { //nolint:gosec // the file itself is not for all to read
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := h.write(name, 0o600, owner{0, 0}, strings.NewReader(text), nil); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func wantedOwner(s map[string]UserState, name string) (owner, error) {
	if name == "" || name == "root" {
		return owner{0, 0}, nil
	}
	u, ok := s[name]
	if !ok {
		return owner{}, fmt.Errorf("user %s does not exist", name)
	}
	return owner{u.UID, u.GID}, nil
}
