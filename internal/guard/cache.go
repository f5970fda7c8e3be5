package guard

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

// cacheSource is the prefix of a mount source for an empty directory until prepareCache creates one. It is not absolute, so the engine refuses it.
const cacheSource = "cache:"

// emptyMount returns a mount of an empty directory, such as one that the old scripts kept for all jobs
// of a node: what a job writes there could change what the next one runs.
func emptyMount(number int, target string, readOnly bool) mount.Mount {
	return bind(cacheSource+strconv.Itoa(number), target, readOnly)
}

// prepareCache gives mounts of empty directories one below top, which only root can enter and which is
// removed with the container. If top is "", each is a tmpfs, part of the slot's memory.
func prepareCache(h *container.HostConfig, top string) error {
	var kept []mount.Mount
	for _, m := range h.Mounts {
		number, ok := strings.CutPrefix(m.Source, cacheSource)
		switch {
		case !ok:
		case top == "":
			if h.Tmpfs == nil {
				h.Tmpfs = map[string]string{}
			}
			h.Tmpfs[m.Target] = "exec,mode=0777"
			if m.ReadOnly {
				h.Tmpfs[m.Target] += ",ro"
			}
			continue
		default:
			m.Source = filepath.Join(top, "cache"+number)
			if err := openDir(m.Source); err != nil {
				return fmt.Errorf("prepare the slot's disk: %w", err)
			}
		}
		kept = append(kept, m)
	}
	h.Mounts = kept
	return nil
}
