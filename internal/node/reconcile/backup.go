package reconcile

import (
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

// BackupDir holds what --adopt replaced or removed, by path. Only root can read it, since it
// contains secrets, and uninstall leaves it.
const BackupDir = "/var/backups/kbnode"

// backUp copies a file or link to BackupDir, beside what was copied from its path before.
func (h *Host) backUp(name string) error {
	info, err := os.Lstat(h.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	to := BackupDir + name
	for n := 2; exists(h.path(to)); n++ {
		to = BackupDir + name + "." + strconv.Itoa(n)
	}
	if err := h.mkdir(BackupDir, 0o700, owner{0, 0}); err != nil {
		return err
	}
	// Who copies them back with cp -a gives these modes to /etc, too.
	if err := os.MkdirAll(h.path(path.Dir(to)), 0o755); err != nil { //nolint:gosec // its parent is root's alone
		return err
	}
	return h.copy(name, to, info)
}

// copy copies a link, or a file with its mode, owner and time.
func (h *Host) copy(from, to string, info fs.FileInfo) error {
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

// WriteInput writes a file that kbnode also reads, such as the token, readable only by
// root. The text contains plan.Marker, by which uninstall recognizes it. WriteInput backs
// up someone else's file there.
func (h *Host) WriteInput(name, text string) error {
	had, err := readSmall(h.path(name))
	if (err == nil || errors.Is(err, errLarge)) && !ours(name, string(had)) {
		if err := h.backUp(name); err != nil {
			return fmt.Errorf("back up %s: %w", name, err)
		}
	}
	err = os.MkdirAll(h.path(path.Dir(name)), 0o755) //nolint:gosec // the file itself is not for all to read
	if err == nil {
		err = h.write(name, 0o600, owner{0, 0}, strings.NewReader(text), nil)
	}
	return wrap(err, "write "+name)
}
