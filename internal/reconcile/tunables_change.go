package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// settings is what messages call the subject of a Tune.
const settings = "settings of the machine"

// tune sets what is not as planned, and restores what is no longer planned: everything
// that does not matter to a running job in one change, and the clocks of each GPU when
// its slots are idle.
func (d *differ) tune() {
	t := d.s.tune
	if t.originals == nil {
		return
	}
	d.tuneAll(phaseTune, Tune, t.drift)
	d.tuneAll(phaseUntune, Untune, t.back)
	if t.exists && len(d.p.Tunables) == 0 && len(t.back) == 0 && len(t.originals.settings) == 0 {
		// It is of an earlier boot, or only lists what could not be set.
		d.add(phaseUntune, Change{Kind: Untune, Subject: settings, Slot: -1, Why: "kbnode no longer changes any"})
	}
}

func (d *differ) tuneAll(phase phase, kind Kind, list []tuned) {
	var changes []Change // one for settings that wait for the same slots
	for _, t := range list {
		i := slices.IndexFunc(changes, func(c Change) bool { return slices.Equal(c.tuned[0].Slots, t.Slots) })
		if i < 0 {
			i, changes = len(changes), append(changes, Change{Kind: kind, Subject: settings, Slot: -1})
		}
		changes[i].tuned = append(changes[i].tuned, t)
	}
	for _, c := range changes {
		lines, others := tunedLines(kind, c.tuned)
		if len(lines) > 0 {
			c.Diff = strings.Join(lines, "\n") + "\n"
			c.Why = strings.Join(lines, "; ")
		}
		if len(lines) > 2 {
			c.Why = strconv.Itoa(len(c.tuned)) + " of them"
		}
		if others != "" {
			c.Why = strings.TrimPrefix(c.Why+"; left as another program set it: "+others, "; ")
		}
		slots := c.tuned[0].Slots
		if len(slots) == 1 {
			c.Slot, c.Subject = slots[0], "clocks of "+plan.SlotName(slots[0])
		} else if len(slots) > 1 {
			c.Subject = "clocks of the GPU at " + c.tuned[0].PCI
		}
		c.Deferred = d.busyOf(slots)
		d.add(phase, c)
	}
}

// busyOf returns which job of these slots a change of their clocks has to wait for, even with
// --now; "" if none. Only an uninstall with --now has stopped the job by then.
func (d *differ) busyOf(slots []int) string {
	if d.uninstall && d.s.now {
		return ""
	}
	for _, s := range d.s.Slots {
		if busy := s.Busy(); busy != "" && slices.Contains(slots, s.Index) {
			return "waits for " + busy
		}
	}
	return ""
}

// tunedLines describes what changes, one line for settings that differ only in the number,
// and names the settings that another program has changed.
func tunedLines(kind Kind, list []tuned) (lines []string, others string) {
	type line struct{ name, from, to string }
	var all []line
	var foreign []string
	count := map[line]int{}
	for _, t := range list {
		name := patternName(t.Name)
		if kind == Untune && t.foreign() && !slices.Contains(foreign, name) {
			foreign = append(foreign, name)
		}
		if kind == Untune && !t.restores() {
			continue
		}
		l := line{name, asList(t.Form, t.now), asList(t.Form, t.Value)}
		if count[l]++; count[l] == 1 {
			all = append(all, l)
		}
	}
	for _, l := range all {
		name := l.name
		if n := count[l]; n > 1 {
			name += " (" + strconv.Itoa(n) + " of them)"
		}
		lines = append(lines, fmt.Sprintf("%s: %s -> %s", name, l.from, l.to))
	}
	return lines, strings.Join(foreign, ", ")
}

// asList formats a value for people.
func asList(form plan.Form, value string) string {
	if form == plan.Mask {
		if set, err := cpuset.ParseMask(value); err == nil {
			return set.String()
		}
	}
	return value
}

// patternName returns a name with * in place of its number or GPU.
func patternName(name string) string {
	if _, setting, ok := (plan.Tunable{Name: name}).GPU(); ok {
		return "nvml/*/" + setting
	}
	name, _ = cutNumber(name)
	return name
}

// tune changes settings. Their original values are on disk before the first one changes.
// A setting that cannot be made is a warning.
func (a *applier) tune(ctx context.Context, c Change) error {
	r := a.s.tune.originals
	for _, t := range c.tuned {
		r.begin(t)
	}
	if err := a.h.writeOriginals(r); err != nil {
		return err
	}
	for _, t := range c.tuned {
		err := a.h.callStep("tune", t.Name)
		if err == nil {
			err = a.h.setting(ctx, t.Tunable)
		}
		switch s := r.settings[t.Name]; {
		case err == nil:
			s.Done = true
		case errors.Is(err, fs.ErrNotExist) && isInterrupt(t.Name): // freed meanwhile
			delete(r.settings, t.Name)
		default:
			if errors.Is(err, errNotTaken) {
				_ = a.h.writeSetting(t.Name, t.Form, t.now) // the first error says what is wrong
			}
			a.refused(s, t, err)
		}
	}
	// For later looks: from now on, any difference is someone else's change.
	return a.h.writeOriginals(r)
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
	managed := isInterrupt(t.Name) && (errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EPERM))
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

// untune restores settings and removes them from the originals.
func (a *applier) untune(ctx context.Context, c Change) error {
	r := a.s.tune.originals
	for _, t := range c.tuned {
		if t.restores() {
			err := a.h.callStep("untune", t.Name)
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
		delete(r.settings, t.Name)
	}
	if len(a.p.Tunables) == 0 && len(r.settings) == 0 {
		return wrap(a.h.remove(plan.TunablesPath, false), "delete "+plan.TunablesPath)
	}
	return a.h.writeOriginals(r)
}
