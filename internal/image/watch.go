package image

import (
	"context"
	"fmt"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// slotLabel is a label of every container that a slot's guard creates.
const slotLabel = "kbnode.slot"

// Trial counts how the first jobs end after an image has become current.
type Trial struct {
	ImageID string    `json:"image_id"`
	Jobs    int       `json:"jobs"`   // number that must fail in a row
	Failed  int       `json:"failed"` // so far
	Seen    time.Time `json:"seen"`   // outcomes up to here are counted
}

// Watch checks how the first jobs with a new image ended, and goes back to the previous
// image if all failed. Without an image on trial it reads only one file, so it may be
// called often. The engine reports the jobs, which they cannot falsify.
func (u *Updater) Watch(ctx context.Context) (Result, error) {
	s, err := Read(u.Dir)
	if err != nil || s.Trial == nil || s.Name != u.Name {
		return Result{Name: u.Name, Action: ActionNone, Current: s.Current}, err
	}
	release, err := u.open(ctx)
	if err != nil {
		return Result{}, err
	}
	defer release()
	return u.watch(ctx)
}

// watch counts the jobs that have ended. A single success ends the trial: any submission can
// make its own job fail, but a success shows that the image works.
func (u *Updater) watch(ctx context.Context) (Result, error) {
	s, none := &u.state, u.result(ActionNone, "")
	trial := s.Trial
	if trial == nil || s.Current == nil || trial.ImageID != s.Current.ID {
		return none, nil
	}
	before := *trial
	ends, err := u.Engine.Ends(ctx, slotLabel, trial.Seen)
	if err != nil {
		return Result{}, err
	}
	for _, e := range ends {
		if name, err := docker.ParseRef(e.Image); err != nil || name != u.fullName() || !e.Time.After(trial.Seen) {
			continue
		}
		trial.Seen = e.Time
		if e.ExitCode > 0 && e.ExitCode <= 128 { // beyond that it was a signal: canceled, or out of memory
			trial.Failed++
		}
		if e.ExitCode == 0 || trial.Failed >= trial.Jobs {
			s.Trial = nil
			break
		}
	}
	switch {
	case s.Trial == nil && trial.Failed >= trial.Jobs && len(s.Previous) > 0:
		return u.rollback(ctx, fmt.Sprintf("its first %d jobs failed", trial.Failed))
	case s.Trial != nil && *trial == before:
		return none, nil
	}
	return none, u.save()
}

// fullName returns the name as ParseRef writes it.
func (u *Updater) fullName() string {
	if name, err := docker.ParseRef(u.Name); err == nil {
		return name
	}
	return u.Name
}
