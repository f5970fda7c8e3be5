package daemon

import (
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// parkedTime is how long a slot is parked before that is an event: between two jobs, a GPU may be in use for moments.
const parkedTime = time.Minute

// recall reads what earlier daemons recorded: an event comes once, and a page ends also after a restart.
func (d *daemonLoop) recall() {
	if d.parked != nil {
		return
	}
	d.parked, d.parkedSince = map[int]bool{}, map[int]time.Duration{}
	_, err := bounded(d, "events", writeTime, func() (struct{}, error) {
		return struct{}{}, d.Events.Read(func(e events.Event) {
			switch e.Kind {
			case "park", "unpark":
				d.parked[e.Slot] = e.Kind == "park"
			case "error", "recovered":
				d.reported = ""
				if e.Kind == "error" {
					d.reported = e.Text
				}
			}
		})
	})
	if err != nil {
		d.Log.Warn("events not read; what is wrong is reported again", "err", err)
	}
}

// recordParked records which slots are parked and no longer parked, by what a job left or by the plan. up is Moment.Up: after
// a boot, the wall clock may go back by hours.
func (d *daemonLoop) recordParked(p *plan.Plan, states []slot.State, up time.Duration) {
	d.recall()
	for _, s := range states {
		var reason string
		if i := slices.IndexFunc(p.Slots, func(planned plan.Slot) bool { return planned.Index == s.Index }); i >= 0 {
			reason = p.Slots[i].Parked
		}
		if len(s.Parked) > 0 {
			reason = s.Parked[0].Reason
		}
		since, known := d.parkedSince[s.Index]
		if reason == "" {
			delete(d.parkedSince, s.Index)
		} else if !known {
			since, d.parkedSince[s.Index] = up, up
		}
		parked := reason != ""
		if parked == d.parked[s.Index] || parked && up-since < parkedTime {
			continue
		}
		d.parked[s.Index] = parked
		if parked {
			d.event(events.Event{Slot: s.Index, Kind: "park", Level: events.Warn, Text: s.Name + " is parked: " + reason})
		} else {
			d.event(events.Event{Slot: s.Index, Kind: "unpark", Level: events.Info, Text: s.Name + " is no longer parked"})
		}
	}
}
