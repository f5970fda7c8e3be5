package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

const (
	// engineAway is how long an engine may be away, as during a restart, before its job has ended.
	engineAway = 5 * time.Minute
	// engineSays is how long the engine may take to say whether a job that should have ended still runs.
	engineSays = time.Second
	// exitKilled is the exit status of a job that SIGKILL ended.
	exitKilled = 128 + int(unix.SIGKILL)
	// exitUnknown is what an engine that comes back gives a container of whose end containerd does not know either.
	exitUnknown = 255
	// exitLate is the exit status of a job that took too long and ended with 0: that of SIGTERM.
	exitLate = 128 + int(unix.SIGTERM)
	// enginePeriod is the time between two checks of an engine that has nothing to say.
	enginePeriod = time.Minute
)

// attend gives a job's output to its client until the job has ended, and returns how.
func (g *guard) attend(ctx context.Context, r *jobRun, c *running) slot.Outcome {
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	read := make(chan struct{})
	go func() {
		defer close(read)
		g.follow(reading, r, c)
	}()
	o := g.awaitOrCancel(ctx, r, c)
	drain := drainTime
	if ctx.Err() != nil {
		drain = canceledDrainTime // the agent does not wait for long
	}
	select { // the log ends with the container
	case <-read:
	case <-time.After(drain):
	}
	return o
}

// awaitOrCancel waits for the end of a job's container, and ends it if the job is canceled or takes too
// long. Then it returns in time for the agent, even if the engine does not answer.
func (g *guard) awaitOrCancel(ctx context.Context, r *jobRun, c *running) slot.Outcome {
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan slot.Outcome, 1)
	go func() { ended <- g.await(waiting, ctx, r, c) }()
	select {
	case o := <-ended:
		return o
	case <-ctx.Done():
	}
	stopping, done := context.WithTimeout(waiting, g.stopGrace+stopSlack)
	defer done()
	go func() {
		for stopping.Err() == nil && g.api.Stop(stopping, c.id, g.stopGrace) != nil {
			_ = limit.Sleep(stopping, enginePoll) // the engine is away
		}
	}()
	var o slot.Outcome
	select {
	case o = <-ended:
	case <-stopping.Done():
		o = g.endLate(waiting, c)
	}
	o.Canceled = true
	if late, ok := errors.AsType[*lateError](context.Cause(ctx)); ok {
		o.Reason = late.Error()
		if o.ExitCode == 0 { // also one that ends well at SIGTERM did not pass
			o.ExitCode = exitLate
		}
		g.log.Warn("job terminated", "job", r.spec.JobID, "reason", o.Reason)
	}
	return o
}

// endLate returns the outcome of a job that has not ended in its time: the engine's fault only if the engine
// does not answer.
func (g *guard) endLate(ctx context.Context, c *running) slot.Outcome {
	ctx, cancel := context.WithTimeout(ctx, engineSays)
	defer cancel()
	in, err := g.api.Inspect(ctx, c.id)
	switch {
	case err != nil:
		return slot.Outcome{NodeFault: "the Docker engine does not answer, so the job may still run"}
	case in.State != nil && !in.State.Running:
		return slot.Outcome{ExitCode: in.State.ExitCode, OutOfMemory: in.State.OOMKilled}
	}
	return slot.Outcome{ExitCode: exitKilled, Reason: fmt.Sprintf("the job was killed: it did not end within %s after SIGTERM", g.stopGrace)}
}

// await waits for the end of a container, also while the engine is away. job ends when the job is to end.
func (g *guard) await(ctx, job context.Context, r *jobRun, c *running) slot.Outcome {
	var since time.Time
	gave := r.root // an agent that starts clears away what root runs
	for {
		waiting, done := context.WithTimeout(ctx, enginePeriod)
		own, err := g.api.AwaitOwnEnd(waiting, c.id)
		silent := waiting.Err() != nil
		done()
		in, err2 := g.inspectJob(ctx, c.id)
		runs := err2 == nil && in.State != nil && in.State.Running
		switch {
		case errors.Is(err2, docker.ErrNotFound):
			return slot.Outcome{NodeFault: "the job's container was removed", Canceled: gave}
		case err == nil && err2 == nil && !runs:
			if job.Err() != nil {
				return slot.Outcome{ExitCode: in.State.ExitCode, OutOfMemory: in.State.OOMKilled}
			}
			if c.orphaned() {
				return slot.Outcome{NodeFault: "the process above the job's container, containerd-shim, was killed, which ended the job", Canceled: gave}
			}
			if !own && (in.State.ExitCode == exitUnknown || !g.endedAlone(ctx, c)) {
				why := "which ended the job; with live-restore jobs go on"
				if c.restores {
					why = "and does not know how the job ended"
				}
				return slot.Outcome{NodeFault: "the Docker engine was restarted, or had the job's container stopped, " + why, Canceled: gave}
			}
			return slot.Outcome{ExitCode: in.State.ExitCode, OutOfMemory: in.State.OOMKilled}
		case runs, silent && err2 == nil: // it may have ended meanwhile: ask again
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > engineAway:
			return slot.Outcome{NodeFault: fmt.Sprintf("the Docker engine does not answer: %v", cmp.Or(err2, err))}
		}
		if limit.Sleep(ctx, enginePoll) != nil {
			return slot.Outcome{NodeFault: "the job's process ended"}
		}
	}
}

// endedAlone reports whether a container of whose end the engine tells nothing has ended by itself: while an engine was
// away that lets containers go on, now and when the job started. containerd has told it how.
func (g *guard) endedAlone(ctx context.Context, c *running) bool {
	engine, err := g.engineInfo(ctx)
	if err != nil || !engine.LiveRestoreEnabled || !c.restores {
		return false
	}
	signaled, err := g.api.Signaled(ctx, c.id)
	return err == nil && !signaled
}

func (g *guard) inspectJob(ctx context.Context, id string) (container.InspectResponse, error) {
	return withTimeout(ctx, g.engineTime, func(ctx context.Context) (container.InspectResponse, error) { return g.api.Inspect(ctx, id) })
}
