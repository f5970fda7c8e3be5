package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"path/filepath"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

// launchJob makes a job's checkout and container, and starts it.
func (g *guard) launchJob(ctx context.Context, r *jobRun, frames *slot.Frames) (err error) {
	spec := r.spec
	if parked, err := g.keeper.Report(ctx, slot.BeginPath, r.pid, func(string) {}); err != nil || parked != "" {
		return errors.Join(err, parkedError(parked))
	}
	if err := g.clearRuns(); err != nil {
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
	create := &call{r: internal(ctx), method: http.MethodPost, path: "containers/create", query: url.Values{}}
	resp, body, id, err := g.build(create, wanted)
	if err != nil {
		return err
	}
	if id == "" {
		return engineSays(resp.StatusCode, body)
	}
	if r.output, err = g.api.Attach(context.WithoutCancel(ctx), id, spec.TTY); err == nil {
		err = g.startContainer(ctx, id)
	}
	if err == nil {
		r.container = id
		return nil
	}
	if r.output != nil {
		r.output.Close()
	}
	// The engine may have started it all the same.
	if err := g.api.Discard(context.WithoutCancel(ctx), id); err != nil {
		g.log.Warn("container left behind", "id", id, "err", err)
	}
	return err
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
