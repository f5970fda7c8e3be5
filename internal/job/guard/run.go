package guard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
)

const (
	// stopGrace is how long a canceled job has to end by itself. The agent gives its own process for
	// the job five seconds more, in which artifacts are uploaded.
	stopGrace = 20 * time.Second
	// stopSlack is how much longer the engine may take for that, before the job ends without it.
	stopSlack = 2 * time.Second
	// engineTime is how long the engine may take for one step to a job's start. A working one takes
	// milliseconds. Eight containers that start at once on an emulated machine took over two minutes each.
	engineTime = 5 * time.Minute
	// discardTime is how long a removal may take for which someone waits.
	discardTime = 2 * time.Second
)

// jobRun is the job of this process.
type jobRun struct {
	spec   *job.Spec
	root   bool // it is root's, without an agent
	frames *slot.Frames
	top    string // directory with the checkout, which only root can enter

	release func() // the slot, for the next job; nil before it is held
	engine  func() (docker.Info, error)
	record  recorder
	left    bool // something of it may still run
}

// close lets the next job begin.
func (r *jobRun) close() {
	r.record.end()
	if r.release != nil {
		r.release()
	}
}

// running is its container.
type running struct {
	id         string
	output     *docker.Output
	profile    string
	image      noise.Image
	protection noise.Container
	orphaned   func() bool // it lost the process above it
	restores   bool        // the engine lets containers go on while it restarts
}

func (r *jobRun) checkout() string { return filepath.Join(r.top, "checkout") }

// files is where the checkout is when it is the agent's.
func (r *jobRun) files() string {
	return filepath.Join(filepath.Dir(r.top), runPrefix+"files-"+strings.TrimPrefix(filepath.Base(r.top), runPrefix))
}

// run runs a job from its spec to what it leaves. ctx ends when the job is to end, with the cause.
func (g *guard) run(ctx context.Context, r *jobRun) (slot.Outcome, error) {
	who := holderAgent
	if r.root {
		who = holderRoot
	}
	var err error
	if r.release, err = g.hold(ctx, who); err != nil {
		return slot.Outcome{}, err
	}
	r.engine = sync.OnceValues(func() (docker.Info, error) { return withTimeout(ctx, g.engineTime, g.engineInfo) })
	go func() { _, _ = r.engine() }() // an engine may run programs to answer: let it begin now
	if err := g.begin(ctx, r.root); err != nil {
		return slot.Outcome{}, because(ctx, err)
	}
	r.top = filepath.Join(g.policy.WorkRoot, runPrefix+rand.Text())
	if err := g.fill(ctx, r); err != nil {
		return slot.Outcome{}, because(ctx, err)
	}
	if r.spec.Kind == job.KindUpload {
		return r.givePipeline()
	}
	if r.root { // whose jobs no clearing follows
		defer g.epilogOfRoot(ctx, r)
	}
	if err := g.prolog(ctx, r.root); err != nil {
		return slot.Outcome{}, because(ctx, err)
	}
	r.record = g.record(r.root)
	c, err := g.launch(ctx, r)
	if err != nil {
		return slot.Outcome{}, because(ctx, err)
	}
	o := g.attend(ctx, r, c)
	g.collect(r, c, &o)
	return o, nil
}

// because returns why a job ended before it started: what ended ctx, if that did.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// launch makes a job's container of its image, and starts it.
func (g *guard) launch(ctx context.Context, r *jobRun) (_ *running, err error) {
	policy := g.policy
	if r.root { // the node's root may run any image, as kbnode selftest does with one of its own
		policy.Images = nil
	}
	wanted, err := fromSpec(policy, g.facts, r.spec, r.checkout())
	if err != nil {
		return nil, forbid("%s", err)
	}
	name, err := engineName(wanted.Image, r.root)
	if err != nil {
		return nil, err
	}
	engine, err := r.engine()
	if err != nil { // it may have been restarted
		if engine, err = withTimeout(ctx, g.engineTime, g.engineInfo); err != nil {
			return nil, err
		}
	}
	image, err := g.provide(ctx, engine, r.spec, name, r.frames)
	if err != nil {
		return nil, g.answered(err, r.spec, wanted, true)
	}
	c := &running{
		profile: wanted.Labels[profileLabel], restores: engine.LiveRestoreEnabled,
		image: noise.Image{Name: name, ID: image.ID, Kept: sameImage(name, g.policy.KeptImage)},
	}
	if c.id, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (string, error) { return g.create(ctx, engine, wanted, image, r) }); err != nil {
		return nil, g.answered(err, r.spec, wanted, true)
	}
	defer func() {
		if err != nil { // the engine may have started it all the same
			g.abandon(r, c)
		}
	}()
	if c.output, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (*docker.Output, error) { return g.api.Attach(ctx, c.id, r.spec.TTY) }); err != nil {
		return nil, g.answered(err, r.spec, wanted, false)
	}
	if _, err = withTimeout(ctx, g.engineTime, func(ctx context.Context) (any, error) { return nil, g.start(ctx, c.id, wanted, r.top) }); err != nil {
		return nil, g.answered(err, r.spec, wanted, false)
	}
	c.protection = noise.ReadContainer(g.procs.proc, g.procs.container(c.id))
	c.orphaned = g.procs.watchShim(c.id)
	return c, nil
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

// abandon removes a container that is not to run. What is left of it is cleared before the next agent.
func (g *guard) abandon(r *jobRun, c *running) {
	if c.output != nil {
		c.output.Close()
	}
	if err := g.discardJob(c.id, discardTime); err != nil {
		r.left = true
		g.log.Warn("container left behind", "id", c.id, "err", err)
	}
}

// discardJob removes a container. If it takes longer, everything in the slot's containers is killed first.
func (g *guard) discardJob(id string, within time.Duration) error {
	discard := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		return g.api.Discard(ctx, id)
	}
	err := discard()
	if err != nil {
		err = g.procs.freeing(discard)
	}
	return err
}

// clearName is the file in the slot's run directory that says that nothing is left of a job.
const clearName = "clear"

// begin clears away what may be left of an earlier job: the agent's start has done so, unless root had a job since.
func (g *guard) begin(ctx context.Context, root bool) error {
	if root {
		if runs, err := g.procs.runsJob(); err != nil || runs {
			return cmp.Or(err, errBusy)
		}
	}
	parked, err := g.parked()
	if !g.cleared() || root && parked != "" { // while no agent starts, no one else looks again
		parked, err = g.clean(ctx, beginTime)
	}
	if err == nil && parked != "" {
		if !root && g.hookParks() { // its reason names files of the node, and strangers read the log of a job
			parked = "a hook of the node's failed, and the node's operators see why with kbnode status"
		}
		err = errors.New("the slot is parked: " + parked)
	}
	if err == nil {
		err = g.setCleared(false)
	}
	return err
}

// cleared reports whether nothing is left of a job; false also where that cannot be seen.
func (g *guard) cleared() bool {
	_, err := os.Lstat(filepath.Join(g.runDir(), clearName))
	return err == nil
}

func (g *guard) setCleared(is bool) error {
	name := filepath.Join(g.runDir(), clearName)
	err := ignoreAbsent(os.Remove(name))
	if is {
		err = os.WriteFile(name, nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record whether the slot is clear: %w", err)
	}
	return nil
}
