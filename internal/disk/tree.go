package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/tree"
)

// Bounds on Reclaim, which walks what a job left in seconds or stops.
const (
	maxReclaimed = 1 << 20 // entries
	maxDepth     = 100     // directories below each other
	reclaimTime  = 60 * time.Second
)

// Reclaim gives a user everything below the checkouts in dir. A container usually runs as root
// and may leave directories there that the user can neither read nor delete, and the next job's
// checkout would fail. Reclaim does not follow links and reaches nothing outside the directory.
func Reclaim(ctx context.Context, dir string, uid, gid int) error {
	root, err := openBelow(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reclaim the checkouts: %w", err)
	}
	defer func() { _ = root.Close() }()
	ctx, cancel := context.WithTimeout(ctx, reclaimTime)
	defer cancel()
	r := reclaim{ctx: ctx, uid: uid, gid: gid}
	if err := r.below(root, 0); err != nil {
		return fmt.Errorf("reclaim the checkouts in %s: %w", dir, err)
	}
	return nil
}

type reclaim struct {
	ctx      context.Context
	uid, gid int
	seen     int
}

// below gives what is in a directory. It reads a directory in parts, which may have any number of
// entries, and opens each from the one above, which may be any number.
func (r *reclaim) below(at *os.Root, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d directories below each other", maxDepth)
	}
	f, err := at.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for {
		entries, err := f.ReadDir(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		for _, e := range entries {
			if err == nil {
				err = r.entry(at, e.Name(), depth)
			}
		}
		if err != nil {
			return err
		}
	}
}

func (r *reclaim) entry(at *os.Root, name string, depth int) error {
	if r.seen++; r.seen > maxReclaimed {
		return fmt.Errorf("more than %d files", maxReclaimed)
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	info, err := at.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && (int(st.Uid) != r.uid || info.IsDir() && st.Mode&0o700 != 0o700) {
		err = at.Lchown(name, r.uid, r.gid)
		if err == nil && info.IsDir() {
			err = at.Chmod(name, info.Mode().Perm()|0o700)
		}
	}
	if err != nil || !info.IsDir() {
		return err
	}
	dir, err := at.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return r.below(dir, depth+1)
}

// openBelow opens a directory. It fails if a link is in its place.
func openBelow(dir string) (*os.Root, error) {
	above, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }()
	root, err := above.OpenRoot(filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	// A link to something in the parent directory would be followed.
	open, err := root.Stat(".")
	named, nerr := above.Lstat(filepath.Base(dir))
	if err = errors.Join(err, nerr); err == nil && !os.SameFile(open, named) {
		err = fmt.Errorf("%s is a link: %w", dir, syscall.ENOTDIR)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// Wipe deletes everything below a directory. It fails if a link is in its place. It keeps few
// directories open, however deep they are.
func Wipe(dir string) error {
	root, err := openBelow(dir)
	if err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		err = errors.Join(err, tree.Remove(root, e.Name()))
	}
	if err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	return nil
}
