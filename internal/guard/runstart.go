package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// launchJob makes a job's checkout and container, and starts it. It ends with its caller or the job,
// except for the start itself: what has begun to start runs on for the next caller.
func (g *guard) launchJob(caller context.Context, r *jobRun, frames *slot.Frames) error {
	ctx, end := r.orCanceled(caller)
	defer end()
	spec := r.spec
	if err := g.prepare(ctx, r.pid); err != nil {
		return err
	}
	r.top = filepath.Join(g.policy.WorkRoot, runPrefix+rand.Text())
	if err := g.fill(ctx, r, frames); err != nil {
		return err
	}
	if spec.Kind == job.KindUpload {
		return r.givePipeline()
	}
	wanted, err := fromSpec(r.policy, g.facts, spec, r.checkout())
	if err != nil {
		return forbid("%s", err)
	}
	if err := g.provide(ctx, spec, wanted.Image, frames); err != nil {
		return err
	}
	ctx, end = r.orCanceled(context.WithoutCancel(caller))
	defer end()
	defer context.AfterFunc(g.stopping, func() { time.AfterFunc(startTime, end) })()
	id, err := withTimeout(ctx, g.engineTime, func(ctx context.Context) (string, error) { return g.create(ctx, wanted, r.top) })
	if err != nil {
		return err
	}
	if err = g.save(r, id); err == nil {
		r.output, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (*docker.Output, error) { return g.api.Attach(ctx, id, spec.TTY) })
	}
	if err == nil {
		_, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (any, error) { return nil, g.start(ctx, id, wanted, r.top) })
	}
	if err == nil {
		r.container = id
		return nil
	}
	if r.output != nil {
		r.output.Close()
	}
	// The engine may have started it all the same.
	if err := g.discardJob(id, discardTime); err != nil {
		g.log.Warn("container left behind", "id", id, "err", err)
	}
	return err
}

// startTime is how long a service that is to stop waits for a container to start.
const startTime = 5 * time.Second

// discardTime is how long a removal may take for which someone waits.
const discardTime = 2 * time.Second

// discardJob removes a container.
func (g *guard) discardJob(id string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return g.api.Discard(ctx, id)
}

// prepare clears away earlier jobs. What takes long goes on if ctx ends.
func (g *guard) prepare(ctx context.Context, pid int) error {
	prepared := make(chan error, 1)
	go func() {
		parked, err := g.cleaner.begin(ctx, pid)
		if err == nil && parked != "" {
			err = errors.New("the slot is parked: " + parked)
		}
		prepared <- err
	}()
	select {
	case err := <-prepared:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
