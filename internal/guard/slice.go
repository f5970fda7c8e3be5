package guard

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// endTogether makes the kernel end all of a container's processes when its slot is out of
// memory. Otherwise the largest one dies and the rest go on, wrongly. Docker has no option for
// it. A container that has ended is not an error.
func (s slotProcs) endTogether(id string) error {
	return writeCgroup(filepath.Join(s.container(id), "memory.oom.group"))
}

// engineFresh is how long the engine's answer about its cgroup driver is trusted: it changes
// only when the engine restarts.
const engineFresh = 30 * time.Second

// engineAsks is how often to ask an engine that does not answer in time, each time for
// docker.Info's twenty seconds. Eight jobs that begin together keep an engine busy, and waiting
// is better for a job than being refused.
const engineAsks = 4

// engineCheck remembers that the engine puts containers where it is told to.
type engineCheck struct {
	ask func(context.Context) (docker.Info, error)

	mu    sync.Mutex
	info  docker.Info
	until time.Time // info is valid until then
}

// ok returns what the engine says of itself, and a sentence if containers would not run below the slot's
// slice: with the cgroupfs driver they run in the engine's own cgroup.
func (c *engineCheck) ok(ctx context.Context, now time.Time) (docker.Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.until) {
		return c.info, nil
	}
	info, err := c.ask(ctx)
	for range engineAsks - 1 {
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			break
		}
		info, err = c.ask(ctx)
	}
	if err == nil && (info.CgroupDriver != "systemd" || info.CgroupVersion != "2") {
		err = fmt.Errorf(`the Docker engine uses the cgroup driver %q with cgroup version %q, so a job would have no limits; it must be "systemd" and "2"`, info.CgroupDriver, info.CgroupVersion)
	}
	if err == nil {
		c.info, c.until = info, now.Add(engineFresh)
	}
	return info, err
}
