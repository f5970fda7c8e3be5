package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/tree"
)

// openBelow opens a directory. It fails if a link is in its place.
func openBelow(dir string) (*os.Root, error) {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }()
	root, err := parent.OpenRoot(filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	// A link to something in the parent directory would be followed.
	open, err := root.Stat(".")
	named, nerr := parent.Lstat(filepath.Base(dir))
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

// Copy copies a directory with its owners and modes to a place where there is nothing.
func Copy(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", "--", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %.500s", from, err, out)
	}
	return nil
}
