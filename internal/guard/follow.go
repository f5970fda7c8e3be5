package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// enginePoll is the time between two tries to reach an engine that is being restarted, and
	// engineAway how long it may take.
	enginePoll = 500 * time.Millisecond
	engineAway = 5 * time.Minute
	// streamEnds is how long the stream of a container that is gone may go on.
	streamEnds = 5 * time.Second
	// wholeLog is how much output the engine's log is sure to have from the beginning, in bytes.
	wholeLog = 8 << 20
)

// position is how much of a job's output its reader has.
type position struct {
	stdout, stderr int64 // bytes
	at             time.Time
}

// follow sends a job's output to its reader, until the job or the reader ends. Where the stream
// breaks off because the engine is restarted, it goes on from the engine's log.
func (g *guard) follow(ctx context.Context, r *jobRun, frames *slot.Frames, has position) {
	g.runs.mu.Lock()
	output := r.output
	r.output = nil // the next reader begins with the log
	g.runs.mu.Unlock()
	skip, logged := position{}, false
	for {
		if output != nil {
			before := has
			reading, read := context.WithCancel(ctx)
			context.AfterFunc(reading, output.Close)
			go func() { // the engine ends the stream with the container
				select {
				case <-r.done:
					_ = limit.Sleep(reading, streamEnds) // or it was read
					read()
				case <-reading.Done():
				}
			}()
			err := output.Copy(&counter{frames.Writer(slot.FrameStdout), &has.stdout, &has.at, skip.stdout}, &counter{frames.Writer(slot.FrameStderr), &has.stderr, &has.at, skip.stderr})
			read()
			g.log.Debug("output ended", "job", r.spec.JobID, "err", err)
			if logged && has == before { // all slots share the engine: do not ask without a pause
				_ = limit.Sleep(ctx, enginePoll)
			}
		}
		if ctx.Err() != nil {
			return
		}
		in, err := g.api.Inspect(ctx, r.container)
		switch {
		case errors.Is(err, docker.ErrNotFound):
			return
		case err == nil && (in.State == nil || !in.State.Running) && output != nil:
			return // it was read to its end
		case err == nil:
			var since time.Time
			if skip = has; has.stdout+has.stderr > wholeLog {
				skip, since = position{}, has.at
			}
			logged = true
			output, err = g.api.Follow(ctx, r.container, r.spec.TTY, since)
		}
		if err != nil {
			output = nil
			select {
			case <-r.done:
				return
			case <-ctx.Done():
				return
			case <-time.After(enginePoll):
			}
		}
	}
}

// counter counts what its reader has, and leaves out what it had before.
type counter struct {
	to   interface{ Write([]byte) (int, error) }
	has  *int64
	at   *time.Time
	skip int64
}

func (c *counter) Write(p []byte) (int, error) {
	n := len(p)
	if c.skip > 0 {
		old := min(c.skip, int64(len(p)))
		c.skip -= old
		p = p[old:]
	}
	if len(p) == 0 {
		return n, nil
	}
	if _, err := c.to.Write(p); err != nil {
		return 0, err
	}
	*c.has += int64(len(p))
	*c.at = time.Now()
	return n, nil
}

// supervise waits for a job's end, with or without a reader of its output, and prepares what it leaves.
func (g *guard) supervise(r *jobRun) {
	ctx := context.Background()
	ended := make(chan slot.Outcome, 1)
	go func() { ended <- g.await(ctx, r.container) }()
	var o slot.Outcome
	select {
	case o = <-ended:
	case <-r.cancel:
		for g.api.Stop(ctx, r.container, stopGrace) != nil && len(ended) == 0 {
			_ = limit.Sleep(ctx, enginePoll) // the engine is away
		}
		o = <-ended
		o.Canceled = true
	}
	if err := g.settle(ctx, r, &o); err != nil {
		g.log.Warn("nothing is uploaded", "job", r.spec.JobID, "err", err)
		o.Reason = strings.TrimPrefix(o.Reason+"; nothing is uploaded: "+err.Error(), "; ")
	}
	r.outcome = o
	close(r.done)
}

// await waits for the end of a container, also while the engine is away.
func (g *guard) await(ctx context.Context, id string) slot.Outcome {
	restarted := false
	var since time.Time
	for {
		err := g.api.AwaitEnd(ctx, id)
		// A socket that systemd holds makes the engine look slow, and not away, to the next request.
		restarted = restarted || err != nil
		in, err2 := g.api.Inspect(ctx, id)
		switch {
		case errors.Is(err2, docker.ErrNotFound):
			return slot.Outcome{NodeFault: "the job's container was removed"}
		case err2 == nil && in.State != nil && !in.State.Running:
			if restarted {
				return slot.Outcome{NodeFault: "the Docker engine was restarted, which ended the job; with live-restore jobs go on"}
			}
			return slot.Outcome{ExitCode: in.State.ExitCode, OutOfMemory: in.State.OOMKilled}
		case err2 == nil && err == nil:
			since = time.Time{}
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		if err2 != nil && time.Since(since) > engineAway {
			return slot.Outcome{NodeFault: fmt.Sprintf("the Docker engine does not answer: %v", err2)}
		}
		if err2 == nil {
			restarted, since = false, time.Time{} // it goes on
		}
		if limit.Sleep(ctx, enginePoll) != nil {
			return slot.Outcome{NodeFault: "the slot's service ended"}
		}
	}
}

// settle ends what a job left, and gives the agent the files that it may upload: no links out of
// the checkout, no pipes, and no result that was not finished.
func (g *guard) settle(ctx context.Context, r *jobRun, o *slot.Outcome) error {
	rec, recErr := g.keeper.Record(ctx, r.pid)
	if err := g.api.Discard(ctx, r.container); err != nil {
		return fmt.Errorf("something may still run: %w", err)
	}
	if len(r.spec.Artifacts) == 0 {
		return nil
	}
	status := strconv.Itoa(o.ExitCode)
	if o.NodeFault != "" {
		status = "-1"
	}
	if err := agent.Prepare(ctx, r.checkout(), r.spec.Artifacts, status, o.Canceled); err != nil {
		return err
	}
	if text, err := recordText(rec); recErr == nil {
		recErr = cmp.Or(err, agent.WriteRecord(r.checkout(), text))
	}
	if recErr != nil { // as on a full disk
		g.log.Warn("no node.json", "job", r.spec.JobID, "err", recErr)
	}
	if err := disk.Reclaim(ctx, r.checkout(), g.uid, g.gid); err != nil {
		return err
	}
	err := g.give(r)
	o.Files = r.outcome.Files
	return err
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
