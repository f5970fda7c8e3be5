package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// stopGrace is how long a canceled job has to end by itself. The agent gives its own process for
	// the job five seconds more, in which artifacts are uploaded.
	stopGrace = 20 * time.Second
	// stopSlack is how much longer the engine may take for that, before the job ends without it.
	stopSlack = 2 * time.Second
	// handover is how long a job that the agent has given up may take to end before the next one.
	handover = 2 * time.Minute
	// engineTime is how long the engine may take for one step to a job's start. A working one takes
	// milliseconds, or seconds under load.
	engineTime = 2 * time.Minute
)

// jobRun is the one job that a slot runs.
type jobRun struct {
	spec      *job.Spec
	foreign   error // why it may be followed, but not start; nil if it may
	policy    plan.JobPolicy
	container string
	top       string // directory with the checkout, which only root can enter
	root      bool   // it is root's, without an agent
	output    *docker.Output
	// What the container was made with, and what protects it; "" and nil if an earlier service started it.
	profile    string
	protection []noise.Container

	canceled context.Context // done when the job is to end
	stop     context.CancelFunc
	begun    chan struct{} // closed when the job runs, or will not
	exited   chan struct{} // closed when the container has ended
	done     chan struct{} // closed when outcome is known, or the job does not run
	ended    bool          // outcome says how the container ended
	settled  bool          // and what the job left
	outcome  slot.Outcome
	readers  atomic.Int32 // of its output
	clock    *time.Timer  // ends it; nil without a limit
	late     atomic.Bool  // it did

	orphaned func() bool // its container lost the process above it
	restores bool        // the engine that started it lets containers go on while it restarts
}

func newRun(spec *job.Spec, root bool, policy plan.JobPolicy) *jobRun {
	made := func() chan struct{} { return make(chan struct{}) }
	canceled, stop := context.WithCancel(context.Background())
	return &jobRun{spec: spec, root: root, policy: policy, orphaned: func() bool { return false }, canceled: canceled, stop: stop, begun: made(), exited: made(), done: made()}
}

func (r *jobRun) checkout() string { return filepath.Join(r.top, "checkout") }

// files is where the checkout is when it is the agent's.
func (r *jobRun) files() string {
	return filepath.Join(filepath.Dir(r.top), runPrefix+"files-"+strings.TrimPrefix(filepath.Base(r.top), runPrefix))
}

// finish says that outcome is known, or that the job does not run.
func (r *jobRun) finish() {
	if r.clock != nil {
		r.clock.Stop()
	}
	close(r.done)
}

// runs is what the service knows of its jobs: the one that starts or runs, or the last one.
type runs struct {
	mu   sync.Mutex
	last *jobRun
	over []string // jobs before the last, of which nothing is left
}

// maxOver is how many of them are known: their agent's processes ended long ago.
const maxOver = 64

var errCanceled = errors.New("the job was canceled before it started")

// firstEnd returns a context that ends with either of two.
func firstEnd(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(other, end)
	return ctx, func() { stop(); end() }
}

