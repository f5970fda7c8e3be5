package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// openDir opens a directory. It fails if a link is in its place.
func openDir(dir string) (*os.Root, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// Wipe deletes everything below a directory. It fails if a link is in its place. It keeps few
// directories open, however deep they are.
func Wipe(dir string) error {
	root, err := openDir(dir)
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
