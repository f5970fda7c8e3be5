package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/machine/detect/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// settings is what messages call the subject of a Tune.
const settings = "settings of the machine"

// tune sets what is planned, and restores what no longer is: everything that does not matter to a
// running job in one change, and the clocks of each GPU when its slots are idle.
func (d *differ) tune() {
	t := d.s.tune
	if t.saved == nil {
		return
	}
	d.tuneAll(phaseTune, Tune, t.set)
	d.tuneAll(phaseUntune, Untune, t.restore)
	if t.exists && len(d.p.Tunables) == 0 && len(t.restore) == 0 && len(t.saved.Settings) == 0 {
		d.add(phaseUntune, Change{Kind: Untune, Subject: settings, Slot: -1, Why: "kbnode no longer changes any"}) // its file is of an earlier boot
	}
}

func (d *differ) tuneAll(phase phase, kind Kind, list []tuned) {
	all := Change{Kind: kind, Subject: settings, Slot: -1}
	var clocks []Change // which a GPU without persistence mode forgets
	for _, t := range list {
		if len(t.Slots) == 0 {
			all.tuned = append(all.tuned, t)
			continue
		}
		text := d.tunedText(kind, t)
		c := Change{Kind: kind, Subject: "clocks of the GPU at " + t.PCI, Slot: -1, Diff: text, Why: strings.TrimSpace(text), Deferred: d.busyOf(t.Slots), tuned: []tuned{t}}
		if len(t.Slots) == 1 {
			c.Slot, c.Subject = t.Slots[0], "clocks of "+plan.SlotName(t.Slots[0])
		}
		clocks = append(clocks, c)
	}
	all.Diff = d.tunedText(kind, all.tuned...)
	values := 0
	for _, t := range all.tuned {
		values += len(t.now)
	}
	if lines := lines(all.Diff); len(lines) > 2 {
		all.Why = strconv.Itoa(values) + " of them"
	} else {
		all.Why = strings.Join(lines, "; ")
	}
	if len(all.tuned) > 0 {
		d.add(phase, all)
	}
	for _, c := range clocks {
		d.add(phase, c)
	}
}

// numbered matches what settings of many CPUs differ in.
var numbered = lazy.Regexp(`policy[0-9]+`)

// tunedText describes what changes, one line for values of the same kind that change alike.
func (d *differ) tunedText(kind Kind, list ...tuned) string {
	type line struct{ name, change string }
	var all []line
	count := map[line]int{}
	add := func(l line) {
		count[l]++
		if count[l] == 1 {
			all = append(all, l)
		}
	}
	for _, t := range list {
		name := numbered().ReplaceAllString(t.Name, "policy*")
		if _, setting, ok := t.GPU(); ok {
			name = "nvml/*/" + setting
		}
		for _, file := range slices.Sorted(maps.Keys(t.now)) {
			to := t.Value
			if kind == Untune {
				to = d.s.tune.saved.Settings[t.Name].Was[file]
			}
			add(line{name, asList(t.Form, t.now[file]) + " -> " + asList(t.Form, to)})
		}
		if t.others {
			add(line{name, "left as another program set it"})
		}
	}
	var text strings.Builder
	for _, l := range all {
		if n := count[l]; n > 1 {
			l.name += fmt.Sprintf(" (%d of them)", n)
		}
		text.WriteString(l.name + ": " + l.change + "\n")
	}
	return text.String()
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

// asList formats a value for people.
func asList(form plan.Form, value string) string {
	if form == plan.Mask {
		if set, err := cpuset.ParseMask(value); err == nil {
			return set.String()
		}
	}
	return value
}

// tune changes settings. The values before are on disk first. A setting that the kernel does not take
// is a warning until the next boot; where the driver did not answer, the next pass tries again.
func (a *applier) tune(ctx context.Context, c Change) error {
	saved := a.s.tune.saved
	for _, t := range c.tuned {
		s := saved.Settings[t.Name]
		if s == nil {
			s = &savedSetting{Was: map[string]string{}, Session: t.session}
			saved.Settings[t.Name] = s
		}
		s.Tunable, s.Done, s.Why = t.Tunable, false, ""
		for name, now := range t.now {
			if _, known := s.Was[name]; !known {
				s.Was[name] = now
			}
		}
	}
	if err := a.h.writeSettings(saved); err != nil {
		return err
	}
	for _, t := range c.tuned {
		s, refused, again := saved.Settings[t.Name], 0, false
		for _, name := range slices.Sorted(maps.Keys(t.now)) {
			err := a.setting(ctx, "tune", name, t.Form, t.Value)
			interrupt := strings.HasPrefix(name, "/proc/irq/") && t.Name != name
			switch {
			case err == nil:
			case ctx.Err() != nil:
				return err // the next pass tries again
			case interrupt && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EPERM)):
				delete(s.Was, name) // it was freed, or the kernel manages it
			default:
				if errors.Is(err, errNotTaken) {
					_ = a.h.writeSetting(name, t.Form, t.now[name]) // the first error says what is wrong
				}
				again = again || errors.Is(err, context.DeadlineExceeded) // a driver that is slow, or asked by another program
				a.h.log().Warn("setting not applied", "path", name, "value", t.Value, "err", err)
				s.Why = "is not set: " + reason(err)
				refused++
				if refused > 1 {
					s.Why += fmt.Sprintf(" (%d of them)", refused)
				}
			}
		}
		s.Done = !again
		if s.Why != "" {
			a.result.Warnings = append(a.result.Warnings, t.Name+" "+s.Why)
		}
	}
	return a.h.writeSettings(saved)
}

