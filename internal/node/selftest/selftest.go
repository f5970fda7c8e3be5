// Package selftest tries to break out of a node's slots in containers that run as jobs do. It compares
// what it finds with the plan, so an edited file on the node fools no one. It undoes every change it
// makes.
package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Check is one thing that was tried.
type Check struct {
	Tried, Saw string
	Held       bool
	Do         string // what to type if it did not hold
}

// tries collects checks.
type tries struct {
	do     string
	checks []Check
}

func (t *tries) add(held bool, tried, saw string) {
	c := Check{Tried: tried, Saw: saw, Held: held}
	if !held {
		c.Do = t.do
	}
	t.checks = append(t.checks, c)
}

// SlotReport is the report of one slot.
type SlotReport struct {
	Index   int
	Skipped string // why it was not tried, or not completely
	Checks  []Check
}

// Held reports whether all checks held.
func (r SlotReport) Held() bool {
	return !slices.ContainsFunc(r.Checks, func(c Check) bool { return !c.Held })
}

// Options are the inputs of a self-test.
type Options struct {
	Plan  *plan.Plan // computed now, not read from the node
	State *reconcile.State
	Slots []int // of the plan; empty means all
	// Quick tries nothing hostile. It runs one container in each slot, which reports what
	// it got.
	Quick bool
	Say   func(format string, args ...any) // receives what is being done
	Log   *slog.Logger
}

const (
	name      = "kbnode-selftest"
	image     = name + ":latest"
	lockPath  = "/run/kbnode/selftest.lock"
	cleanTime = 2 * time.Minute  // for cleanup, even after an interrupt
	imageTime = 10 * time.Minute // for what is done once for all slots
)

// ErrRuns means that the test runs already.
var ErrRuns = errors.New("another kbnode selftest runs on this machine; try again when it is done")

// Run tries everything. An error means that the test could not be done. The reports show what did not
// hold.
func Run(ctx context.Context, o Options) ([]SlotReport, error) {
	for _, k := range o.Slots {
		if !slices.ContainsFunc(o.Plan.Slots, func(s plan.Slot) bool { return s.Index == k }) {
			return nil, fmt.Errorf("--slot %d: this node has no such slot; kbnode status lists them", k)
		}
	}
	release, err := lock()
	if err != nil {
		return nil, err
	}
	defer release()
	t := &tester{Options: o, policies: map[int]plan.JobPolicy{}}
	for _, s := range o.Plan.Slots {
		if t.policies[s.Index], err = policyOf(o.Plan, s.Index); err != nil {
			return nil, err
		}
	}
	if t.engine, err = docker.New(t.policies[o.Plan.Slots[0].Index].DockerSocket); err != nil {
		return nil, err
	}
	defer func() { _ = t.engine.Close() }()
	return t.run(ctx)
}

// tester is one run for all slots.
type tester struct {
	Options
	policies map[int]plan.JobPolicy
	engine   *docker.Engine
	devices  []string // paths that a job could want to open
	idle     []*trial // including those that Options.Slots leaves out
}

func (t *tester) run(ctx context.Context) ([]SlotReport, error) {
	var slots []*trial
	tried := false
	waits := map[int]string{}
	for _, c := range reconcile.Diff(t.Plan, t.State) {
		if c.Slot >= 0 && c.Deferred != "" {
			waits[c.Slot] = c.Deferred
		}
	}
	for _, s := range t.Plan.Slots {
		sl := &trial{t: t, plan: s, policy: t.policies[s.Index], state: t.State.Slot(s.Index), waits: waits[s.Index]}
		sl.report = SlotReport{Index: s.Index, Skipped: sl.skipReason()}
		if sl.report.Skipped == "" {
			t.idle = append(t.idle, sl)
		}
		if len(t.Slots) == 0 || slices.Contains(t.Slots, s.Index) {
			slots = append(slots, sl)
			tried = tried || sl.report.Skipped == ""
		}
	}
	var err error
	if tried {
		defer t.clean(ctx)
		if err = t.prepare(ctx); err == nil {
			t.devices = readDevices(t.Plan)
			err = t.slots(ctx, slots)
		}
	}
	var reports []SlotReport
	for _, sl := range slots {
		reports = append(reports, sl.report)
	}
	return reports, errors.Join(err, ctx.Err())
}

// slots tries the idle slots, one after another where each also uses its neighbor: a slot runs one
// container at a time.
func (t *tester) slots(ctx context.Context, slots []*trial) error {
	errs := make([]error, len(slots))
	var group sync.WaitGroup
	for i, sl := range slots {
		switch {
		case sl.report.Skipped != "":
		case t.Quick:
			group.Go(func() { errs[i] = sl.try(ctx) })
		default:
			errs[i] = sl.try(ctx)
		}
	}
	group.Wait()
	return errors.Join(errs...)
}

// prepare removes what an earlier run may have left, and makes the image for all containers. It is
// empty, because guard adds kbnode to each container.
func (t *tester) prepare(ctx context.Context) error {
	t.Say("making an image")
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	if err := t.engine.Untag(ctx, image); err != nil {
		return err
	}
	archive, err := emptyRoot()
	if err != nil {
		return err
	}
	return t.engine.Import(ctx, image, archive)
}

// clean removes the image, even if the run was interrupted. The slots' services remove the containers.
func (t *tester) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if err := t.engine.Untag(ctx, image); err != nil {
		t.Log.Warn("something is left behind; the next selftest removes it", "err", err)
	}
}

// policyOf returns a slot's policy as planned.
func policyOf(p *plan.Plan, k int) (pol plan.JobPolicy, err error) {
	for _, f := range p.Files {
		if f.Path == plan.SlotPolicyPath(k) {
			err = json.Unmarshal([]byte(f.Content), &pol)
			return pol, err
		}
	}
	return pol, fmt.Errorf("the plan has no policy for slot %s", plan.SlotName(k))
}

// lock keeps a second self-test from running: the two would remove each other's image.
func lock() (release func(), err error) {
	release, err = reconcile.LockFile(lockPath)
	if _, locked := errors.AsType[*reconcile.LockedError](err); locked {
		err = ErrRuns
	}
	return release, err
}
