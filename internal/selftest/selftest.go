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

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/systemd"
)

// Check is one thing that was tried.
type Check struct {
	Group string `json:"group"`
	Tried string `json:"tried"`
	Saw   string `json:"saw"`
	Held  bool   `json:"held"`
	Do    string `json:"do,omitempty"` // what to type if it did not hold
}

// tries collects checks of a group.
type tries struct {
	group, do string
	checks    []Check
}

func (t *tries) add(held bool, tried, saw string) {
	c := Check{Group: t.group, Tried: tried, Saw: saw, Held: held}
	if !held {
		c.Do = t.do
	}
	t.checks = append(t.checks, c)
}

// SlotReport is the report of one slot, or of the node itself.
type SlotReport struct {
	Slot    string  `json:"slot"`              // "gpu0"; "node" for what belongs to no slot
	Index   int     `json:"index"`             // -1 for the node
	Skipped string  `json:"skipped,omitempty"` // why it was not tried, or not completely
	Checks  []Check `json:"checks"`
}

// Held reports whether all checks held.
func (r SlotReport) Held() bool {
	return !slices.ContainsFunc(r.Checks, func(c Check) bool { return !c.Held })
}

// Options are the inputs of a self-test.
type Options struct {
	Plan    *plan.Plan // computed now, not read from the node
	State   *reconcile.State
	Changes []reconcile.Change // between the two
	Slots   []int              // of the plan; empty means all
	// Quick tries nothing hostile. It runs one container in each slot, which reports what
	// it got.
	Quick  bool
	Binary string // absolute path of kbnode
	// Program runs a program as a systemd service.
	Program func(context.Context, systemd.Program) ([]byte, error)
	// Progress is called with a slot, "" for the node, and what is being done there.
	Progress func(slot, doing string)
	Log      *slog.Logger
}

const (
	name      = "kbnode-selftest"
	image     = name + ":latest"
	lockPath  = "/run/kbnode/selftest.lock"
	cleanTime = 2 * time.Minute  // for cleanup, even after an interrupt
	imageTime = 10 * time.Minute // for what is done once for all slots
)

// Run tries everything, and returns the node's own report first. An error means that the
// test could not be done. The reports show what did not hold.
func Run(ctx context.Context, o Options) ([]SlotReport, error) {
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
	machine  machine
	idle     []*trial // including those that Options.Slots leaves out
}

func (t *tester) run(ctx context.Context) ([]SlotReport, error) {
	var reports []SlotReport
	if !t.Quick {
		reports = append(reports, SlotReport{Slot: "node", Index: -1, Checks: t.node()})
	}
	var slots []*trial
	tried := false
	for _, s := range t.Plan.Slots {
		sl := &trial{t: t, plan: s, policy: t.policies[s.Index], state: t.State.Slot(s.Index)}
		sl.report = SlotReport{Slot: s.Name, Index: s.Index, Checks: []Check{}, Skipped: sl.skipReason()}
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
			t.machine = readMachine(t.Plan)
			err = t.slots(ctx, slots)
		}
	}
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
// empty, because the slot's service adds kbnode to each container.
func (t *tester) prepare(ctx context.Context) error {
	t.Progress("", "making an image")
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
	t.Progress("", "cleaning up")
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
		err = errors.New("another kbnode selftest runs on this machine; try again when it is done")
	}
	return release, err
}
