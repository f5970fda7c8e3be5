package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
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
		return g.givePipeline(r)
	}
	wanted, err := fromSpec(g.policyFor(ctx), g.facts, spec, r.checkout())
	if err != nil {
		return forbid("%s", err)
	}
	if err := g.provide(ctx, spec, wanted.Image, frames); err != nil {
		return err
	}
	ctx, end = r.orCanceled(context.WithoutCancel(caller))
	defer end()
	defer context.AfterFunc(g.stopping, func() { time.AfterFunc(startTime, end) })()
	var id string
	err = g.within(ctx, func(ctx context.Context) error {
		create := &call{r: internal(ctx), method: http.MethodPost, path: "containers/create", query: url.Values{}}
		resp, body, made, err := g.build(create, wanted)
		if err == nil && made == "" {
			err = engineSays(resp.StatusCode, body)
		}
		id = made
		return err
	})
	if err != nil {
		return err
	}
	if err = g.save(r, id); err == nil {
		err = g.within(ctx, func(ctx context.Context) (err error) {
			r.output, err = g.api.Attach(ctx, id, spec.TTY)
			return err
		})
	}
	if err == nil {
		err = g.within(ctx, func(ctx context.Context) error { return g.startContainer(ctx, id) })
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
		g.preparing.Lock()
		defer g.preparing.Unlock()
		if ctx.Err() != nil {
			return // the next job may have begun
		}
		parked, err := g.keeper.Begin(ctx, pid)
		if err = errors.Join(err, parkedError(parked)); err == nil {
			err = g.clearRuns()
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

func (g *guard) startContainer(ctx context.Context, id string) error {
	start := &call{r: internal(ctx), method: http.MethodPost, path: "containers/" + id + "/start", id: id, query: url.Values{}}
	resp, err := g.launch(start)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	body, err := readAll(resp)
	return errors.Join(engineSays(resp.StatusCode, body), err)
}

func parkedError(reason string) error {
	if reason == "" {
		return nil
	}
	return errors.New("the slot is parked: " + reason)
}

// internal is a request of the service's own to the engine.
func internal(ctx context.Context) *http.Request { return (&http.Request{}).WithContext(ctx) }

// engineSays tells a job's mistake, such as a program that its image lacks, from the engine's.
func engineSays(status int, body []byte) error {
	says := "the Docker engine says: " + text.Line(string(body), 500)
	if status == http.StatusBadRequest {
		return forbid("%s", says)
	}
	return errors.New(says)
}
