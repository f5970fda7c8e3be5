package node

import (
	"context"
	"errors"
	"slices"

	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// DrainChange is a change of which slots are drained.
type DrainChange struct {
	Kind string // of the event: "drain" or "resume"
	// Choose returns the slots of a plan to change.
	Choose func(*plan.Plan) ([]plan.Slot, error)
	// Change returns the drains with the slot drained or resumed.
	Change func(drains []plan.Drain, slot int) []plan.Drain
	// Warn hears of failures in slots that were not chosen, and of events that are not recorded.
	Warn func(error)
}

// ChangeDrains changes which slots are drained, and then the node accordingly. It returns the new
// plan; when slots are resumed, drained slots that are no longer of the plan are in it by name
// alone.
func (n *Node) ChangeDrains(ctx context.Context, host *reconcile.Host, c DrainChange) (*plan.Plan, error) {
	release, err := n.Lock(ctx, host)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := n.Refresh(ctx); err != nil {
		return nil, err
	}
	var unplanned []plan.Slot // drain does not know them
	if c.Kind == "resume" {
		unplanned = slotless(n.Plan, n.Drains)
	}
	slots, err := c.Choose(withSlots(n.Plan, unplanned))
	if err != nil {
		return nil, err
	}
	var happened []events.Event
	drains := n.Drains
	for _, sl := range slots {
		before := len(drains)
		drains = c.Change(drains, sl.Index)
		if len(drains) != before {
			happened = append(happened, events.Event{Kind: c.Kind, Slot: sl.Index, By: plan.ByOperator, Text: drainText(c.Kind, drains, sl.Index)})
		}
	}
	if !slices.Equal(drains, n.Drains) {
		if err := host.WriteDrains(drains); err != nil {
			return nil, err
		}
	}
	if err := (events.Log{File: events.Path}).Add(happened...); err != nil {
		c.Warn(err)
	}
	if err := n.MakePlan(); err != nil {
		return nil, err
	}
	_, err = Converge(ctx, host, n.Plan)
	var errs []error
	rest := reconcile.EachSlot(err, func(k int, err error) {
		if slices.ContainsFunc(slots, func(s plan.Slot) bool { return s.Index == k }) {
			errs = append(errs, err)
		} else {
			c.Warn(err)
		}
	})
	return withSlots(n.Plan, unplanned), errors.Join(append(errs, rest)...)
}

// slotless returns drains without a slot in the plan as slots that have only a name.
func slotless(p *plan.Plan, drains []plan.Drain) []plan.Slot {
	var unplanned []plan.Slot
	for _, d := range plan.SlotlessDrains(p.Slots, drains) {
		unplanned = append(unplanned, plan.Slot{Index: d.Slot, Name: plan.SlotName(d.Slot)})
	}
	return unplanned
}

func withSlots(p *plan.Plan, more []plan.Slot) *plan.Plan {
	all := *p
	all.Slots = slices.Concat(p.Slots, more)
	return &all
}

func drainText(command string, drains []plan.Drain, slot int) string {
	name := plan.SlotName(slot)
	if command == "resume" {
		return name + " may take jobs again"
	}
	i := slices.IndexFunc(drains, func(d plan.Drain) bool { return d.Slot == slot && d.By == plan.ByOperator })
	return name + " is " + drains[i].String()
}
