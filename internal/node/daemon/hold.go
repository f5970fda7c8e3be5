package daemon

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// drainsOf returns the drains that verdicts require: the strongest one of each slot, and beside it those of repeated faults
// and of a proof that is owed, which must hold even if the state of the health is lost.
func drainsOf(verdicts []health.Verdict, p *plan.Plan, now time.Time) []plan.Drain {
	var drains []plan.Drain
	for _, s := range p.Slots {
		strongest, held := health.Holding(verdicts, s.Index)
		if held {
			drains = append(drains, drainOf(strongest, s.Index, now))
		}
		for _, check := range []string{health.CheckRepeats, health.CheckProof} {
			i := slices.IndexFunc(verdicts, func(v health.Verdict) bool {
				return v.Check == check && v.Effect > health.None && slices.Contains(v.Slots, s.Index)
			})
			if i >= 0 && check != strongest.Check {
				drains = append(drains, drainOf(verdicts[i], s.Index, now))
			}
		}
	}
	return drains
}

func drainOf(v health.Verdict, slot int, now time.Time) plan.Drain {
	since := v.Since
	if since.IsZero() {
		since = now
	}
	return plan.Drain{Slot: slot, By: v.Check, Reason: v.Reason + "; " + v.Fix, Since: since.UTC().Truncate(time.Second)}
}

// withHealth returns drains with those of verdicts and of the loan replaced by the required ones.
func withHealth(drains, required []plan.Drain) []plan.Drain {
	drains = slices.DeleteFunc(slices.Clone(drains), func(d plan.Drain) bool { return d.By != plan.ByOperator })
	return append(drains, required...)
}

func sameDrains(a, b []plan.Drain) bool {
	less := func(x, y plan.Drain) int {
		if x.Slot != y.Slot {
			return x.Slot - y.Slot
		}
		return strings.Compare(x.By, y.By)
	}
	a, b = slices.SortedFunc(slices.Values(a), less), slices.SortedFunc(slices.Values(b), less)
	return slices.EqualFunc(a, b, func(x, y plan.Drain) bool {
		return x.Slot == y.Slot && x.By == y.By && x.Reason == y.Reason && x.Until.Equal(y.Until) && x.Reboot == y.Reboot && x.Stays == y.Stays && (x.By != plan.ByLoan || x.Since.Equal(y.Since))
	})
}

// hold asks the agents of drained slots to stop, once each, as a drain does: they finish
// their jobs first. It needs no plan, lock or disk, so that no other failure keeps a sick
// slot in service. unread means that states are old.
func (d *daemonLoop) hold(ctx context.Context, host *reconcile.Host, states []slot.State, unread bool, drains []plan.Drain) {
	stopping := map[int]bool{}
	var made []reconcile.Change
	for _, drain := range drains {
		if _, asked := stopping[drain.Slot]; asked { // a slot may have several drains
			continue
		}
		stopping[drain.Slot] = d.stopping[drain.Slot]
		i := slices.IndexFunc(states, func(s slot.State) bool { return s.Index == drain.Slot })
		serves := i >= 0 && states[i].Agent.Running() && !states[i].Agent.Stopping()
		if unread {
			serves = !stopping[drain.Slot] // as far as is known
		}
		if !serves || host.Systemd == nil {
			continue
		}
		c := reconcile.Change{Kind: reconcile.Drain, Subject: plan.AgentUnit(drain.Slot), Slot: drain.Slot, Why: drain.String()}
		err := host.Systemd.Drain(ctx, c.Subject)
		d.Notify(daemon.SdNotifyWatchdog)
		if err != nil {
			d.Log.Error("agent of a drained slot not stopped", "unit", c.Subject, "err", err)
			continue
		}
		stopping[drain.Slot] = true
		made = append(made, c)
	}
	d.stopping = stopping
	d.snapshot.Applied = append(d.snapshot.Applied, made...)
	d.keep(made)
}

// keepDrains writes which slots are drained. The caller must hold the node's lock.
func (d *daemonLoop) keepDrains(host *reconcile.Host, drains []plan.Drain) error {
	_, err := bounded(d, "drained slots", writeTime, func() (struct{}, error) { return struct{}{}, host.WriteDrains(drains) })
	return err
}

// outOf returns which slots the stored drains keep out of service for repeated faults, and why, if the
// health state that says so is lost: what is not known is no reason to return a GPU.
func (d *daemonLoop) outOf(drains []plan.Drain) map[int]string {
	if d.health.state.Boot != "" {
		return nil
	}
	out := map[int]string{}
	for _, drain := range drains {
		if drain.By == health.CheckRepeats {
			out[drain.Slot], _, _ = strings.Cut(drain.Reason, "; ")
		}
	}
	return out
}
