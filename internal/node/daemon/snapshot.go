package daemon

import (
	"time"

	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/standin"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
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
	State *reconcile.State
	// GPUs is the last reading of the GPUs that this pass made; nil if it made none.
	GPUs    *health.GPUs
	Applied []reconcile.Change // that were made
	Waiting int                // number of changes that wait for the end of a job
	Metrics config.Metrics     // as of the last good reading
	Service standin.Service    // zero before the first full pass
	Notify  config.Notify      // likewise
}

// publish passes the finished pass to Options.Publish.
func (d *daemonLoop) publish(began time.Time, err error) {
	if d.Publish == nil {
		return
	}
	s := d.snapshot
	s.Began, s.Duration, s.Err = began, time.Since(began), err
	s.Plan, s.Verdicts, s.Metrics, s.Service, s.Notify = d.plan, d.health.Verdicts, d.reading.Metrics, d.reading.Service, d.reading.Notify
	d.Publish(s)
}
