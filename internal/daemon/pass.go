package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/overdue"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// pass looks at the machine, and brings it to its plan where it differs. Everything
// is read again now and then, when it was asked for, and when what the plan is made
// from has changed.
//
// Health comes first, judged by the last good plan: whatever fails after it, be it a
// typo in the configuration or an engine that hangs, keeps no sick slot in service.
func (d *daemonLoop) pass(ctx context.Context, whole bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, passTime, fmt.Errorf("nothing more in %s", passTime))
	defer cancel()
	host, closeHost, err := d.Node.Host(ctx)
	if err != nil { // verdicts are made and kept nevertheless
		host, closeHost = &reconcile.Host{Root: d.Root}, func() {}
	}
	defer closeHost()
	host.Progress = func(reconcile.Change) { d.Notify(daemon.SdNotifyWatchdog) }
	whole = whole || d.plan == nil || time.Since(d.wholeAt) >= d.Whole || d.doctor.alarmed() || d.stampOf(d.plan) != d.stamp
	l := look{plan: cmp.Or(d.plan, d.doctor.plan), node: true}
	if err == nil && !whole {
		if l.state, err = d.observe(ctx, host, d.plan); err == nil {
			l.changes = reconcile.Diff(d.plan, l.state)
		}
		d.seen.State = l.state
	}
	var drains []plan.Drain
	if l.plan != nil {
		l.gpus = d.gpus(ctx)
		drains = d.judge(ctx, host, l)
	}
	d.made = false
	if err == nil {
		err = d.converge(ctx, host, l, drains, whole)
	}
	var locked *reconcile.LockedError
	if err != nil && l.plan != nil && !d.made && !errors.As(err, &locked) {
		err = errors.Join(err, d.holdOver(ctx, host, drains))
	}
	return err
}

// converge makes the machine as planned, once its health has been judged.
func (d *daemonLoop) converge(ctx context.Context, host *reconcile.Host, l look, drains []plan.Drain, whole bool) error {
	if !whole && sameDrains(withHealth(d.drains, drains), d.drains) {
		if !pending(l.changes) {
			d.seen.Waiting = len(l.changes)
			return nil
		}
		if right, err := d.repair(ctx, host); right || err != nil {
			return err
		}
	}
	return d.whole(ctx, host)
}

// bounded makes a call that may hang, for as long as within. The service manager
// hears of each that is over: none of them keeps the daemon for long.
func bounded[T any](d *daemonLoop, name string, within time.Duration, f func() (T, error)) (T, error) {
	defer d.Notify(daemon.SdNotifyWatchdog)
	return overdue.Call(name+" below "+d.Root, within, f)
}

func (d *daemonLoop) observe(ctx context.Context, host *reconcile.Host, p *plan.Plan) (*reconcile.State, error) {
	return bounded(d, "state of the node", stateTime, func() (*reconcile.State, error) { return host.Observe(ctx, p) })
}

// stampOf is the stamp of a plan; "" where it cannot be had.
func (d *daemonLoop) stampOf(p *plan.Plan) string {
	stamp, err := bounded(d, "stamp", stampTime, func() (string, error) { return d.Node.Stamp(p), nil })
	if err != nil {
		d.Log.Warn("files of the plan not looked at", "err", err)
	}
	return stamp
}

// repair brings what was changed by hand back to the plan. A driver may take a second
// to be asked, and need not be: nothing that the plan was made from has changed. It
// says whether the plan is still right now that no other kbnode is at work.
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

// pending says that something can be changed now.
func pending(changes []reconcile.Change) bool {
	for _, c := range changes {
		if c.Deferred == "" {
			return true
		}
	}
	return false
}

func (d *daemonLoop) whole(ctx context.Context, host *reconcile.Host) error {
	d.seen.Whole = true
	release, err := host.Lock()
	if err != nil {
		return err
	}
	defer release()
	// The stamp is taken first: what changes while it is read is read again.
	p := cmp.Or(d.plan, &plan.Plan{})
	stamp := d.stampOf(p)
	r, err := bounded(d, "the node", readTime, func() (*Reading, error) { return d.Node.Read(ctx) })
	if err != nil {
		return err
	}
	first := d.plan == nil
	if first && d.stampOf(p) == stamp { // which had none of the plan's own files
		stamp = d.stampOf(r.Plan)
	}
	d.plan, d.drains, d.stamp, d.wholeAt, d.address = r.Plan, r.Drains, stamp, time.Now(), r.Listen
	d.seen.State = nil // that of a look is of another plan
	d.doctor.remember(r)
	host.GPUs = r.Inventory.GPUs
	state, err := d.observe(ctx, host, r.Plan)
	if err != nil {
		return err
	}
	d.seen.State, d.made = state, true
	d.gpusAt = d.wholeAt
	changes := reconcile.Diff(r.Plan, state)
	drains := withHealth(r.Drains, d.judge(ctx, host, look{plan: r.Plan, state: state, changes: changes, node: first, gpus: &health.GPUs{
		Started: r.Started, List: r.Inventory.GPUs, NVIDIA: r.Inventory.NVIDIA, Bus: health.ReadBus(host.Root, r.Inventory.GPUs),
	}}))
	var unkept error
	if !sameDrains(drains, r.Drains) {
		// On a full disk they hold nevertheless; the next pass writes them again.
		unkept = d.keepDrains(host, drains)
		replanned, err := r.Replan(drains)
		if err != nil {
			return errors.Join(unkept, err)
		}
		d.plan, d.drains, changes = replanned, drains, reconcile.Diff(replanned, state)
	}
	if err := errors.Join(unkept, d.apply(ctx, host, state, changes)); err != nil {
		return err
	}
	if boot := d.doctor.state.Boot; boot != d.doctor.boot {
		d.doctor.boot = boot
		_ = d.save() // which logs
	}
	return nil
}

func (d *daemonLoop) apply(ctx context.Context, host *reconcile.Host, state *reconcile.State, changes []reconcile.Change) error {
	result, err := host.Apply(ctx, d.plan, state, changes)
	d.keep(result.Applied)
	d.seen.Applied, d.seen.Waiting = result.Applied, len(result.Deferred)
	return err
}

// keep writes down what was changed.
func (d *daemonLoop) keep(applied []reconcile.Change) {
	if len(applied) == 0 {
		return
	}
	var all []events.Event
	for i, c := range applied {
		if i == fewChanges {
			all = append(all, events.Event{Kind: "changed", Slot: -1, Text: fmt.Sprintf("and %d more changes", len(applied)-i)})
			break
		}
		all = append(all, events.Event{Kind: "changed", Slot: c.Slot, Text: c.String()})
	}
	d.event(all...)
}