// withTimeout gives the engine a time to answer.
func withTimeout[T any](ctx context.Context, patience time.Duration, ask func(context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := ask(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("the Docker engine does not answer within %s: %w", patience, err)
	}
	return answer, err
}

// run runs a job, or follows one that runs already, until its end.
func (g *guard) run(c *call) error {
	spec, foreign := readSpec(c)
	if spec == nil {
		return foreign
	}
	stdout, err1 := c.count(slot.StdoutParam)
	stderr, err2 := c.count(slot.StderrParam)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	has := position{stdout, stderr}
	rc := http.NewResponseController(c.w)
	c.w.Header().Set("Content-Type", "application/octet-stream")
	c.w.Header().Set("Connection", "close")
	c.w.WriteHeader(http.StatusOK)
	frames := slot.NewFrames(c.w, rc.Flush)
	ctx, end := firstEnd(c.r.Context(), g.stopping)
	defer end()
	asked := newRun(spec, g.isRoot(c.caller), g.policyFor(c.caller))
	asked.foreign = foreign
	r, err := g.begin(ctx, asked, frames)
	left := func() {}
	if err == nil {
		left = sync.OnceFunc(func() { r.readers.Add(-1) })
		defer left()
	}
	switch {
	case ctx.Err() != nil:
		return nil // the client is gone, or asks the next service
	case err != nil:
		g.log.Info("job not started", "job", spec.JobID, "err", err)
		return frames.End(notStarted(err))
	}
	go func() { // a client that does not read must not keep this request
		select {
		case <-r.done:
			_ = rc.SetWriteDeadline(time.Now().Add(answerDeadline))
		case <-g.stopping.Done():
			_ = rc.SetWriteDeadline(time.Now())
		case <-ctx.Done():
		}
	}()
	if r.container != "" {
		g.follow(ctx, r, frames, has)
		left()
	}
	select {
	case <-r.done:
		return frames.End(r.outcome)
	case <-ctx.Done():
		return nil
	}
}

// readSpec returns the job, or why there is none. It returns both if another version of kbnode sent it.
func readSpec(c *call) (*job.Spec, error) {
	rc := http.NewResponseController(c.w)
	if err := rc.SetReadDeadline(time.Now().Add(bodyDeadline)); err != nil {
		return nil, fmt.Errorf("read the spec: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(c.r.Body, job.MaxSpec+1))
	if err != nil {
		return nil, refusal{http.StatusBadRequest, "kbnode: the spec did not arrive: " + err.Error()}
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("read the spec: %w", err)
	}
	spec, err := job.Parse(body)
	if no, ok := errors.AsType[*job.Refusal](err); ok {
		return nil, forbid("%s", no)
	}
	if err != nil {
		err = unavailable(err)
	}
	return spec, err
}

// notStarted tells a job that asks for what it may not have from a node that cannot run it.
func notStarted(err error) slot.Outcome {
	if no, ok := errors.AsType[refusal](err); ok && no.status == http.StatusForbidden {
		return slot.Outcome{Refused: strings.TrimPrefix(no.sentence, "kbnode: ")}
	}
	if no, ok := errors.AsType[*checkout.RefusedError](err); ok {
		return slot.Outcome{Refused: no.Error()}
	}
	return slot.Outcome{NodeFault: strings.TrimPrefix(err.Error(), "kbnode: "), Canceled: errors.Is(err, errCanceled) || errors.Is(err, errBusy)}
}

// begin starts a job, unless it has been started, and counts a reader. A job that the agent has given up
// ends before, and so does root's. Root's own job ends no other.
func (g *guard) begin(ctx context.Context, r *jobRun, frames *slot.Frames) (*jobRun, error) {
	late, id := time.After(handover), r.spec.JobID
	for {
		g.runs.mu.Lock()
		last := g.runs.last
		if slices.Contains(g.runs.over, id) {
			g.runs.mu.Unlock()
			return nil, fmt.Errorf("job %s has ended, and another one came after it", id)
		}
		if last == nil || last.spec.JobID != id && isClosed(last.done) {
			before := ""
			if last != nil {
				before = last.spec.JobID
			} else if !r.root {
				before = g.load().JobID // an earlier service's; the agent has given it up
			}
			if before != "" && before != id && !slices.Contains(g.runs.over, before) {
				g.runs.over = append(g.runs.over[max(0, len(g.runs.over)+1-maxOver):], before)
			}
			r.readers.Add(1)
			g.runs.last = r
			g.runs.mu.Unlock()
			return r, g.startJob(ctx, r, frames)
		}
		g.runs.mu.Unlock()
		wait := last.begun
		if last.spec.JobID != id {
			if r.root {
				return nil, fmt.Errorf("%w: %s", errBusy, last.spec.JobID)
			}
			last.stop()
			wait = last.done
		} else if isClosed(wait) {
			last.readers.Add(1)
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
	if limit := g.timeLimit(); limit > 0 {
		r.clock = time.AfterFunc(limit, func() { r.late.Store(true); r.stop() })
	}
	finding, end := firstEnd(ctx, r.canceled)
	defer end()
	err := g.takeUp(finding, r)
	if err == nil && r.container == "" {
		err = g.launchJob(ctx, r, frames)
	}
	switch {
	case err == nil:
	case r.late.Load():
		err = g.errLate()
	case r.canceled.Err() != nil:
		err = errCanceled
	}
	g.runs.mu.Lock()
	defer g.runs.mu.Unlock()
	switch {
	case err != nil:
		g.runs.last = nil
		r.finish()
	case r.container == "" || r.settled:
		r.finish()
	default:
		r.orphaned = g.cleaner.procs.watchShim(r.container)
		go g.supervise(r) //nolint:gosec // a job outlives the request
	}
	close(r.begun)
	return err
}

// timeLimit is how long a job may take, with its image and checkout; 0 is no limit. The clock starts
// again with a new service.
func (g *guard) timeLimit() time.Duration {
	return time.Duration(g.policy.TimeLimitSeconds) * time.Second
}

func (g *guard) errLate() error {
	return fmt.Errorf("the job was terminated: it ran longer than the %s that job.time_limit allows", g.timeLimit())
}
