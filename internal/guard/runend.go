package guard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/witness"
)

const (
	// engineAway is how long an engine may be away, as during a restart, before its job has ended.
	engineAway = 5 * time.Minute
	// readPoll is the time between two checks of whether all output was read.
	readPoll = 10 * time.Millisecond
	// removeTime is how long the removal of a container may take: there may be many files in it.
	removeTime = time.Minute
	// answerTime is how long the engine may then take to say whether the job still runs.
	answerTime = time.Second
	// exitKilled is the exit status of a job that SIGKILL ended.
	exitKilled = 128 + int(unix.SIGKILL)
	// exitUnknown is what an engine that comes back gives a container of whose end containerd does not know either.
	exitUnknown = 255
	// exitLate is the exit status of a job that took too long and ended with 0: that of SIGTERM.
	exitLate = 128 + int(unix.SIGTERM)
	// enginePeriod is the time between two checks of an engine that has nothing to say.
	enginePeriod = time.Minute
)

// supervise waits for a job's end, with or without a reader of its output, and prepares what it leaves.
// If the service is to stop, the next one does.
func (g *guard) supervise(r *jobRun) {
	if !r.ended {
		r.outcome = g.awaitOrCancel(r)
		if g.stopping.Err() != nil {
			return
		}
		g.tellUnrunnable(r)
		r.ended = true
		if err := g.save(r, r.container); err != nil {
			g.log.Warn("end of the job not recorded", "job", r.spec.JobID, "err", err)
		}
	}
	close(r.exited)
	// The log ends with the container.
	for late := time.Now().Add(r.drainTime()); r.readers.Load() > 0 && time.Now().Before(late); {
		time.Sleep(readPoll)
	}
	if g.stopping.Err() != nil {
		return
	}
	if err := g.settle(context.Background(), r); err != nil {
		g.log.Warn("nothing is uploaded", "job", r.spec.JobID, "err", err)
		why := "nothing is uploaded: " + err.Error()
		if _, own := errors.AsType[agent.LimitError](err); own || len(r.spec.Artifacts) == 0 {
			r.outcome.Reason = strings.TrimPrefix(r.outcome.Reason+"; "+why, "; ")
		} else {
			r.outcome.Lost = why
		}
	}
	r.settled = true
	if err := g.save(r, r.container); err != nil {
		g.log.Warn("end of the job not recorded", "job", r.spec.JobID, "err", err)
	}
	g.runs.mu.Lock()
	if r.output != nil { // no one read it
		r.output.Close()
	}
	g.runs.mu.Unlock()
	r.finish()
}

// awaitOrCancel waits for the end of a job's container, and ends it if the job is canceled or takes too
// long. Then it returns in time for the agent, even if the engine does not answer.
func (g *guard) awaitOrCancel(r *jobRun) slot.Outcome {
	ctx, cancel := context.WithCancel(g.stopping)
	defer cancel()
	ended := make(chan slot.Outcome, 1)
	go func() { ended <- g.await(ctx, r) }()
	select {
	case o := <-ended:
		return o
	case <-r.canceled.Done():
	}
	grace := g.stopGrace
	stopping, done := context.WithTimeout(ctx, grace+stopSlack)
	defer done()
	go func() {
		for stopping.Err() == nil && g.api.Stop(stopping, r.container, grace) != nil {
			_ = limit.Sleep(stopping, enginePoll) // the engine is away
		}
	}()
	var o slot.Outcome
	select {
	case o = <-ended:
	case <-stopping.Done():
		o = g.endLate(ctx, r)
	}
	if o.Canceled = true; r.late.Load() {
		o.Reason = g.errLate().Error()
		if o.ExitCode == 0 { // also one that ends well at SIGTERM did not pass
			o.ExitCode = exitLate
		}
		g.log.Warn("job terminated", "job", r.spec.JobID, "reason", o.Reason)
	}
	return o
}

// endLate returns the outcome of a job that has not ended in its time: the engine's fault only if the engine
// does not answer.
func (g *guard) endLate(ctx context.Context, r *jobRun) slot.Outcome {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	in, err := g.api.Inspect(ctx, r.container)
	switch {
	case err != nil:
		return slot.Outcome{NodeFault: "the Docker engine does not answer, so the job may still run"}
	case in.State != nil && !in.State.Running:
		return slot.Outcome{ExitCode: in.State.ExitCode, OutOfMemory: in.State.OOMKilled}
	}
	return slot.Outcome{ExitCode: exitKilled, Reason: fmt.Sprintf("the job was killed: it did not end within %s after SIGTERM", g.stopGrace)}
}

