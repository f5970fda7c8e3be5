package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// slicePath returns a slice's directory below the cgroup root. A dash in its name means a
// parent: buildkite-gpu0.slice is in buildkite.slice.
func slicePath(slice string) string {
	name := strings.TrimSuffix(slice, ".slice")
	var dirs []string
	for i, r := range name {
		if r == '-' {
			dirs = append(dirs, name[:i]+".slice")
		}
	}
	return filepath.Join(append(dirs, name+".slice")...)
}

// pageSlack is how much the kernel may round a limit down: to a page, which is at most 64 KiB.
const pageSlack = 64 << 10

// CheckSlice compares what the kernel enforces on the slot's slice below this cgroup root with
// the policy; the error is a sentence with what to type. The engine starts containers below a
// slice that does not exist, and systemd then makes one without any limit, so this is called
// before every container.
func CheckSlice(cgroupRoot string, p plan.JobPolicy) error {
	dir := filepath.Join(cgroupRoot, slicePath(p.Slice))
	err := errors.Join(
		checkSet(dir, "cpuset.cpus.effective", p.CPUs),
		checkSet(dir, "cpuset.mems.effective", p.MemoryNodes),
		checkBytes(dir, "memory.max", p.MemoryBytes-pageSlack+1, p.MemoryBytes),
		checkBytes(dir, "memory.swap.max", 0, 0),
	)
	if err != nil {
		return fmt.Errorf("slot %s does not have its limits, so jobs cannot run; run kbnode reconcile on the node: %w", p.Name, err)
	}
	return nil
}

func checkSet(dir, file, want string) error {
	text, err := readLine(dir, file)
	if err != nil {
		return err
	}
	has, err := cpuset.Parse(text)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	planned, err := cpuset.Parse(want)
	if err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	if !has.Equal(planned) {
		return fmt.Errorf("%s of %s is %q, planned is %q", file, filepath.Base(dir), has, planned)
	}
	return nil
}

func checkBytes(dir, file string, low, high int64) error {
	text, err := readLine(dir, file)
	if err != nil {
		// Without swap in the kernel there is none to limit.
		if file == "memory.swap.max" && errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return fmt.Errorf("%s of %s is %s, planned is %d", file, filepath.Base(dir), text, high)
	}
	return nil
}

func readLine(dir, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(data)), err
}

// endTogether makes the kernel end all of a container's processes when its slot is out of
// memory. Otherwise the largest one dies and the rest go on, wrongly. Docker has no option for
// it. A container that has ended is not an error.
func endTogether(cgroupRoot, slice, id string) error {
	file := filepath.Join(cgroupRoot, slicePath(slice), "docker-"+id+".scope", "memory.oom.group")
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
