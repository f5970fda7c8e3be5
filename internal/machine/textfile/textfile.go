// Package textfile writes a file into the directory of node_exporter's textfile collector, and removes it. The directory
// may belong to another user, or many may write to it: no link in it, or on the way to it, is followed, and nothing in
// it is read.
package textfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// Name is the name of the file. node_exporter reads only files that end like it.
const Name = "kbnode.prom"

const (
	tempName = ".kbnode.prom.new" // until it is complete
	// callTime bounds what is done in the directory, whose file system may hang.
	callTime = 10 * time.Second
	// maxAge is how old the file is at most while the daemon writes it. A pass of it may take 10 minutes.
	maxAge = 15 * time.Minute
)

// Write replaces the file in a directory below root, in one step. A crash of the machine may leave it empty until the
// next Write: to sync it each time would wait for the disk.
func Write(root, dir string, content []byte) error {
	err := withDir(root, dir, func(at int) (err error) {
		if err := checkMode(at, dir); err != nil {
			return err
		}
		if err := remove(at, tempName); err != nil { // of a run that was killed
			return err
		}
		fd, err := unix.Openat(at, tempName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), tempName)
		defer func() {
			if err != nil {
				_ = remove(at, tempName) // the first error says why
			}
		}()
		_, err = f.Write(content)
		// The umask may have taken from the mode. Some file systems have no room only at the end.
		if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
			return err
		}
		return unix.Renameat(at, tempName, at, Name)
	})
	if err != nil {
		return fmt.Errorf("write metrics to %s: %w", filepath.Join(dir, Name), err)
	}
	return nil
}

// Remove removes the file from a directory below root. It is no error if there is none.
func Remove(root, dir string) error {
	err := removeFrom(root, dir)
	if errors.Is(err, errNone) {
		return nil
	}
	return err
}

// removeFrom is like Remove, but returns errNone if there is no directory.
func removeFrom(root, dir string) error {
	err := withDir(root, dir, func(at int) error { return errors.Join(remove(at, tempName), remove(at, Name)) })
	if err != nil {
		return fmt.Errorf("remove %s: %w", filepath.Join(dir, Name), err)
	}
	return nil
}

// Check returns why the metrics in a directory below root are not those of a daemon that runs since then, and what to do.
func Check(root, dir string, since, now time.Time) error {
	var written time.Time
	err := withDir(root, dir, func(at int) error {
		if err := checkMode(at, dir); err != nil {
			return err
		}
		var st unix.Stat_t
		err := unix.Fstatat(at, Name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		default:
			written = time.Unix(st.Mtim.Unix())
		}
		return nil
	})
	name := filepath.Join(dir, Name)
	switch {
	case err != nil:
		return fmt.Errorf("no metrics for node_exporter in %s: %w", dir, err)
	case now.Sub(since) <= maxAge || now.Sub(written) <= maxAge:
		return nil
	case written.IsZero():
		return fmt.Errorf("%s is missing; see sudo journalctl -u kbnode", name)
	}
	return fmt.Errorf("%s is from %s; see sudo journalctl -u kbnode", name, written.UTC().Format(time.RFC3339))
}

// errNone means that there is no directory.
var errNone = errors.New("there is no such directory; write that of node_exporter's --collector.textfile.directory")

// withDir calls do with the open directory.
func withDir(root, dir string, do func(at int) error) error {
	_, err := limit.Call(root, filepath.Join(dir, Name), callTime, func() (struct{}, error) {
		return struct{}{}, callAt(root, dir, do)
	})
	return err
}

func callAt(root, dir string, do func(at int) error) error {
	at, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(root, dir), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("a symbolic link leads to the directory; write what readlink -f %s prints", dir)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return errNone
	case err != nil:
		return err
	}
	defer func() { _ = unix.Close(at) }()
	return do(at)
}

// checkMode returns an error if anyone's metrics could be in the directory. Of one with the sticky bit, no one but root can
// replace root's files.
func checkMode(at int, dir string) error {
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IWOTH != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("everyone may replace files in the directory; type sudo chmod o-w %s", dir)
	}
	return nil
}

func remove(at int, name string) error {
	err := unix.Unlinkat(at, name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, unix.EISDIR) {
		return fmt.Errorf("%s is a directory; remove it", name)
	}
	return err
}
