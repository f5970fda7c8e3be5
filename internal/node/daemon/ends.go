package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// clockTrial is how long a clock that nothing synchronizes must say that a time has come until that is believed: after a boot
// it can be in the future until NTP sets it.
const clockTrial = 10 * time.Minute

// clocks are the machine's, as the last look read them.
type clocks struct {
	health.Moment
	synchronized bool
	reached      map[int64]time.Duration // by Unix time: since when, by Moment.Up, the clock says that it has come
}

// set takes over what was read; node is nil if the node's signals were not.
func (c *clocks) set(now health.Moment, node *health.Node) {
	c.Moment = now
	if node != nil {
		c.synchronized = node.Clock == health.ClockSynchronised
	}
}

// after reports whether a time has come, as far as the clock can be believed.
func (c *clocks) after(t time.Time) bool {
	if t.IsZero() || c.Now.Before(t) {
		delete(c.reached, t.Unix())
		return false
	}
	if c.synchronized {
		return true
	}
	since, ok := c.reached[t.Unix()]
	if !ok {
		if c.reached == nil {
			c.reached = map[int64]time.Duration{}
		}
		since = c.Up
		c.reached[t.Unix()] = since
	}
	return c.Up-since >= clockTrial
}

// current returns the drains that have not ended.
func (d *daemonLoop) current(drains []plan.Drain) []plan.Drain {
	var left []plan.Drain
	for _, one := range drains {
		if now, ok := one.Now(d.clocks.Boot, d.clocks.after); ok {
			left = append(left, now)
		}
	}
	return left
}

// loanDrains returns the drains of all slots once the loan has ended. It stays ended if a clock that nothing synchronizes
// goes back, as after a boot.
func (d *daemonLoop) loanDrains(p *plan.Plan) []plan.Drain {
	if d.loanEnd.IsZero() {
		return nil
	}
	over := d.clocks.after(d.loanEnd)
	if !over && !d.clocks.synchronized {
		over = slices.ContainsFunc(d.drains, func(o plan.Drain) bool { return o.By == plan.ByLoan && o.Since.Equal(d.loanEnd) })
	}
	if !over {
		return nil
	}
	var drains []plan.Drain
	for _, s := range p.Slots {
		drains = append(drains, plan.Drain{Slot: s.Index, By: plan.ByLoan, Reason: "sudo kbnode uninstall", Since: d.loanEnd})
	}
	return drains
}

// recordEnds records what ended by itself between two lists of drains.
func (d *daemonLoop) recordEnds(before, after []plan.Drain) {
	var happened []events.Event
	for _, one := range before {
		if one.By != plan.ByOperator || slices.ContainsFunc(after, func(o plan.Drain) bool { return o.Slot == one.Slot && o.By == one.By }) {
			continue
		}
		why := "the machine was rebooted"
		if !one.Until.IsZero() {
			why = "it was drained until " + one.Until.Format(plan.Dates)
		}
		happened = append(happened, events.Event{Kind: "resume", Slot: one.Slot, By: plan.ByOperator, Text: plan.SlotName(one.Slot) + " may take jobs again: " + why})
	}
	loan := func(o plan.Drain) bool { return o.By == plan.ByLoan }
	switch ended := slices.ContainsFunc(after, loan); {
	case ended == slices.ContainsFunc(before, loan):
	case ended:
		happened = append(happened, events.Event{Kind: "loan", Slot: -1, Level: events.Warn, Text: "loan ended at " + d.loanEnd.Format(plan.Dates) + ": sudo kbnode uninstall"})
	default:
		happened = append(happened, events.Event{Kind: "loan", Slot: -1, Level: events.Info, Text: "the loan goes on"})
	}
	d.event(happened...)
}

// reboot reboots the machine if an operator asked for that in this boot and no slot runs anything. It needs no plan: a reboot
// may be what repairs the node.
func (d *daemonLoop) reboot(ctx context.Context) error {
	stored := &reconcile.Host{Root: d.Root}
	if wanted, _ := d.rebootWanted(stored); !wanted || d.rebooting {
		return nil
	}
	host, closeHost, err := d.Node.Host(ctx)
	if err != nil {
		return err
	}
	defer closeHost()
	release, err := host.Lock()
	if err != nil {
		return err
	}
	defer release()
	wanted, slots := d.rebootWanted(stored) // no kbnode resume comes in between now
	if !wanted {
		return nil
	}
	running, err := bounded(d, "slots before a reboot", stateTime, func() (running bool, err error) {
		list, err := host.Slots(ctx, slots)
		for _, s := range list {
			running = running || s.Agent.Running() || s.Busy() != ""
		}
		return running, err
	})
	if err != nil || running {
		return err
	}
	if err := host.Systemd.StartReboot(ctx); err != nil {
		return err
	}
	d.rebooting = true
	d.Log.Info("rebooting, as kbnode drain --reboot asked for")
	d.event(events.Event{Kind: "reboot", Slot: -1, By: plan.ByOperator, Text: "all slots are idle: the machine reboots"})
	return nil
}

// rebootWanted reports whether the stored drains ask for a reboot in this boot, and returns the slots that it waits for.
func (d *daemonLoop) rebootWanted(host *reconcile.Host) (wanted bool, slots []plan.Slot) {
	now, err := d.Clock()
	drains, rerr := bounded(d, "drained slots", stampTime, host.ReadDrains)
	if errors.Join(err, rerr) != nil || now.Boot == "" {
		return false, nil // a pass reports it
	}
	if d.plan != nil {
		slots = slices.Clone(d.plan.Slots)
	}
	for _, one := range drains {
		wanted = wanted || one.Reboot == now.Boot
		if !slices.ContainsFunc(slots, func(s plan.Slot) bool { return s.Index == one.Slot }) {
			slots = append(slots, plan.Slot{Index: one.Slot, Name: plan.SlotName(one.Slot)})
		}
	}
	return wanted, slots
}
