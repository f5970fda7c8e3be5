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
	Whole    bool  // everything was read again
	Err      error // why the pass failed
	// Plan and Verdicts are those of the last pass that had any; nil before that.
	Plan     *plan.Plan
	Verdicts []health.Verdict
	// State is the machine before the changes; nil if the pass did not observe it.
	State   *reconcile.State
	Parked  map[int]bool       // by slot: whether something keeps jobs from it while it runs
	Applied []reconcile.Change // that were made
	Waiting int                // number of changes that wait for the end of a job
	Listen  string             // address of the metrics; "" for none
}

// publish passes the finished pass to Options.Publish.
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

// SlotWords are all results of SlotWord.
var SlotWords = []string{"idle", "busy", "draining", "drained", "parked", "starting", "stopping", "failed", "down"}

// SlotWord returns the state of a slot in one word. parked means that something keeps jobs
// from it while it runs.
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
