package reconcile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// settings is what messages call the subject of a Tune.
const settings = "settings of the machine"

// tune sets what is not as planned, and restores what is no longer planned: everything
// that does not matter to a running job in one change, and the clocks of each GPU when
// its slots are idle.
func (d *differ) tune() {
	t := d.s.tune
	if !t.known {
		return
	}
	d.tuneAll(phaseTune, Tune, t.drift)
	d.tuneAll(phaseUntune, Untune, t.back)
	if t.exists && len(d.p.Tunables) == 0 && len(t.back) == 0 && len(t.record.Settings) == 0 {
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
		switch slots := c.tuned[0].Slots; len(slots) {
		case 0:
		case 1:
			c.Slot, c.Subject = slots[0], "clocks of "+plan.SlotName(slots[0])
		default:
			c.Subject = "clocks of the GPU at " + c.tuned[0].PCI
		}
		d.add(phase, c)
	}
}

// busyOf returns which job of these slots a change has to wait for; "" if none.
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

// holdClocks keeps a job's clocks as they are, even with --now. Only an uninstall with
// --now has stopped the job by then.
func (d *differ) holdClocks() {
	for i := range d.out {
		if c := &d.out[i]; len(c.tuned) > 0 && c.Deferred == "" {
			c.Deferred = d.busyOf(c.tuned[0].Slots)
		}
	}
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
