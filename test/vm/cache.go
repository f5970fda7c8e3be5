package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// lockCache returns the cache's directory, which no one else changes until done.
func lockCache(ctx context.Context) (dir string, done func(), err error) {
	if dir, err = cacheDir(); err != nil {
		return "", nil, err
	}
	lock, err := lockFile(ctx, filepath.Join(dir, "lock"))
	return dir, func() { _ = lock.Close() }, err
}

// cached returns the directory of a kind that depends on key. If the cache does not have it, fill
// makes its content elsewhere, so that it is there whole or not at all.
func cached(cache, kind string, key []byte, fill func(dir string) error) (string, error) {
	sum := sha256.Sum256(key)
	dir := filepath.Join(cache, kind+"-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		tmp, err := os.MkdirTemp(cache, "tmp-")
		if err == nil {
			err = fill(tmp)
		}
		if err == nil {
			err = os.Rename(tmp, dir)
		}
		if err != nil {
			return "", err
		}
	}
	now := time.Now() // when it was last used
	return dir, os.Chtimes(dir, now, now)
}

// key names what a template depends on, besides the state of Debian's mirror
// when its trees were made.
func (b *builder) key(ctx context.Context) ([]byte, error) {
	h := &bytes.Buffer{}
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
		return nil, err
	}
	if err := b.suite.sum(h); err != nil {
		return nil, err
	}
	for _, path := range []string{b.agent, b.guestd} {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(h, "%x\n", sha256.Sum256(content))
	}
	version, err := exec.CommandContext(ctx, qemuBinary, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("run QEMU: %w; make vm-deps installs it", err)
	}
	if _, err := fmt.Fprintf(h, "%s %q %s", version, qemuArgs(firmware{}, memory{}, "disk", ""), warmUp); err != nil {
		return nil, err
	}
	return h.Bytes(), nil
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
	for _, pattern := range []string{"template-*", "trees-*", "debs-*", "debian-*"} {
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
