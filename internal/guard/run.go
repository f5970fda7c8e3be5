package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/keeper"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// stopGrace is how long a canceled job has to end by itself. The agent gives its own process for
	// the job five seconds more, in which artifacts are uploaded.
	stopGrace = 25 * time.Second
	// handover is how long a job that the agent has given up may take to end before the next one.
	handover = 2 * time.Minute
)

// jobRun is the one job that a slot runs.
type jobRun struct {
	spec      *job.Spec
	container string
	top       string // directory with the checkout, which only root can enter
	pid       int    // of the agent's process for the job
	output    *docker.Output

	canceled sync.Once
	cancel   chan struct{} // closed when the job is to end
	begun    chan struct{} // closed when the job runs, or will not
	done     chan struct{} // closed when outcome is known, or the job does not run
	outcome  slot.Outcome
}

func (r *jobRun) checkout() string { return filepath.Join(r.top, "checkout") }

func (r *jobRun) stop() { r.canceled.Do(func() { close(r.cancel) }) }

// runs is what the service knows of its jobs: the one that starts or runs, or the last one.
type runs struct {
	mu   sync.Mutex
	last *jobRun
}

var errCanceled = errors.New("the job was canceled before it started")

// run runs a job, or follows one that runs already, until its end.
func (g *guard) run(c *call) error {
	peer, err := caller(c)
	if err != nil {
		return err
	}
	spec, err := g.readSpec(c)
	if err != nil {
		return err
	}
	has := position{number64(c.query, slot.StdoutParam), number64(c.query, slot.StderrParam), time.Now()}
	rc := http.NewResponseController(c.w)
	c.w.Header().Set("Content-Type", "application/octet-stream")
	c.w.Header().Set("Connection", "close")
	c.w.WriteHeader(http.StatusOK)
	frames := slot.NewFrames(c.w, rc.Flush)
	r, err := g.begin(c.r.Context(), spec, peer.agent(), frames)
	if err != nil {
		g.log.Info("job not started", "job", spec.JobID, "err", err)
		return frames.End(notStarted(err))
	}
	go func() { // a client that does not read must not keep this request
		select {
		case <-r.done:
			_ = rc.SetWriteDeadline(time.Now().Add(answerDeadline))
		case <-c.r.Context().Done():
		}
	}()
	if r.container != "" {
		g.follow(c.r.Context(), r, frames, has)
	}
	select {
	case <-r.done:
		return frames.End(r.outcome)
	case <-c.r.Context().Done():
		return nil
	}
}

// readSpec reads one spec at a time: while it is parsed, it takes many times its size.
func (g *guard) readSpec(c *call) (*job.Spec, error) {
	var spec *job.Spec
	read := func(c *call) error {
		rc := http.NewResponseController(c.w)
		if err := rc.SetReadDeadline(time.Now().Add(bodyDeadline)); err != nil {
			return fmt.Errorf("read the spec: %w", err)
		}
		body, err := io.ReadAll(io.LimitReader(c.r.Body, job.MaxSpec+1))
		if err != nil {
			return refusal{http.StatusBadRequest, "kbnode: the spec did not arrive: " + err.Error()}
		}
		if err := rc.SetReadDeadline(time.Time{}); err != nil {
			return fmt.Errorf("read the spec: %w", err)
		}
		if spec, err = job.Parse(body); err != nil {
			return forbid("%s", err)
		}
		return nil
	}
	return spec, few(g.specs, read)(c)
}

// notStarted tells a job that asks for what it may not have from a node that cannot run it.
func notStarted(err error) slot.Outcome {
	if no, ok := errors.AsType[refusal](err); ok && no.status == http.StatusForbidden {
		return slot.Outcome{Refused: strings.TrimPrefix(no.sentence, "kbnode: ")}
	}
	if no, ok := errors.AsType[*checkout.RefusedError](err); ok {
		return slot.Outcome{Refused: no.Error()}
	}
	return slot.Outcome{NodeFault: strings.TrimPrefix(err.Error(), "kbnode: "), Canceled: errors.Is(err, errCanceled)}
}

func number64(query url.Values, name string) int64 {
	n, _ := strconv.ParseInt(query.Get(name), 10, 64) // the route knows its form
	return n
}

// begin starts a job, unless it has been started. A job that the agent has given up ends before, and
// so does root's. Root's own job ends no other.
func (g *guard) begin(ctx context.Context, spec *job.Spec, pid int, frames *slot.Frames) (*jobRun, error) {
	late := time.After(handover)
	for {
		g.runs.mu.Lock()
		last := g.runs.last
		if last == nil || last.spec.JobID != spec.JobID && isClosed(last.done) {
			r := &jobRun{spec: spec, pid: pid, cancel: make(chan struct{}), begun: make(chan struct{}), done: make(chan struct{})}
			g.runs.last = r
			g.runs.mu.Unlock()
			return r, g.startJob(ctx, r, frames)
		}
		g.runs.mu.Unlock()
		wait := last.begun
		if last.spec.JobID != spec.JobID {
			if pid == keeper.NoAgent {
				return nil, fmt.Errorf("the slot runs job %s, which goes first", last.spec.JobID)
			}
			last.stop()
			wait = last.done
		} else if isClosed(wait) {
			return last, nil
		}
		select {
		case <-wait:
		case <-late:
			return nil, fmt.Errorf("the slot still runs job %s", last.spec.JobID)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// startJob starts a job, or takes it up, unless it is canceled before.
func (g *guard) startJob(ctx context.Context, r *jobRun, frames *slot.Frames) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-r.cancel:
			end()
		case <-ctx.Done():
		}
	}()
	err := g.adopt(ctx, r)
	if err == nil && r.container == "" {
		err = g.launchJob(ctx, r, frames)
	}
	if err != nil && isClosed(r.cancel) {
		err = errCanceled
	}
	g.runs.mu.Lock()
	defer g.runs.mu.Unlock()
	switch {
	case err != nil:
		g.runs.last = nil
		close(r.done)
	case r.container == "":
		close(r.done)
	default:
		go g.supervise(r) //nolint:gosec // a job outlives the request
	}
	close(r.begun)
	return err
}

// adopt finds the container of a job that an earlier service started.
func (g *guard) adopt(ctx context.Context, r *jobRun) error {
	list, err := g.api.Containers(ctx, docker.Filter{Slice: g.policy.Slice, Label: jobLabel + "=" + r.spec.JobID})
	if err != nil {
		return fmt.Errorf("list the slot's containers: %w", err)
	}
	for _, c := range list {
		if c.State == "created" {
			continue // its start may have failed; what is left is removed before the next job
		}
		// An image can set labels, too, and the slot's user makes directories beside.
		if r.top = filepath.Join(g.policy.WorkRoot, c.Labels[checkoutLabel]); !isRun(c.Labels[checkoutLabel]) || !isOurs(r.top) {
			return errors.New("the job's container has no checkout")
		}
		r.container = c.ID
		return nil
	}
	return nil
}
