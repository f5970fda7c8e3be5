package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// cacheSource is the prefix of a mount source for a directory of the old scripts' cache until
// prepareCache creates one. It is not absolute, so the engine refuses it.
const cacheSource = "cache:"

// isOldCache reports whether a clean path is the directory that the old scripts kept for all
// jobs of a node, or is below it. A job that could write there could change what the next one
// runs, so each container gets an empty directory instead.
func isOldCache(source string) bool {
	return source == plan.OldCacheDir || strings.HasPrefix(source, plan.OldCacheDir+"/")
}

func cacheMount(source, target string, readOnly bool) mount.Mount {
	return bind(cacheSource+strings.TrimPrefix(source, plan.OldCacheDir), target, readOnly)
}

// prepareCache gives mounts of the old cache directories below top, which only root can enter
// and which is removed with the container. Mounts of one path share one directory. If top is "",
// each is a tmpfs, part of the slot's memory.
func prepareCache(h *container.HostConfig, top string) error {
	var kept []mount.Mount
	made := 0
	for _, m := range h.Mounts {
		below, ok := strings.CutPrefix(m.Source, cacheSource)
		switch {
		case !ok:
		case made == maxVolumes:
			return forbid("a job can mount at most %d directories of %s", maxVolumes, plan.OldCacheDir)
		case top == "":
			if h.Tmpfs == nil {
				h.Tmpfs = map[string]string{}
			}
			h.Tmpfs[m.Target] = "exec,mode=0777"
			if m.ReadOnly {
				h.Tmpfs[m.Target] += ",ro"
			}
			made++
			continue
		default:
			m.Source = filepath.Join(top, "cache")
			for step := range strings.SplitSeq(below, "/") {
				m.Source = filepath.Join(m.Source, step)
				if err := openDir(m.Source); err != nil && !errors.Is(err, fs.ErrExist) {
					return fmt.Errorf("prepare the slot's disk: %w", err)
				}
			}
			made++
		}
		kept = append(kept, m)
	}
	h.Mounts = kept
	return nil
}