// setting changes one value of the machine.
func (a *applier) setting(ctx context.Context, verb, name string, form plan.Form, value string) error {
	if err := a.h.callStep(verb, name); err != nil {
		return err
	}
	uuid, setting, ok := plan.Tunable{Name: name}.GPU()
	if !ok {
		return a.h.writeSetting(name, form, value)
	}
	s := nvml.Setting{GPU: uuid, Name: setting, Value: value}
	if a.h.SetGPU != nil {
		return a.h.SetGPU(ctx, s)
	}
	return probe.Set(ctx, probe.Options{}, s)
}

// reason returns an error without the path, which the subject names.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// untune restores settings. One whose restoring was interrupted, or whose driver did not answer, is
// kept for the next run.
func (a *applier) untune(ctx context.Context, c Change) error {
	saved := a.s.tune.saved
	var errs []error
	for _, t := range c.tuned {
		s, again := saved.Settings[t.Name], false
		for _, name := range slices.Sorted(maps.Keys(t.now)) {
			was := s.Was[name]
			err := a.setting(ctx, "untune", name, t.Form, was)
			switch {
			case err == nil || errors.Is(err, fs.ErrNotExist):
			case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
				again = true
				errs = append(errs, fmt.Errorf("restore %s to %s: %w; try again, or reboot, which undoes it", name, was, err))
			default:
				a.h.log().Warn("setting not restored", "path", name, "value", was, "err", err)
				a.result.Warnings = append(a.result.Warnings, name+" is not restored to "+was+": "+reason(err))
			}
		}
		s.Done = false
		if !again {
			delete(saved.Settings, t.Name)
		}
	}
	if len(a.p.Tunables) == 0 && len(saved.Settings) == 0 {
		return wrap(a.h.remove(plan.TunablesPath, false), "delete "+plan.TunablesPath)
	}
	return errors.Join(append(errs, a.h.writeSettings(saved))...)
}

func (h *Host) writeSettings(r *savedSettings) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return h.Store(plan.TunablesPath, string(text)+"\n")
}

// errNotTaken means that the kernel made something else of a value.
var errNotTaken = errors.New("the kernel does not accept it")

// writeSetting writes a value and checks whether the kernel took it.
func (h *Host) writeSetting(name string, form plan.Form, value string) error {
	f, err := os.OpenFile(h.path(name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if now := h.readSetting(name, form); !met(form, now, value) {
		return fmt.Errorf("%w: it is %q after it was set to %q", errNotTaken, now, value)
	}
	return nil
}

// met reports whether a setting is as planned.
func met(form plan.Form, now, planned string) bool {
	if form != plan.Least {
		return sameValue(form, now, planned)
	}
	found, wanted := strings.Fields(now), strings.Fields(planned)
	for i, text := range wanted {
		least, err := strconv.ParseUint(text, 10, 64)
		if err != nil || i >= len(found) {
			return false
		}
		if n, err := strconv.ParseUint(found[i], 10, 64); err != nil || n < least {
			return false
		}
	}
	return true
}

func sameValue(form plan.Form, a, b string) bool {
	if a == b || form == plan.Least && slices.Equal(strings.Fields(a), strings.Fields(b)) { // the kernel separates several by tabs
		return true
	}
	parse := map[plan.Form]func(string) (cpuset.Set, error){plan.List: cpuset.Parse, plan.Mask: cpuset.ParseMask}[form]
	if parse == nil {
		return false
	}
	x, errA := parse(a)
	y, errB := parse(b)
	return errA == nil && errB == nil && x.Equal(y)
}
