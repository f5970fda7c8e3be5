package reconcile

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// SlotError is a failure of one slot. The others got their changes.
type SlotError struct {
	Slot int
	Err  error
}

func (e *SlotError) Error() string { return "slot " + plan.SlotName(e.Slot) + ": " + e.Err.Error() }
func (e *SlotError) Unwrap() error { return e.Err }

// EachSlot calls f with each part of an error of Apply that is about a slot, and returns
// the rest.
func EachSlot(err error, f func(slot int, err error)) (rest error) {
	var left []error
	for _, err := range parts(err) {
		slot := -1
		if own, ok := errors.AsType[*SlotError](err); ok {
			slot = own.Slot
		} else if unit, ok := errors.AsType[*systemd.UnitError](err); ok {
			slot, _ = plan.OwnsUnit(unit.Unit)
		}
		if slot < 0 {
			left = append(left, err)
		} else {
			f(slot, err)
		}
	}
	return errors.Join(left...)
}

// parts returns the errors that were joined to one.
func parts(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// fail records that a change could not be made, and returns the error with the change's
// slot.
func (a *applier) fail(c Change, err error) error {
	switch {
	case c.Kind == Tune, c.Kind == Untune && !a.uninstall: // no reason to keep a slot from jobs
	case c.Kind == Reload:
		// systemd would start units as it last read them.
		for name, u := range a.s.Units {
			if slot, _ := plan.OwnsUnit(name); u.NeedReload && slot >= 0 {
				a.failed[slot] = true
			}
		}
		for _, done := range a.result.Applied {
			if done.Slot >= 0 && isUnitFile(done.Subject) {
				a.failed[done.Slot] = true
			}
		}
	case c.Slot >= 0, a.uninstall, ofAllJobs(c):
		a.failed[c.Slot] = true
	case isUnitFile(c.Subject):
		a.theirs = append(a.theirs, path.Base(c.Subject))
	}
	if c.Slot < 0 {
		return err
	}
	return &SlotError{c.Slot, err}
}

// ofAllJobs reports whether a change is to something that the jobs of all slots run or
// read. The hooks are: without them nothing checks what a job brings along.
func ofAllJobs(c Change) bool {
	const dir = "/etc/buildkite-agent/"
	return c.Slot < 0 && c.files() && !c.away && strings.HasPrefix(c.Subject, dir)
}

// refuses reports whether a change would replace a file that kbnode did not write.
func (a *applier) refuses(c Change) bool {
	refuses := c.Kind == Adopt && !a.h.Adopt
	if refuses {
		_ = a.fail(c, nil) // Apply has the error
	}
	return refuses
}

// skips reports whether a change is not made because something before it failed.
func (a *applier) skips(c Change) bool {
	switch {
	case c.Kind == Reload:
		return !a.reloads()
	case !isSlice(c.Subject) && slices.Contains(a.theirs, c.Subject):
		return c.Kind == Start || c.Kind == Restart || c.Kind == Enable
	case len(a.failed) == 0:
		return false
	case c.Slot < 0: // uninstall removes the node's own only when all slots are gone
		return a.uninstall && c.files()
	case a.keepsJobsAway(c):
		return false
	}
	return a.failed[c.Slot] || a.failed[-1] && !c.files() && c.phase != phaseRetire
}

// reloads reports whether systemd has something to read again.
func (a *applier) reloads() bool {
	for _, u := range a.s.Units {
		if u.NeedReload {
			return true
		}
	}
	return slices.ContainsFunc(a.result.Applied, func(c Change) bool {
		return c.Kind == Enable || c.Kind == Disable || isUnitFile(c.Subject) && c.Kind != Chmod
	})
}

// keepsJobsAway reports whether a change stops what must not run, which happens whatever
// else has failed: the units of a slot that takes no jobs, and the agent of a slot that
// holds what another slot is to get. Agents of an earlier setup are excluded: they end
// their job at once if their unit was not replaced.
func (a *applier) keepsJobsAway(c Change) bool {
	if c.Kind != Stop && c.Kind != Drain {
		return false
	}
	w, planned := a.wantUnits[c.Subject]
	switch {
	case isSlice(c.Subject), earlierAgent(a.s.Units[c.Subject]):
		return false
	case !planned || !w.Active:
		return true
	}
	return len(a.dependents(c.Slot)) > 0
}

// conflictsBySlot returns the conflicts of each slot, the node's first.
func conflictsBySlot(changes []Change) []error {
	bySlot := map[int][]string{}
	for _, c := range changes {
		if c.Kind == Adopt {
			bySlot[c.Slot] = append(bySlot[c.Slot], c.Subject)
		}
	}
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(bySlot)) {
		var err error = &ConflictError{Paths: bySlot[k]}
		if k >= 0 {
			err = &SlotError{k, err}
		}
		errs = append(errs, err)
	}
	return errs
}
