package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func cacheDir() (string, error) {
	dir := os.Getenv("KBNODE_VM_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(base, "kbnode", "vm")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if strings.ContainsAny(dir, "',\n") {
		return "", fmt.Errorf("cache directory %q holds a quote or a comma, which QEMU would misread; set KBNODE_VM_CACHE to another", dir)
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// key names what a template depends on, besides the state of Debian's mirror
// when its trees were made.
func (b *builder) key(ctx context.Context) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(imageFS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := imageFS.ReadFile(path)
		if err == nil {
			_, err = fmt.Fprintf(h, "%s %x\n", path, sha256.Sum256(content))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if err := b.suite.sum(h); err != nil {
		return "", err
	}
	for _, path := range []string{b.agent, b.guestd} {
		if err := hashFile(h, path); err != nil {
			return "", err
		}
	}
	version, err := exec.CommandContext(ctx, qemuBinary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("run QEMU: %w; make vm-deps installs it", err)
	}
	if _, err := fmt.Fprintf(h, "%s %q %s", version, qemuArgs(firmware{}, memory{}, "disk", ""), warmUp); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func hashFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(h, f)
	return err
}

// clean removes what an interrupted build left.
func (b *builder) clean() error {
	old, err := filepath.Glob(filepath.Join(b.cache, "tmp-*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if err := asRoot(context.Background(), "rm", "-rf", dir); err != nil {
			return err
		}
	}
	return nil
}

// prune keeps the templates and trees used last, and those in use: work on the
// image must not fill the disk.
func (b *builder) prune() error {
	const keep = 3
	for _, pattern := range []string{"template-*", "trees-*", "debs-*"} {
		dirs, err := filepath.Glob(filepath.Join(b.cache, pattern))
		if err != nil {
			return err
		}
		used := map[string]time.Time{}
		for _, dir := range dirs {
			st, err := os.Stat(dir)
			if err != nil {
				return err
			}
			used[dir] = st.ModTime()
		}
		slices.SortFunc(dirs, func(a, b string) int { return used[b].Compare(used[a]) })
		for _, dir := range dirs[min(keep, len(dirs)):] {
			if err := removeUnused(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// touch notes that a directory is used.
func touch(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

func removeUnused(dir string) error {
	f, err := os.Open(filepath.Join(dir, "state"))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(dir) // trees: their user holds the cache's lock
	}
	if err != nil {
		return err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		err = os.RemoveAll(dir)
	}
	return errors.Join(err, f.Close())
}
