package daemon

import (
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/events"
)

// parkedTime is how long a slot is parked before that is an event: between two jobs, a GPU may be in use for moments.
const parkedTime = time.Minute

// recordParked records which slots are parked and no longer parked. What earlier daemons recorded, the events say.
func (d *daemonLoop) recordParked(states []slot.State, now time.Time) {
	if d.parked == nil {
		d.parked = map[int]bool{}
		err := d.Events.Read(func(e events.Event) {
			if e.Kind == "park" || e.Kind == "unpark" {
				d.parked[e.Slot] = e.Kind == "park"
			}
		})
		if err != nil {
			d.Log.Warn("events not read; parked slots are reported again", "err", err)
		}
	}
	for _, s := range states {
		e := events.Event{Slot: s.Index, Kind: "unpark", Level: events.Info, Text: s.Name + " is no longer parked"}
		parked := len(s.Parked) > 0
		if parked {
			e.Kind, e.Level, e.Text = "park", events.Warn, s.Name+" is parked: "+s.Parked[0].Reason
		}
		if parked == d.parked[s.Index] || parked && now.Sub(s.Parked[0].Since) < parkedTime {
			continue
		}
		d.parked[s.Index] = parked
		d.event(e)
	}
}
