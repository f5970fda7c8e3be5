package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"
)

const (
	// stopTime is how long a container has to end by itself: killing it in the middle of a
	// kernel leaks GPU memory on ROCm. Docker's default of ten would keep the slot from its next
	// job for longer.
	stopTime = 5 * time.Second
	// inspectTime bounds one inspection: the engine answers in milliseconds, or
	// hangs on something that a job put into its container.
	inspectTime = 10 * time.Second
	// removeDeadline bounds the removal of one container, its stop included.
	removeDeadline = time.Minute
)

// Container is a container that runs.
type Container struct {
	ID      string // 64 hexadecimal digits
	Name    string // without the leading slash
	Image   string // its name as it was given
	Command string
	Labels  map[string]string
}

// Running lists the containers that run. It inspects none, so that none can hold up the answer.
func (e *Engine) Running(ctx context.Context) ([]Container, error) {
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{})
	if err != nil {
		return nil, e.wrap("list containers", err)
	}
	all := make([]Container, len(list.Items))
	for i, c := range list.Items {
		all[i] = Container{ID: c.ID, Name: c.ID, Labels: c.Labels, Image: c.Image, Command: c.Command}
		if len(c.Names) > 0 {
			all[i].Name = strings.TrimPrefix(c.Names[0], "/")
		}
	}
	return all, nil
}

// parentOf returns a container's cgroup parent.
func (e *Engine) parentOf(ctx context.Context, id string) (slice string, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.inspectTime)
	defer cancel()
	in, err := e.Inspect(ctx, id)
	if err == nil && in.HostConfig != nil {
		slice = in.HostConfig.CgroupParent
	}
	return slice, err
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
	errs := make([]error, len(list.Items))
	var group sync.WaitGroup
	for i, c := range list.Items {
		group.Go(func() {
			parent, err := e.parentOf(ctx, c.ID)
			if errors.Is(err, ErrNotFound) || err == nil && parent != slice {
				return
			}
			removed.Add(1)
			errs[i] = e.remove(ctx, c.ID, err == nil)
		})
	}
	group.Wait()
	if err = errors.Join(errs...); err != nil {
		err = fmt.Errorf("clean %s: %w", slice, err)
	}
	return int(removed.Load()), err
}

// remove stops, kills and removes one container. It is not an error if the container is already
// gone, or is being removed because it was run with --rm.
func (e *Engine) remove(ctx context.Context, id string, stop bool) error {
	ctx, cancel := context.WithTimeout(ctx, removeDeadline)
	defer cancel()
	var stopErr error
	if stop {
		stopErr = e.Stop(ctx, id, stopTime)
	}
	err := e.Discard(ctx, id)
	if err != nil { // else the stop's own error is not worth reading
		err = errors.Join(err, stopErr)
	}
	return err
}
