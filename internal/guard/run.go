package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// maxSpec bounds a job's spec, in bytes of JSON.
	maxSpec = 16 << 20
	// stopGrace is how long a canceled job has to end by itself. The agent gives its own process for
	// the job five seconds more, in which artifacts are uploaded.
	stopGrace = 25 * time.Second
	// runPrefix begins the names of directories of jobs below the work root.
	runPrefix = "kbnode-"
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
	done     chan struct{} // closed when outcome is known
	outcome  slot.Outcome
}

func (r *jobRun) checkout() string { return filepath.Join(r.top, "checkout") }

// runs is what the service knows of its jobs: the one that runs, or the last one.
type runs struct {
	mu   sync.Mutex
	last *jobRun
}

// run runs a job, or follows one that runs already, until its end.
func (g *guard) run(c *call) error {
	peer, err := caller(c)
	if err != nil {
		return err
	}
	if err := http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(bodyDeadline)); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(c.r.Body, maxSpec+1))
	if err != nil {
		return refusal{http.StatusBadRequest, "kbnode: the spec did not arrive: " + err.Error()}
	}
	if err := http.NewResponseController(c.w).SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	spec, err := job.Parse(body)
	if err != nil {
		return forbid("%s", err)
	}
	has := position{number64(c.query, slot.StdoutParam), number64(c.query, slot.StderrParam), time.Now()}
	c.w.Header().Set("Content-Type", "application/octet-stream")
	c.w.WriteHeader(http.StatusOK)
	frames := slot.NewFrames(c.w, http.NewResponseController(c.w).Flush)
	r, err := g.begin(c.r.Context(), spec, peer.pid, frames)
	if err != nil {
		g.log.Info("job not started", "job", spec.JobID, "err", err)
		return frames.End(notStarted(err))
	}
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

// notStarted tells a job that asks for what it may not have from a node that cannot run it.
func notStarted(err error) slot.Outcome {
	if no, ok := errors.AsType[refusal](err); ok && no.status == http.StatusForbidden {
		return slot.Outcome{Refused: strings.TrimPrefix(no.sentence, "kbnode: ")}
	}
	if absent, ok := errors.AsType[*checkout.NotFoundError](err); ok {
		return slot.Outcome{Refused: absent.Error()}
	}
	return slot.Outcome{NodeFault: strings.TrimPrefix(err.Error(), "kbnode: ")}
}

func number64(query url.Values, name string) int64 {
	n, _ := strconv.ParseInt(query.Get(name), 10, 64) // the route knows its form
	return n
}

// begin starts a job, unless it has been started.
func (g *guard) begin(ctx context.Context, spec *job.Spec, pid int, frames *slot.Frames) (*jobRun, error) {
	g.runs.mu.Lock()
	defer g.runs.mu.Unlock()
	if r := g.runs.last; r != nil {
		if r.spec.JobID == spec.JobID {
			return r, nil
		}
		select {
		case <-r.done:
		default:
			return nil, fmt.Errorf("the slot still runs job %s", r.spec.JobID)
		}
	}
	r, err := g.adopt(ctx, spec, pid)
	if r == nil && err == nil {
		r, err = g.launchJob(ctx, spec, pid, frames)
	}
	if err != nil {
		return nil, err
	}
	g.runs.last = r
	if r.container != "" {
		go g.supervise(r)
	}
	return r, nil
}

// adopt finds the container of a job that an earlier service started.
func (g *guard) adopt(ctx context.Context, spec *job.Spec, pid int) (*jobRun, error) {
	list, err := g.api.Containers(ctx, docker.Filter{Slice: g.policy.Slice, Label: jobLabel + "=" + spec.JobID})
	if err != nil {
		return nil, fmt.Errorf("list the slot's containers: %w", err)
	}
	for _, c := range list {
		if c.State == "created" {
			continue // its start may have failed; what is left is removed before the next job
		}
		top := c.Labels[checkoutLabel]
		if !strings.HasPrefix(top, runPrefix) || !filepath.IsLocal(top) {
			return nil, errors.New("the job's container has no checkout")
		}
		return newRun(spec, c.ID, filepath.Join(g.policy.WorkRoot, top), pid), nil
	}
	return nil, nil
}

func newRun(spec *job.Spec, id, top string, pid int) *jobRun {
	return &jobRun{spec: spec, container: id, top: top, pid: pid, cancel: make(chan struct{}), done: make(chan struct{})}
}

