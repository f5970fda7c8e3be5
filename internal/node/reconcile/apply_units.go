package reconcile

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// systemd makes a group of changes through systemd.
func (a *applier) systemd(ctx context.Context, group []Change) error {
	c, sd := group[0], a.h.Systemd
	names := make([]string, len(group))
	for i, g := range group {
		names[i] = g.Subject
	}
	if err := a.h.callStep(append([]string{string(c.Kind)}, names...)...); err != nil {
		return err
	}
	switch c.Kind {
	case Start:
		return sd.Start(ctx, names...)
	case Restart:
		return sd.Restart(ctx, names...)
	case Drain:
		return sd.Drain(ctx, names...)
	case Reload:
		return sd.Reload(ctx)
	case Enable:
		return sd.Enable(ctx, names...)
	case Disable:
		return sd.Disable(ctx, names...)
	case Stop:
		return a.stop(ctx, c)
	default:
		return a.set(ctx, a.wantSlices[c.Subject])
	}
}

const (
	// stopTime bounds the wait for an agent without a job to stop. An agent that took a job
	// meanwhile is left to finish it.
	stopTime = 15 * time.Second
	// killTime is how long a job has to end when Host.Now is set, before it is killed. The
	// agent itself gives the job about 10 s of that.
	killTime = time.Minute
)

// errLate means that an agent took a job after it was seen idle.
var errLate = errors.New("took a job in the meantime")

// stop stops a unit. An agent that takes longer to stop than one without a job is left to
// finish its job.
func (a *applier) stop(ctx context.Context, c Change) error {
	if !isAgent(c.Subject, c.Slot) {
		return errors.Join(a.stopWithin(ctx, systemd.JobTimeout, c.Subject), a.forget(ctx, c.Subject))
	}
	if a.h.Now {
		return a.kill(ctx, c.Subject)
	}
	err := a.stopWithin(ctx, stopTime, c.Subject)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		a.late[c.Slot] = fmt.Sprintf("waits for the agent of slot %s to stop", plan.SlotName(c.Slot))
		a.parent = a.narrows(a.late)
		a.spread(a.late)
		return errLate
	}
	return errors.Join(err, a.forget(ctx, c.Subject))
}

func (a *applier) stopWithin(ctx context.Context, within time.Duration, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return a.h.Systemd.Stop(ctx, unit)
}

// kill ends an agent and its job: SIGQUIT makes the agent cancel the job and report that.
// Anything that has not ended then is killed.
func (a *applier) kill(ctx context.Context, unit string) error {
	sd := a.h.Systemd
	if err := errors.Join(sd.Drain(ctx, unit), sd.Kill(ctx, unit, false, syscall.SIGQUIT)); err != nil {
		return err
	}
	err := a.stopWithin(ctx, killTime, unit)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		if err := sd.Kill(ctx, unit, true, syscall.SIGKILL); err != nil {
			return err
		}
		err = a.stopWithin(ctx, systemd.JobTimeout, unit)
	}
	return errors.Join(err, a.forget(ctx, unit))
}

// forget clears the failed state of an unplanned unit, which systemd would show until the
// next boot.
func (a *applier) forget(ctx context.Context, unit string) error {
	if _, planned := a.wantUnits[unit]; planned || isSlice(unit) {
		return nil
	}
	units, err := a.h.Systemd.Units(ctx, unit)
	if err != nil || units[0].Active != "failed" {
		return err
	}
	return a.h.Systemd.ResetFailed(ctx, unit)
}
