package guard

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"
	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// launchJob makes a job's checkout and container, and starts it. It ends with its caller or the job,
// except for the start itself: what has begun to start runs on for the next caller.
func (g *guard) launchJob(caller context.Context, r *jobRun, frames *slot.Frames) error {
	ctx, end := firstEnd(caller, r.canceled)
	defer end()
	spec := r.spec
	if err := g.prepare(ctx, r.root); err != nil {
		return err
	}
	if r.foreign != nil {
		return r.foreign
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
	name, err := engineName(wanted.Image, r.root)
	if err != nil {
		return err
	}
	image, err := g.provide(ctx, spec, name, frames)
	if err != nil {
		return g.answered(err, spec, wanted, true)
	}
	ctx, end = firstEnd(context.WithoutCancel(caller), r.canceled)
	defer end()
	defer context.AfterFunc(g.stopping, func() { time.AfterFunc(startTime, end) })()
	id, err := withTimeout(ctx, g.engineTime, func(ctx context.Context) (string, error) { return g.create(ctx, wanted, image, r) })
	if err != nil {
		return g.answered(err, spec, wanted, true)
	}
	if g.cleaner.cleared() { // the agent was lost, and what clears its slot did not find the container yet
		err = errCanceled
	}
	if err == nil {
		err = g.save(r, id)
	}
	if err == nil {
		r.output, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (*docker.Output, error) { return g.api.Attach(ctx, id, spec.TTY) })
	}
	if err == nil {
		_, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (any, error) { return nil, g.start(ctx, id, wanted, r.top) })
	}
	if err == nil {
		procs := g.cleaner.procs
		r.container, r.profile, r.protection = id, wanted.Labels[profileLabel], []noise.Container{noise.ReadContainer(procs.proc, procs.container(id))}
		return nil
	}
	if r.output != nil {
		r.output.Close()
	}
	// The engine may have started it all the same.
	err2 := g.discardJob(id, discardTime)
	if err2 == nil {
		err2 = g.save(r, "") // so that the next service starts it, if this one is to stop
	}
	if err2 != nil {
		g.log.Warn("container left behind", "id", id, "err", err2)
	}
	return g.answered(err, spec, wanted, false)
}

// startTime is how long a service that is to stop waits for a container to start.
const startTime = 5 * time.Second

// discardTime is how long a removal may take for which someone waits.
const discardTime = 2 * time.Second

// discardJob removes a container. If it takes longer, everything in the slot's containers is killed first.
func (g *guard) discardJob(id string, within time.Duration) error {
	discard := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		return g.api.Discard(ctx, id)
	}
	err := discard()
	if err != nil {
		err = g.cleaner.procs.freeing(discard)
	}
	return err
}

// prepare clears away earlier jobs. What takes long goes on if ctx ends.
func (g *guard) prepare(ctx context.Context, root bool) error {
	prepared := make(chan error, 1)
	go func() {
		parked, err := g.cleaner.begin(ctx, root)
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

// runRecord is what the next service has to know of the slot's last job: labels of its container
// could be its image's. It is on no disk that a job can fill, and ends with the boot, as containers do.
type runRecord struct {
	JobID     string        `json:"job_id"`
	Top       string        `json:"top"`       // name of the job's directory
	Container string        `json:"container"` // ID; "" for one whose start failed
	Outcome   *slot.Outcome `json:"outcome,omitempty"`
	Settled   bool          `json:"settled,omitempty"`
	Restores  bool          `json:"restores,omitempty"` // jobRun.restores
	Over      []string      `json:"over,omitempty"`     // jobs before
}

func (g *guard) recordPath() string { return filepath.Join(filepath.Dir(g.policy.Socket), "job.json") }

// save records a job for the next service.
func (g *guard) save(r *jobRun, container string) error {
	g.runs.mu.Lock()
	rec := runRecord{JobID: r.spec.JobID, Top: filepath.Base(r.top), Container: container, Settled: r.settled, Restores: r.restores, Over: slices.Clone(g.runs.over)}
	g.runs.mu.Unlock()
	if r.ended {
		rec.Outcome = &r.outcome
	}
	text, err := json.Marshal(rec)
	if err == nil {
		err = renameio.WriteFile(g.recordPath(), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record the job: %w", err)
	}
	return nil
}

// load reads what was recorded of the slot's last job. What cannot be read is no job: the next one
// replaces it.
func (g *guard) load() (rec runRecord) {
	text, err := os.ReadFile(g.recordPath())
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.log.Warn("last job not known", "err", err)
		return runRecord{}
	}
	return rec
}

// takeUp finds the container of a job that an earlier service started.
func (g *guard) takeUp(ctx context.Context, r *jobRun) error {
	rec := g.load()
	if rec.JobID != r.spec.JobID {
		return nil
	}
	r.top, r.settled, r.restores = filepath.Join(g.policy.WorkRoot, rec.Top), rec.Settled, rec.Restores
	if r.ended = rec.Outcome != nil; r.ended {
		r.container, r.outcome = rec.Container, *rec.Outcome
		return nil
	}
	if rec.Container == "" {
		return nil
	}
	in, err := g.inspectJob(ctx, rec.Container)
	for began := time.Now(); err != nil && !errors.Is(err, docker.ErrNotFound) && time.Since(began) < engineAway && limit.Sleep(ctx, enginePoll) == nil; {
		in, err = g.inspectJob(ctx, rec.Container)
	}
	switch {
	case err == nil && in.State != nil && in.State.Status == container.StateCreated:
		// It never ran: its start may have failed, or was never asked for.
		if _, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (any, error) { return nil, g.api.Discard(ctx, rec.Container) }); err == nil {
			err = g.save(r, "")
		}
		return err
	case err != nil && !errors.Is(err, docker.ErrNotFound) && r.canceled.Err() == nil:
		return fmt.Errorf("find the job's container: %w", err)
	}
	r.container = rec.Container // one that was removed has run
	return nil
}

func (g *guard) inspectJob(ctx context.Context, id string) (container.InspectResponse, error) {
	return withTimeout(ctx, g.engineTime, func(ctx context.Context) (container.InspectResponse, error) { return g.api.Inspect(ctx, id) })
}
