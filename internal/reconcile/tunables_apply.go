package reconcile

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// tune changes settings. Their original values are on disk before the first one changes.
// A setting that cannot be made is a warning.
func (a *applier) tune(ctx context.Context, c Change) error {
	r := &a.s.tune.record
	for _, t := range c.tuned {
		r.begin(t)
	}
	if err := a.h.writeRecord(r); err != nil {
		return err
	}
	for _, t := range c.tuned {
		err := a.h.before("tune", t.Name)
		if err == nil {
			err = a.h.setting(ctx, t.Tunable)
		}
		if errors.Is(err, errNotTaken) {
			_ = a.h.writeSetting(t.Name, t.Form, t.now) // the first error says what is wrong
		}
		if errors.Is(err, fs.ErrNotExist) && t.group != t.Name { // an interrupt that was freed meanwhile
			r.forget(t.Name)
			continue
		}
		s := r.find(t.Name)
		if s.Done = s.Done || err == nil; err != nil {
			a.refused(s, t, err)
		}
	}
	// For later looks: from now on, any difference is someone else's change.
	return a.h.writeRecord(r)
}

// setting changes one setting of the machine.
func (h *Host) setting(ctx context.Context, t plan.Tunable) error {
	uuid, setting, ok := t.GPU()
	if !ok {
		return h.writeSetting(t.Name, t.Form, t.Value)
	}
	s := probe.Setting{GPU: uuid, Name: setting, Value: t.Value}
	if h.SetGPU != nil {
		return h.SetGPU(ctx, s)
	}
	return probe.Set(ctx, probe.Options{}, s)
}

// refused records that a setting cannot be made, so that the kernel is not asked at every
// look.
func (a *applier) refused(s *saved, t tuned, err error) {
	s.Tries++
	if _, _, gpu := t.GPU(); !gpu && !passing(err) {
		s.Tries = maxTries
	}
	managed := t.group != t.Name && (errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EPERM))
	if why := "is not set: " + reason(err); managed {
		s.Why = "" // the kernel manages this interrupt itself; newer ones say EPERM
	} else if s.Why != why {
		s.Why = why
		a.h.log().Warn("setting not applied", "path", t.Name, "value", t.Value, "err", err)
		a.result.Warnings = append(a.result.Warnings, t.Name+" "+why)
	}
}

// passing reports whether the kernel may take a value later: the CPUs have no room for an
// interrupt, or it is moving at the moment.
func passing(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOSPC)
}

// reason returns an error without the path, which the subject names.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// untune restores settings and removes them from the record.
func (a *applier) untune(ctx context.Context, c Change) error {
	r := &a.s.tune.record
	for _, t := range c.tuned {
		if t.restores() {
			err := a.h.before("untune", t.Name)
			if err == nil {
				err = a.h.setting(ctx, t.Tunable)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				a.h.log().Warn("setting not restored", "path", t.Name, "value", t.Value, "err", err)
				a.result.Warnings = append(a.result.Warnings, t.Name+" is not restored to "+t.Value+": "+reason(err))
			}
		} else if t.foreign() {
			a.h.log().Warn("setting left as another program set it", "path", t.Name, "value", t.now, "was", t.Value)
		}
		r.forget(t.Name)
	}
	if len(a.p.Tunables) == 0 && len(r.Settings) == 0 {
		return wrap(a.h.remove(plan.TunablesPath, false), "delete "+plan.TunablesPath)
	}
	return a.h.writeRecord(r)
}
