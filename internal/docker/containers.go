package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

const (
	// stopSeconds is how long a container has to end by itself: killing it in the middle of a
	// kernel leaks GPU memory on ROCm. Docker's default of ten would keep the slot from its next
	// job for longer.
	stopSeconds = 5
	// inspectTime bounds one inspection: the engine answers in milliseconds, or
	// hangs on something that a job put into its container.
	inspectTime = 10 * time.Second
	// removeDeadline bounds the removal of one container, its stop included.
	removeDeadline = time.Minute
	// atOnce is how many containers are inspected or removed concurrently.
	atOnce = 8
)

// Container is a container of the engine, running or not.
type Container struct {
	ID           string // 64 hexadecimal digits
	Name         string // without the leading slash
	State        string // "created", "running", "exited", …
	CgroupParent string // a slice, such as "buildkite-gpu0.slice"; "" for the engine's own
	Labels       map[string]string
	// Only Running reports these: the image's name as it was given, and the command line.
	Image, Command string
}

// Filter selects containers. Zero fields select everything.
type Filter struct {
	Slice string // the cgroup parent
	Label string // "name" or "name=value"
}

// Containers lists the containers that match, running or not, except those that disappear
// meanwhile.
func (e *Engine) Containers(ctx context.Context, f Filter) ([]Container, error) {
	opts := client.ContainerListOptions{All: true}
	if f.Label != "" {
		opts.Filters = client.Filters{}.Add("label", f.Label)
	}
	list, err := e.api.ContainerList(ctx, opts)
	if err != nil {
		return nil, e.wrap("list containers", err)
	}
	// The list does not include the cgroup parent.
	found := make([]*Container, len(list.Items))
	err = each(len(list.Items), func(i int) error {
		c, err := e.inspect(ctx, list.Items[i].ID)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if f.Slice == "" || c.CgroupParent == f.Slice {
			found[i] = &c
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []Container
	for _, c := range found {
		if c != nil {
			out = append(out, *c)
		}
	}
	return out, nil
}

// Running lists the containers that run. It inspects none, so that none can hold up the answer,
// and their cgroup parents are not known.
func (e *Engine) Running(ctx context.Context) ([]Container, error) {
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{})
	if err != nil {
		return nil, e.wrap("list containers", err)
	}
	all := make([]Container, len(list.Items))
	for i, c := range list.Items {
		all[i] = Container{ID: c.ID, Name: c.ID, State: string(c.State), Labels: c.Labels, Image: c.Image, Command: c.Command}
		if len(c.Names) > 0 {
			all[i].Name = strings.TrimPrefix(c.Names[0], "/")
		}
	}
	return all, nil
}

func (e *Engine) inspect(ctx context.Context, id string) (Container, error) {
	ctx, cancel := context.WithTimeout(ctx, e.inspectTime)
	defer cancel()
	in, err := e.Inspect(ctx, id)
	if err != nil {
		return Container{}, err
	}
	c := Container{ID: in.ID, Name: strings.TrimPrefix(in.Name, "/")}
	if in.State != nil {
		c.State = string(in.State.Status)
	}
	if in.Config != nil {
		c.Labels = in.Config.Labels
	}
	if in.HostConfig != nil {
		c.CgroupParent = in.HostConfig.CgroupParent
	}
	return c, nil
}

// CleanSlot removes the containers that have this label ("name=value") and whose cgroup parent
// is this slice, with their anonymous volumes, and returns how many there were. Each has five
// seconds to end by itself. It asks nothing about a container without the label, so one that
// hangs the engine's answer holds up no other slot. One that has the label but cannot be
// inspected is removed by its ID: only a slot's guard sets the label.
func (e *Engine) CleanSlot(ctx context.Context, slice, label string) (int, error) {
	name, value, _ := strings.Cut(label, "=")
	if !strings.HasSuffix(slice, ".slice") || strings.Contains(slice, "/") || name == "" || value == "" {
		return 0, fmt.Errorf("clean slot: %q and %q are not a slice and a label", slice, label)
	}
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return 0, fmt.Errorf("clean %s: %w", slice, e.wrap("list containers", err))
	}
	var removed atomic.Int32
	err = each(len(list.Items), func(i int) error {
		id := list.Items[i].ID
		c, err := e.inspect(ctx, id)
		if errors.Is(err, ErrNotFound) || err == nil && c.CgroupParent != slice {
			return nil
		}
		removed.Add(1)
		return e.remove(ctx, id, err == nil)
	})
	if err != nil {
		return int(removed.Load()), fmt.Errorf("clean %s: %w", slice, err)
	}
	return int(removed.Load()), nil
}

// remove stops, kills and removes one container. It is not an error if the container is already
// gone, or is being removed because it was run with --rm.
func (e *Engine) remove(ctx context.Context, id string, stop bool) error {
	ctx, cancel := context.WithTimeout(ctx, removeDeadline)
	defer cancel()
	var stopErr error
	if stop {
		seconds := stopSeconds
		_, stopErr = e.api.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
		if errdefs.IsNotFound(stopErr) {
			return nil
		}
	}
	if err := e.Discard(ctx, id); err != nil {
		// The stop's own error is worth reading only if the removal did not work.
		return errors.Join(err, stopErr)
	}
	return nil
}

// awaitRemoval waits until a removal that someone else began is complete.
func (e *Engine) awaitRemoval(ctx context.Context, id string) error {
	wait := e.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	select {
	case err := <-wait.Error:
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		return e.wrap("wait until container "+id+" is removed", err)
	case <-wait.Result:
		return nil
	case <-ctx.Done():
		return e.wrap("wait until container "+id+" is removed", ctx.Err())
	}
}

// each calls do for 0 to n-1, atOnce of them concurrently, and joins the errors.
func each(n int, do func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
