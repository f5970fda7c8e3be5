package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/health/signals"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// pass looks at the machine and brings it to its plan where it differs. It reads everything
// again periodically, on request, and when an input of the plan has changed.
//
// Health comes first, judged by the last good plan: a later failure, such as a typo in the
// configuration or an engine that hangs, must not keep a sick slot in service.
func (d *daemonLoop) pass(ctx context.Context, whole bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, passTime, fmt.Errorf("nothing more within %s", passTime))
	defer cancel()
	host, closeHost, err := d.Node.Host(ctx)
	if err != nil { // verdicts are made and stored anyway
		host, closeHost = &reconcile.Host{Root: d.Root}, func() {}
	}
	defer closeHost()
	host.Progress = func(reconcile.Change) { d.Notify(daemon.SdNotifyWatchdog) }
	whole = whole || d.plan == nil || time.Since(d.wholeAt) >= wholeTime || d.health.alarmed() || d.stampOf(d.plan) != d.stamp
	// An earlier pass may have failed before it judged.
	o := observation{plan: d.plan, node: true, out: d.outOf(d.drains), faults: d.faultsOf(d.drains)}
	if err == nil && !whole {
		if o.state, err = d.observe(ctx, host, d.plan); err == nil {
			o.changes = reconcile.Diff(d.plan, o.state)
		}
		d.snapshot.State = o.state
	}
	var drains []plan.Drain
	if o.plan != nil {
		o.gpus = d.gpus(ctx)
		drains = d.judge(ctx, host, o)
	}
	if err != nil {
		return err
	}
	err = d.converge(ctx, host, o, drains, whole)
	d.evaluate()
	return err
}

// converge brings the machine to its plan, once its health was judged.
func (d *daemonLoop) converge(ctx context.Context, host *reconcile.Host, o observation, drains []plan.Drain, whole bool) error {
	if !whole && sameDrains(withHealth(d.current(d.drains), drains), d.drains) {
		if !pending(o.changes) {
			d.snapshot.Waiting = len(o.changes)
			return nil
		}
		if right, err := d.repair(ctx, host); right || err != nil {
			return err
		}
	}
	return d.fullPass(ctx, host)
}

// bounded makes a call that may hang, with the deadline within. It notifies the watchdog
// after the call, so that the calls do not add up.
func bounded[T any](d *daemonLoop, name string, within time.Duration, f func() (T, error)) (T, error) {
	defer d.Notify(daemon.SdNotifyWatchdog)
	return limit.Call(d.Root, name, within, f)
}

func (d *daemonLoop) observe(ctx context.Context, host *reconcile.Host, p *plan.Plan) (*reconcile.State, error) {
	return bounded(d, "state of the node", stateTime, func() (*reconcile.State, error) { return host.Observe(ctx, p) })
}

// stampOf returns the stamp of a plan; "" if it is not available.
func (d *daemonLoop) stampOf(p *plan.Plan) string {
	stamp, err := bounded(d, "stamp", stampTime, func() (string, error) { return d.Node.Stamp(p), nil })
	if err != nil {
		d.Log.Warn("files of the plan not checked", "err", err)
	}
	return stamp
}

// repair reverts changes that were made by hand. It does not ask the driver, which may take
// a second: no input of the plan has changed. right reports whether the plan is still right
// now that the lock keeps every other kbnode away.
func (d *daemonLoop) repair(ctx context.Context, host *reconcile.Host) (right bool, err error) {
	release, err := host.Lock()
	if err != nil {
		return false, err
	}
	defer release()
	if d.stampOf(d.plan) != d.stamp {
		return false, nil
	}
	state, err := d.observe(ctx, host, d.plan)
	if err != nil {
		return false, err
	}
	return true, d.apply(ctx, host, state, reconcile.Diff(d.plan, state))
}

// pending reports whether some change can be made now.
func pending(changes []reconcile.Change) bool {
	return slices.ContainsFunc(changes, func(c reconcile.Change) bool { return c.Deferred == "" })
}

func (d *daemonLoop) fullPass(ctx context.Context, host *reconcile.Host) error {
	d.snapshot.Whole = true
	release, err := host.Lock()
	if err != nil {
		return err
	}
	defer release()
	// The stamp is taken first, so that changes during the reading are read again.
	p := cmp.Or(d.plan, &plan.Plan{})
	stamp := d.stampOf(p)
	r, err := bounded(d, "the node", readTime, func() (*Reading, error) { return d.Node.Read(ctx) })
	if err != nil {
		return err
	}
	first := d.plan == nil
	if first && d.stampOf(p) == stamp { // p had none of the plan's own files
		stamp = d.stampOf(r.Plan)
	}
	d.reading, d.plan, d.drains, d.stamp, d.wholeAt = *r, r.Plan, r.Drains, stamp, time.Now()
	d.snapshot.State = nil // the state of a look belongs to another plan
	if engine := r.Inventory.Software.Docker; engine.RootDir != "" {
		d.engine = engine
	}
	host.GPUs = r.Inventory.GPUs
	state, err := d.observe(ctx, host, r.Plan)
	if err != nil {
		return err
	}
	d.snapshot.State = state
	d.gpusAt = d.wholeAt
	changes := reconcile.Diff(r.Plan, state)
	required := d.judge(ctx, host, observation{plan: r.Plan, state: state, changes: changes, node: first, out: d.outOf(r.Drains), faults: d.faultsOf(r.Drains), gpus: &health.GPUs{
		Started: r.Started, List: r.Inventory.GPUs, NVIDIA: r.Inventory.NVIDIA, Bus: signals.ReadBus(host.Root, r.Inventory.GPUs), Unread: r.Inventory.Unread,
	}})
	drains := withHealth(d.withReboot(d.current(r.Drains), r.Plan), required)
	var unkept error
	if !sameDrains(drains, r.Drains) {
		// On a full disk they hold anyway; the next pass writes them again.
		unkept = d.keepDrains(host, drains)
		if unkept == nil {
			d.recordEnds(r.Drains, drains)
		}
		replanned, err := r.Replan(drains)
		if err != nil {
			return errors.Join(unkept, err)
		}
		d.plan, d.drains, changes = replanned, drains, reconcile.Diff(replanned, state)
	}
	if unkept == nil {
		d.removeJudged() // resume need not wait for agents that start
	}
	return errors.Join(unkept, d.apply(ctx, host, state, changes))
}

func (d *daemonLoop) apply(ctx context.Context, host *reconcile.Host, state *reconcile.State, changes []reconcile.Change) error {
	result, err := host.Apply(ctx, d.plan, state, changes)
	d.keep(result.Applied)
	d.snapshot.Applied, d.snapshot.Waiting = append(d.snapshot.Applied, result.Applied...), len(result.Deferred)
	return err
}

// keep records the changes as events.
func (d *daemonLoop) keep(applied []reconcile.Change) {
	if len(applied) == 0 {
		return
	}
	var all []events.Event
	for i, c := range applied {
		if i == maxChanges {
			all = append(all, events.Event{Kind: "changed", Slot: -1, Text: fmt.Sprintf("and %d more changes", len(applied)-i)})
			break
		}
		all = append(all, events.Event{Kind: "changed", Slot: c.Slot, Text: c.String()})
	}
	d.event(all...)
}
