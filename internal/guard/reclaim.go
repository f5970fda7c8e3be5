package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// ReclaimPath is where a guard's socket takes the slot user's wish to have its
// checkouts back; it is no path of Docker's.
const ReclaimPath = "/kbnode/reclaim"

// Bounds of Reclaim: what a job left is walked in seconds, or not to the end.
const (
	maxReclaimed = 1 << 20 // entries
	reclaimTime  = 60 * time.Second
)

// Reclaim gives the slot's user everything below its checkouts. A container
// usually runs as root and may leave directories there that the user could
// neither read nor delete, and the next job's checkout would fail. Links are
// not followed, and nothing outside of the directory is reached.
func Reclaim(ctx context.Context, p plan.JobPolicy) error {
	uid, gid, err := lookupUser(p.User)
	if err != nil {
		return err
	}
	return reclaim(ctx, p.WorkRoot, uid, gid)
}

func reclaim(ctx context.Context, dir string, uid, gid int) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take back the checkouts: %w", err)
	}
	defer func() { _ = root.Close() }()
	ctx, cancel := context.WithTimeout(ctx, reclaimTime)
	defer cancel()
	seen := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if seen++; seen > maxReclaimed {
			return fmt.Errorf("more than %d files", maxReclaimed)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || name == "." || int(st.Uid) == uid && (!e.IsDir() || st.Mode&0o700 == 0o700) {
			return nil
		}
		if err := root.Lchown(name, uid, gid); err != nil {
			return err
		}
		if e.IsDir() {
			return root.Chmod(name, info.Mode().Perm()|0o700)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("take back the checkouts in %s: %w", dir, err)
	}
	return nil
}

func (g *guard) reclaim(c *call) error {
	if err := g.disk.tidy(c.r.Context(), &g.own, g.policy.User); err != nil {
		return err
	}
	if err := Reclaim(c.r.Context(), g.policy); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
