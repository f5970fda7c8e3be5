package image

import (
	"context"
	"fmt"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// slotLabel is a label of every container that a slot's guard creates.
const slotLabel = "kbnode.slot"

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

func (u *Updater) watch(ctx context.Context) (Result, error) {
	s := u.state
	if s.Trial == nil || s.Current == nil || s.Trial.ImageID != s.Current.ID {
		return u.result(ActionNone, ""), nil
	}
	ends, err := u.Engine.Ends(ctx, slotLabel, s.Trial.Seen)
	if err != nil {
		return Result{}, err
	}
	trial, verdict := *s.Trial, Undecided
	for _, e := range ends {
		if name, err := docker.ParseRef(e.Image); err != nil || name != u.fullName() {
			continue
		}
		if trial, verdict = FirstJobs(trial, e); verdict != Undecided {
			break
		}
	}
	if verdict == Bad && len(s.Previous) > 0 {
		return u.rollback(ctx, fmt.Sprintf("its first %d jobs failed", trial.Failed))
	}
	if verdict == Undecided && trial == *s.Trial {
		return u.result(ActionNone, ""), nil
	}
	if s.Trial = &trial; verdict != Undecided {
		s.Trial = nil
	}
	return u.result(ActionNone, ""), u.save(s)
}

// fullName returns the name as ParseRef writes it.
func (u *Updater) fullName() string {
	if name, err := docker.ParseRef(u.Name); err == nil {
		return name
	}
	return u.Name
}
