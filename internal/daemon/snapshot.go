package daemon

import (
	"path/filepath"
	"time"

	"github.com/gpu-mode/kbnode/internal/guard"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// Snapshot is what one pass saw and did.
type Snapshot struct {
	Began    time.Time
	Duration time.Duration
	Whole    bool  // everything was read anew
	Err      error // why the pass was not made
	// Plan and Verdicts are those of the last pass that had some; nil before.
	Plan     *plan.Plan
	Verdicts []health.Verdict
	// State is the machine before the changes; nil where the pass saw none.
	State   *reconcile.State
	Parked  map[int]bool       // by slot: something keeps it from jobs while it runs
	Applied []reconcile.Change // that were made
	Waiting int                // changes that wait for the end of a job
	Listen  string             // where metrics are to be had; "" is nowhere
}

// publish hands the pass that has ended to whoever wants to know.
func (d *daemonLoop) publish(began time.Time, err error) {
	if d.Publish == nil {
		return
	}
	s := d.seen
	s.Began, s.Duration, s.Err = began, time.Since(began), err
	s.Plan, s.Verdicts, s.Listen = d.plan, d.doctor.verdicts, d.address
	if s.State != nil {
		s.Parked = map[int]bool{}
		for _, sl := range s.Plan.Slots {
			why, err := guard.ReadParked(filepath.Join(d.Root, plan.RunDir(sl.Index)))
			if err != nil {
				d.Log.Debug("why a slot is parked not read", "slot", sl.Index, "err", err)
			}
			s.Parked[sl.Index] = len(why) > 0
		}
	}
	d.Publish(s)
}

// SlotWords are all that SlotWord says.
var SlotWords = []string{"idle", "busy", "draining", "drained", "parked", "starting", "stopping", "failed", "down"}

// SlotWord is the state of a slot in one word. parked says that something keeps it
// from jobs while it runs.
func SlotWord(s plan.Slot, ss reconcile.SlotState, parked bool) string {
	switch {
	case ss.Job != nil && (parked || len(s.Drains) > 0 || ss.Agent.Stopping()):
		return "draining"
	case ss.Job != nil:
		return "busy"
	case parked || s.Parked != "":
		return "parked"
	case ss.Agent.Failing() || ss.Agent.Active == "failed":
		return "failed"
	case ss.Agent.Stopping():
		return "stopping"
	case len(s.Drains) > 0 && !ss.Agent.Running():
		return "drained"
	case ss.Agent.Active == "active":
		return "idle"
	case ss.Agent.Running():
		return "starting"
	default:
		return "down"
	}
}