// launchJob makes a job's checkout and container, and starts it.
func (g *guard) launchJob(ctx context.Context, spec *job.Spec, pid int, frames *slot.Frames) (r *jobRun, err error) {
	if parked, err := g.keeper.Report(ctx, slot.BeginPath, pid, func(string) {}); err != nil || parked != "" {
		return nil, errors.Join(err, parkedError(parked))
	}
	if err := g.clearRuns(); err != nil {
		return nil, err
	}
	r = newRun(spec, "", filepath.Join(g.policy.WorkRoot, runPrefix+rand.Text()), pid)
	if err := g.fill(ctx, r, frames); err != nil {
		return nil, err
	}
	if spec.Kind == job.KindUpload {
		err := g.givePipeline(r)
		return r, err
	}
	wanted, err := fromSpec(g.policy, g.facts, spec, r.checkout())
	if err != nil {
		return nil, forbid("%s", err)
	}
	if err := g.provide(ctx, spec, wanted.Image, frames); err != nil {
		return nil, err
	}
	create := &call{r: internal(ctx), method: http.MethodPost, path: "containers/create", query: url.Values{}}
	resp, body, id, err := g.build(create, wanted)
	if err != nil {
		return nil, err
	}
	if id == "" {
		return nil, engineSays(resp.StatusCode, body)
	}
	if r.output, err = g.api.Attach(context.WithoutCancel(ctx), id, spec.TTY); err != nil {
		return nil, err
	}
	start := &call{r: internal(ctx), method: http.MethodPost, path: "containers/" + id + "/start", id: id, query: url.Values{}}
	if resp, err = g.launch(start); err != nil {
		r.output.Close()
		return nil, err
	}
	defer hangUp(resp.Body)
	if resp.StatusCode != http.StatusNoContent {
		r.output.Close()
		body, err := readAll(resp)
		g.discard(start)
		return nil, errors.Join(engineSays(resp.StatusCode, body), err)
	}
	r.container = id
	return r, nil
}

// pipelineFiles are where the agent looks for a pipeline. Source: clicommand/pipeline_upload.go.
var pipelineFiles = []string{
	"buildkite.yml", "buildkite.yaml", "buildkite.json", ".buildkite/pipeline.yml", ".buildkite/pipeline.yaml", ".buildkite/pipeline.json",
	"buildkite/pipeline.yml", "buildkite/pipeline.yaml", "buildkite/pipeline.json",
}

// maxPipeline bounds a pipeline's file, in bytes.
const maxPipeline = 1 << 20

// givePipeline gives the agent the file of the checkout that it is to upload.
func (g *guard) givePipeline(r *jobRun) error {
	names := pipelineFiles
	if r.spec.PipelineFile != "" {
		names = []string{r.spec.PipelineFile}
	}
	root, err := os.OpenRoot(r.checkout())
	if err != nil {
		return fmt.Errorf("read the pipeline: %w", err)
	}
	defer hangUp(root)
	for _, name := range names {
		info, err := root.Stat(name)
		if err != nil {
			continue
		}
		if !info.Mode().IsRegular() || info.Size() > maxPipeline {
			return forbid("%.100s is not a file of at most %d bytes; write the pipeline into one", name, maxPipeline)
		}
		if err := g.give(r); err != nil {
			return fmt.Errorf("read the pipeline: %w", err)
		}
		r.outcome.Pipeline = name
		close(r.done)
		return nil
	}
	return forbid("the checkout has no %s; write the path of the pipeline relative to the repository", strings.Join(names, ", "))
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

// fill makes the job's directory with what its checkout has.
func (g *guard) fill(ctx context.Context, r *jobRun, frames *slot.Frames) error {
	work, err := os.OpenRoot(g.policy.WorkRoot)
	if err != nil {
		return fmt.Errorf("make a checkout: %w", err)
	}
	defer hangUp(work)
	top := filepath.Base(r.top)
	dir := filepath.Join(top, "checkout")
	err = work.Mkdir(top, 0o700)
	if err == nil {
		err = work.Mkdir(dir, 0o755)
	}
	if err == nil && os.Geteuid() == 0 {
		err = work.Lchown(dir, g.uid, g.gid)
	}
	if err != nil {
		return fmt.Errorf("make a checkout: %w", err)
	}
	c := r.spec.Checkout
	if c.Mode != job.CheckoutMirror {
		return nil
	}
	_ = frames.Note("fetches %s of %s", c.Commit, c.Repository) // the reader may be gone
	to, err := work.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("make a checkout: %w", err)
	}
	defer hangUp(to)
	_, err = g.mirrors.Checkout(ctx, checkout.Source{Repository: c.Repository, Commit: c.Commit, Branch: c.Branch}, to, g.uid, g.gid)
	return err
}

// clearRuns removes the directories of earlier jobs.
func (g *guard) clearRuns() error {
	work, err := os.OpenRoot(g.policy.WorkRoot)
	if err != nil {
		return fmt.Errorf("remove earlier checkouts: %w", err)
	}
	defer hangUp(work)
	entries, err := os.ReadDir(g.policy.WorkRoot)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), runPrefix) {
			err = errors.Join(err, disk.RemoveTree(work, e.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("remove earlier checkouts: %w", err)
	}
	return nil
}

// provide pulls the job's image if the node lacks it, or the job wants the newest.
func (g *guard) provide(ctx context.Context, spec *job.Spec, image string, frames *slot.Frames) error {
	c := &call{r: internal(ctx)}
	has, err := g.image(c, image, &struct{}{})
	if err != nil || has && (spec.Pull != job.PullAlways || g.keeps(image)) {
		return err
	}
	if err := g.registries.mayPull(ctx, image); err != nil {
		return forbid("%s", err)
	}
	if err := g.pulled.used(image, !has); err != nil {
		return err
	}
	_ = frames.Note("pulls %s", image) // the reader may be gone
	low, err := g.engine.low(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := g.api.Pull(ctx, image, func(docker.Progress) {
		if low() {
			cancel(errDiskFull)
		}
	}); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if errors.Is(err, docker.ErrNotFound) {
			return forbid("%s", err)
		}
		return err
	}
	return nil
}
