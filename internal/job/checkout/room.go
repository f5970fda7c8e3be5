package checkout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// A mirror that has more packs is made again: git's own garbage collection would compete with jobs
// for longer than a fetch does. If all mirrors are too many or too large, those that no one uses go.
const (
	maxMirrors = 256
	maxPacks   = 100
	// maxPack is the most that one fetch may bring: as much as a checkout may have.
	maxPack = defaultBytes
	// defaultMirrors has room for some large repositories, a few hundred MiB each without history.
	defaultMirrors = 16 << 30
	// atOnce is how many fetches have room at the same time.
	atOnce = 8
)

var errDiskFull = errors.New("the disk is full")

var nameForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// makeRoom removes the mirrors that no one uses, except for the caller's own, if all together have more than
// their share of the disk, which it returns: half of what is free or theirs, in bytes. The next fetch has
// the other half. It also removes what an earlier removal did not finish.
func (m Mirrors) makeRoom(own string) (share int64, err error) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return 0, fmt.Errorf("list the mirrors: %w", err)
	}
	room, err := host.Room(m.Dir)
	if err != nil {
		return 0, err
	}
	var names []string
	var total int64
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tree.MovedPrefix) {
			if err := m.withRoot(func(root *os.Root) error { return tree.Remove(root, e.Name()) }); err != nil {
				return 0, fmt.Errorf("remove a mirror: %w", err)
			}
		}
		// Each has a lock.
		if name, ok := strings.CutSuffix(e.Name(), lockSuffix); ok && nameForm.MatchString(name) {
			_, bytes := packsOf(m.path(name))
			names, total = append(names, name), total+bytes
		}
	}
	share = min(cmp.Or(m.limits.mirrors, defaultMirrors), (room+total)/2)
	if len(names) <= maxMirrors && total <= share {
		return share, nil
	}
	for _, name := range names {
		if name == own {
			continue
		}
		if err := m.remove(name); err != nil && !errors.Is(err, errBusy) {
			return 0, err
		}
	}
	return share, nil
}

func packFiles(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "objects", "pack", "*")) // the pattern is good
	return files
}

// packsOf returns the number of a mirror's packs, and their size in bytes.
func packsOf(dir string) (packs int, bytes int64) {
	for _, file := range packFiles(dir) {
		if info, err := os.Lstat(file); err == nil {
			bytes += info.Size()
		}
		if strings.HasSuffix(file, ".pack") {
			packs++
		}
	}
	return packs, bytes
}

// remove removes a mirror that no one uses, or returns errBusy.
func (m Mirrors) remove(name string) error {
	for _, file := range []string{name + fetchSuffix, name + lockSuffix} {
		l, err := m.tryLock(file, unix.LOCK_EX)
		if err != nil {
			return err
		}
		defer unlock(l)
	}
	err := m.withRoot(func(root *os.Root) error {
		return errors.Join(tree.Remove(root, name+gitSuffix), tree.Remove(root, name+spare+gitSuffix), root.Remove(name+fetchSuffix), root.Remove(name+lockSuffix))
	})
	if err != nil {
		return fmt.Errorf("remove a mirror: %w", err)
	}
	return nil
}

// makeMirror makes an empty mirror in place of one that only the caller fetches into.
func (m Mirrors) makeMirror(ctx context.Context, name string) error {
	l, err := m.lock(ctx, name+lockSuffix, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock(l)
	return m.initMirror(ctx, name)
}

func (m Mirrors) initMirror(ctx context.Context, name string) error {
	dir := name + gitSuffix
	err := m.withRoot(func(root *os.Root) error {
		err := tree.Remove(root, dir)
		if err == nil {
			err = root.Mkdir(dir, 0o700)
		}
		if err == nil && m.UID != 0 {
			err = root.Lchown(dir, m.UID, m.GID)
		}
		return err
	})
	if err == nil {
		_, err = m.git(ctx, m.path(name), "init", "--quiet", "--bare", "--template=", "--", ".")
	}
	if err != nil {
		return fmt.Errorf("make a mirror: %w", err)
	}
	return nil
}

// renew fetches into an empty mirror, which replaces one that may be damaged. That one stays if the second fetch fails,
// too: then the repository or the network is at fault.
func (m Mirrors) renew(ctx context.Context, name string, fetch func(name string) error) (err error) {
	defer func() {
		err = errors.Join(err, m.removeSpare(name))
	}()
	if err := m.initMirror(ctx, name+spare); err != nil {
		return err
	}
	if err := fetch(name + spare); err != nil {
		return err
	}
	l, err := m.lock(ctx, name+lockSuffix, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock(l)
	return m.withRoot(func(root *os.Root) error {
		if err := tree.Remove(root, name+gitSuffix); err != nil {
			return err
		}
		return root.Rename(name+spare+gitSuffix, name+gitSuffix)
	})
}

func (m Mirrors) removeSpare(name string) error {
	return m.withRoot(func(root *os.Root) error { return tree.Remove(root, name+spare+gitSuffix) })
}

// withRoot opens the directory of all mirrors. Git's user can put links into its own directories, which
// lead nowhere else.
func (m Mirrors) withRoot(do func(root *os.Root) error) error {
	root, err := os.OpenRoot(m.Dir)
	if err != nil {
		return err
	}
	return errors.Join(do(root), root.Close())
}

func isTemporary(pack string) bool { return strings.HasPrefix(filepath.Base(pack), "tmp_") }

// reached reports whether a fetch ended at the limit of a file's size, of which git says nothing.
func (m Mirrors) reached(name string) bool {
	return slices.ContainsFunc(packFiles(m.path(name)), func(file string) bool {
		info, err := os.Lstat(file)
		return err == nil && isTemporary(file) && info.Size() >= m.most
	})
}

// sweep removes what a fetch that failed leaves in a mirror: files that fill the disk, packs besides
// the ones to keep, which nothing has checked, and locks that keep out the next.
func (m Mirrors) sweep(name string, keep []string) error {
	err := m.withRoot(func(root *os.Root) error {
		for _, left := range []string{"objects/pack/*", "*.lock", "refs/kbnode/*.lock"} {
			files, err := filepath.Glob(filepath.Join(m.path(name), left))
			for _, file := range files {
				if slices.Contains(keep, file) {
					continue
				}
				path, _ := filepath.Rel(m.Dir, file) // it is below
				err = errors.Join(err, root.Remove(path))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("clean a mirror: %w", err)
	}
	return nil
}
