package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// backupDir holds what was adopted, by path. It is outside all directories that systemd,
// cron or the agent read, and only root can read it, since it contains secrets.
const backupDir = "/var/lib/kbnode/backup"

// backupPath returns the path of the n-th backup of a path.
func backupPath(name string, n int) string { return backupDir + name + "." + strconv.Itoa(n) }

// backupOf is the inverse of backupPath below backupDir. n is 0 for any other file, such
// as the temporary file of an interrupted write.
func backupOf(name string) (original string, n int) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 || strings.HasPrefix(path.Base(name), ".") {
		return name, 0
	}
	n, err := strconv.Atoi(name[dot+1:])
	if err != nil || n < 1 {
		return name, 0
	}
	return name[:dot], n
}

// backups counts the backups of adopted files.
func (o *observer) backups(context.Context) error {
	top := o.h.path(backupDir)
	err := fs.WalkDir(os.DirFS(top), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := path.Base(name); base != "." && strings.HasPrefix(base, ".") {
			o.s.paths[path.Join(backupDir, name)] = pathState{kind: leftover, slot: -1}
		}
		original, n := backupOf("/" + name)
		if n > 0 {
			o.s.backups[original] = max(o.s.backups[original], n)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read backups: %w", err)
	}
	return nil
}

// backup copies what is at a path that already has this many backups: a file with its
// mode, owner and time, a link as a link, and a directory as an empty one with its mode
// and owner. It does not repeat the newest backup, and backs up a directory only once.
func (h *Host) backup(name string, have int) error {
	info, err := os.Lstat(h.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if have > 0 && (info.IsDir() || h.sameContent(name, backupPath(name, have))) {
		return nil
	}
	to := backupPath(name, have+1)
	if err := h.mkdir(backupDir, 0o700, owner{0, 0}); err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(path.Dir(to)), 0o700); err != nil {
		return err
	}
	if !info.IsDir() {
		return h.copy(name, to, info)
	}
	half := path.Join(path.Dir(to), "."+path.Base(to))
	mode, own := modeAndOwner(info)
	if err := h.mkdir(half, mode, own); err != nil {
		return err
	}
	return errors.Join(os.Rename(h.path(half), h.path(to)), h.syncDir(path.Dir(to)))
}

// sameContent reports whether two files have the same content, or two links the same target.
func (h *Host) sameContent(a, b string) bool {
	if target, err := os.Readlink(h.path(a)); err == nil {
		other, err := os.Readlink(h.path(b))
		return err == nil && other == target
	}
	if _, err := os.Readlink(h.path(b)); err == nil {
		return false
	}
	textA, errA := readSmall(h.path(a))
	textB, errB := readSmall(h.path(b))
	return errA == nil && errB == nil && bytes.Equal(textA, textB)
}

// copy copies a link, or a file with its mode, owner and time.
func (h *Host) copy(from, to string, info fs.FileInfo) error {
	if err := os.MkdirAll(h.path(path.Dir(to)), 0o755); err != nil { //nolint:gosec // as it was
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(h.path(from))
		if err == nil {
			err = h.callStep("symlink", to)
		}
		if err == nil {
			err = renameio.Symlink(target, h.path(to))
		}
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a link; move it away", from)
	}
	// The owner of the directory may have put something else there since.
	f, err := os.OpenFile(h.path(from), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info, err = f.Stat(); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no longer a file", from)
	}
	mode, own := modeAndOwner(info)
	return h.write(to, mode, own, f, info)
}

// restore restores what was adopted: the oldest backup at its path, later ones beside it.
// A file that someone has put there since stays, and a directory keeps its contents.
func (h *Host) restore(name string, n int, ours bool) error {
	for i := n; i >= 1; i-- {
		from, to := backupPath(name, i), name
		info, err := os.Lstat(h.path(from))
		if errors.Is(err, fs.ErrNotExist) {
			continue // restored by an interrupted run
		}
		if err != nil {
			return err
		}
		if !info.IsDir() && (i > 1 || !ours && exists(h.path(name)) && !h.sameContent(name, from)) {
			to = name + ".kbnode-backup-" + strconv.Itoa(i)
		}
		if info.IsDir() {
			mode, own := modeAndOwner(info)
			err = h.mkdir(to, mode, own)
		} else {
			err = h.copy(from, to, info)
		}
		if err == nil {
			err = h.remove(from, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteInput writes a file that kbnode also reads, such as the token, readable only by
// root. The text contains plan.Marker, by which uninstall recognizes it. WriteInput backs
// up someone else's file there, and uninstall restores it.
func (h *Host) WriteInput(name, text string) error {
	had, err := readSmall(h.path(name))
	if (err == nil || errors.Is(err, errLarge)) && !ours(name, string(had)) {
		have := 0
		for exists(h.path(backupPath(name, have+1))) {
			have++
		}
		if err := h.backup(name, have); err != nil {
			return fmt.Errorf("back up %s: %w", name, err)
		}
	}
	err = os.MkdirAll(h.path(path.Dir(name)), 0o755) //nolint:gosec // the file itself is not for all to read
	if err == nil {
		err = h.write(name, 0o600, owner{0, 0}, strings.NewReader(text), nil)
	}
	return wrap(err, "write "+name)
}
