package daemon

import (
	"context"
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

// rebootTime is how long a reboot may take to begin; after it, systemd is asked again.
const rebootTime = 5 * time.Minute

// holdTime is how long no one may change the node before a reboot: systemd-logind lets programs delay it by 5 seconds, or 30
// with Debian's unattended-upgrades. Then people may cancel one that was lost.
const holdTime = time.Minute

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
// goes back, as after a boot. One that says so first is believed for now, since a machine that was off when the loan ended
// must begin no job, but the loan has ended only when it can be believed.
func (d *daemonLoop) loanDrains(p *plan.Plan) []plan.Drain {
	end := d.reading.LoanEnd
	if end.IsZero() {
		return nil
	}
	over := !d.clocks.Now.Before(end)
	known := plan.LoanOver(slices.DeleteFunc(slices.Clone(d.drains), func(o plan.Drain) bool { return !o.Since.Equal(end) }))
	if !over && (!known || d.clocks.synchronized) {
		return nil
	}
	return plan.LoanDrains(p.Slots, end, d.clocks.after(end) || known)
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
	switch ended := plan.LoanOver(after); {
	case ended == plan.LoanOver(before):
	case ended:
		happened = append(happened, events.Event{Kind: "loan", Slot: -1, Level: events.Warn, Text: "loan ended at " + d.reading.LoanEnd.Format(plan.Dates) + ": sudo kbnode uninstall"})
	default:
		happened = append(happened, events.Event{Kind: "loan", Slot: -1, Level: events.Info, Text: "the loan goes on"})
	}
	d.event(happened...)
}

// reboot reboots the machine if an operator asked for that in this boot and no slot runs anything. It needs no plan: a reboot
// may be what repairs the node. The lock is then held for a while: a kbnode resume in the seconds that systemd-logind
// leaves would start agents, and a job would end with the machine.
func (d *daemonLoop) reboot(ctx context.Context) error {
	stored := &reconcile.Host{Root: d.Root}
	now, err := d.Clock()
	if err != nil {
		return nil //nolint:nilerr // a pass reports what cannot be read
	}
	since := now.Up - d.rebootAt
	if since >= holdTime {
		d.endReboot()
	}
	if d.rebootAt > 0 && since < rebootTime || !d.rebootWanted(stored, now.Boot) {
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
	began := false
	if d.rebootWanted(stored, now.Boot) { // no kbnode resume comes in between now
		began, err = d.startReboot(ctx, host)
	}
	if !began {
		release()
		return err
	}
	d.rebootAt, d.rebootRelease = now.Up, release
	return nil
}

func (d *daemonLoop) startReboot(ctx context.Context, host *reconcile.Host) (began bool, err error) {
	active, err := bounded(d, "slots before a reboot", stateTime, func() (string, error) { return host.Active(ctx) })
	if err != nil || active != "" {
		return false, err
	}
	if err := host.Systemd.StartReboot(ctx); err != nil {
		d.Log.Warn("the reboot waits", "err", err) // such as for an upgrade of packages; the next pass tries again
		return false, nil
	}
	d.Log.Info("rebooting, as kbnode drain --reboot asked for")
	d.event(events.Event{Kind: "reboot", Slot: -1, By: plan.ByOperator, Text: "all slots are idle: the machine reboots"})
	return true, nil
}

// endReboot lets others change the node again.
func (d *daemonLoop) endReboot() {
	if d.rebootRelease != nil {
		d.rebootRelease()
		d.rebootRelease = nil
	}
}

// rebootWanted reports whether the stored drains ask for a reboot in this boot.
func (d *daemonLoop) rebootWanted(host *reconcile.Host, boot string) bool {
	drains, err := bounded(d, "drained slots", stampTime, host.ReadDrains)
	return err == nil && boot != "" && rebootOf(drains, boot)
}

func rebootOf(drains []plan.Drain, boot string) bool {
	return slices.ContainsFunc(drains, func(one plan.Drain) bool { return one.Reboot == boot })
}

// withReboot drains the slots that appear while a reboot waits: they would take jobs, and it would wait forever.
func (d *daemonLoop) withReboot(drains []plan.Drain, p *plan.Plan) []plan.Drain {
	if d.clocks.Boot == "" || !rebootOf(drains, d.clocks.Boot) {
		return drains
	}
	for _, s := range p.Slots {
		if !slices.ContainsFunc(drains, func(one plan.Drain) bool { return one.Slot == s.Index && one.Reboot == d.clocks.Boot }) {
			drains = plan.AddDrain(drains, plan.Drain{Slot: s.Index, By: plan.ByOperator, Since: d.clocks.Now.UTC().Truncate(time.Second), Reboot: d.clocks.Boot})
		}
	}
	return drains
}
