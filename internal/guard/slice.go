package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// endTogether makes the kernel end all of a container's processes when its slot is out of
// memory. Otherwise the largest one dies and the rest go on, wrongly. Docker has no option for
// it. A container that has ended is not an error.
func endTogether(cgroupRoot, slice, id string) error {
	file := filepath.Join(cgroupRoot, plan.SliceCgroup(slice), "docker-"+id+".scope", "memory.oom.group")
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("1")
		err = errors.Join(err, f.Close())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("write memory.oom.group: %w", err)
	}
	return nil
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
	until time.Time // valid until then
	root  string    // where the engine keeps images
	armor bool      // the engine lists AppArmor
}

// armored reports whether the engine lists AppArmor. Otherwise it silently ignores the name of a
// profile.
func (c *engineCheck) armored(ctx context.Context) (bool, error) {
	err := c.ok(ctx, time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.armor, err
}

// low returns a function that reports whether the engine's disk is nearly full.
func (c *engineCheck) low(ctx context.Context) (func() bool, error) {
	if err := c.ok(ctx, time.Now()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	root := c.root
	return func() bool { return root != "" && lowOn(root) }, nil
}

// ok returns a sentence if containers would not run below the slot's slice: with the cgroupfs
// driver they run in the engine's own cgroup.
func (c *engineCheck) ok(ctx context.Context, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.until) {
		return nil
	}
	info, err := c.ask(ctx)
	for range engineAsks - 1 {
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			break
		}
		info, err = c.ask(ctx)
	}
	if err != nil {
		return err
	}
	if info.CgroupDriver != "systemd" || info.CgroupVersion != "2" {
		return fmt.Errorf(`the Docker engine uses the cgroup driver %q with cgroup version %q, so a job would have no limits; it must be "systemd" and "2"`, info.CgroupDriver, info.CgroupVersion)
	}
	c.until, c.root = now.Add(engineFresh), info.RootDir
	c.armor = slices.ContainsFunc(info.Security, func(s string) bool { return s == "name=apparmor" || strings.HasPrefix(s, "name=apparmor,") })
	return nil
}