// await waits for the end of a container, also while the engine is away.
func (g *guard) await(ctx context.Context, r *jobRun) slot.Outcome {
	var since time.Time
	gave := r.root // an agent that starts clears away what root runs
	for {
		waiting, done := context.WithTimeout(ctx, enginePeriod)
		own, err := g.api.AwaitOwnEnd(waiting, r.container)
		silent := waiting.Err() != nil
		done()
		in, err2 := g.inspectJob(ctx, r.container)
		runs := err2 == nil && in.State != nil && in.State.Running
		switch {
		case errors.Is(err2, docker.ErrNotFound):
			return slot.Outcome{NodeFault: "the job's container was removed", Canceled: gave}
		case err == nil && err2 == nil && !runs:
			if r.canceled.Err() != nil {
				return slot.Outcome{ExitCode: in.State.ExitCode, OutOfMemory: in.State.OOMKilled}
			}
			if r.orphaned() {
				return slot.Outcome{NodeFault: "the process above the job's container, containerd-shim, was killed, which ended the job", Canceled: gave}
			}
			if !own && (in.State.ExitCode == exitUnknown || !g.endedAlone(ctx, r)) {
				why := "which ended the job; with live-restore jobs go on"
				if r.restores {
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
			return slot.Outcome{NodeFault: "the slot's service ended"}
		}
	}
}

// endedAlone reports whether a container of whose end the engine tells nothing has ended by itself: while an engine was
// away that lets containers go on, now and when the job started. containerd has told it how.
func (g *guard) endedAlone(ctx context.Context, r *jobRun) bool {
	engine, err := g.engineInfo(ctx)
	if err != nil || !engine.LiveRestoreEnabled || !r.restores {
		return false
	}
	signaled, err := g.api.Signaled(ctx, r.container)
	return err == nil && !signaled
}

// settle ends what a job left, and gives the agent the files that it may upload: no links out of
// the checkout, no pipes, and no result that was not finished.
func (g *guard) settle(ctx context.Context, r *jobRun) error {
	o := &r.outcome
	rec, recErr := g.cleaner.noiseRecord(ctx)
	rec.Profile, rec.Protection.Containers = r.profile, r.protection
	if o.ExitCode == exitKilled && o.NodeFault == "" && rec.Memory.Kills != nil && *rec.Memory.Kills > 0 {
		o.OutOfMemory = true // the engine misses some
	}
	patience := removeTime
	if o.Canceled && (o.NodeFault != "" || o.ExitCode == exitKilled) {
		patience = discardTime // the agent does not wait much longer
	}
	err := g.discardJob(r.container, patience)
	if err == nil { // the engine may have lost it
		_, err = g.cleaner.procs.endBeside(ctx)
	}
	if err != nil {
		return fmt.Errorf("something may still run: %w", err)
	}
	if len(r.spec.Artifacts) == 0 {
		return nil
	}
	if _, err := os.Lstat(r.checkout()); errors.Is(err, fs.ErrNotExist) {
		if _, err = os.Lstat(r.files()); err == nil { // an earlier service came as far
			o.Files = r.files()
			return nil
		}
	}
	status := strconv.Itoa(o.ExitCode)
	if o.NodeFault != "" {
		status = "-1"
	}
	// Before Sift, which removes links to what is gone.
	if rec.Implausible, err = witness.Take(r.checkout(), status); err == nil && len(rec.Implausible) > 0 {
		err = slot.CountImplausible(g.cleaner.runDir)
	}
	if err != nil {
		g.log.Warn("what is implausible about the job is not known", "job", r.spec.JobID, "err", err)
	}
	forged, err := agent.Sift(ctx, r.checkout(), r.spec.Artifacts, status, o.Canceled)
	if err != nil {
		return err
	}
	if len(forged) > 0 {
		o.Reason = strings.TrimPrefix(o.Reason+fmt.Sprintf("; %.200q is not uploaded: only the job's own may have that name, at the top of the checkout; name another file differently", forged), "; ")
	}
	if recErr == nil {
		recErr = writeRecord(r.checkout(), rec)
	}
	if recErr != nil { // as on a full disk
		g.log.Warn("no node.json", "job", r.spec.JobID, "err", recErr)
	}
	// Not while the slot is cleared, as for an agent that did not wait: that would miss what moves.
	g.cleaner.mu.Lock()
	defer g.cleaner.mu.Unlock()
	return r.give()
}

// writeRecord writes node.json, which is not there, as a whole or not at all: the job may have filled the disk.
func writeRecord(dir string, rec noise.Record) error {
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, result.NodeFile), append(text, '\n'), 0o644)
}

// cancelRun ends a job that starts or runs.
func (g *guard) cancelRun(c *call) error {
	g.runs.mu.Lock()
	r := g.runs.last
	g.runs.mu.Unlock()
	if id := c.query.Get(slot.JobParam); r == nil || r.spec.JobID != id {
		return refusal{http.StatusNotFound, "kbnode: the slot does not run job " + id}
	}
	r.stop()
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
