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
	var owners [][]int
	of := map[string][]tuned{}
	for _, t := range list {
		key := fmt.Sprint(t.Slots)
		if of[key] == nil {
			owners = append(owners, t.Slots)
		}
		of[key] = append(of[key], t)
	}
	for _, slots := range owners {
		c := Change{Kind: kind, Subject: settings, Slot: -1, tuned: of[fmt.Sprint(slots)]}
		lines, others := tunedLines(kind, c.tuned)
		switch {
		case len(lines) > 0 && len(lines) <= 2:
			c.Why = strings.Join(lines, "; ")
		case len(lines) > 0:
			c.Why = strconv.Itoa(len(c.tuned)) + " of them"
		}
		if len(lines) > 0 {
			c.Diff = strings.Join(lines, "\n") + "\n"
		}
		if others != "" {
			c.Why = strings.TrimPrefix(c.Why+"; left as another program set it: "+others, "; ")
		}
		switch {
		case len(slots) == 1:
			c.Slot, c.Subject = slots[0], "clocks of "+plan.SlotName(slots[0])
		case len(slots) > 1:
			c.Subject = "clocks of the GPU at " + c.tuned[0].PCI
			c.Deferred = d.busyOf(slots)
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
		if c := &d.out[i]; (c.Kind == Tune || c.Kind == Untune) && c.Slot >= 0 && c.Deferred == "" {
			c.Deferred = d.busyOf([]int{c.Slot})
		}
	}
}

// tunedLines describes what changes, one line for each sort, and names the settings that
// someone else has changed.
func tunedLines(kind Kind, list []tuned) (lines []string, others string) {
	type sort struct{ name, from, to string }
	var sorts []sort
	var foreign []string
	count := map[sort]int{}
	for _, t := range list {
		switch {
		case kind == Untune && t.fate == theirs:
			if name := sortName(t.Name); !slices.Contains(foreign, name) {
				foreign = append(foreign, name)
			}
			continue
		case kind == Untune && t.fate != restored:
			continue
		}
		s := sort{sortName(t.group), asList(t.Form, t.now), asList(t.Form, t.Value)}
		if count[s]++; count[s] == 1 {
			sorts = append(sorts, s)
		}
	}
	for _, s := range sorts {
		name := s.name
		if n := count[s]; n > 1 {
			name += " (" + strconv.Itoa(n) + " of them)"
		}
		lines = append(lines, fmt.Sprintf("%s: %s -> %s", name, s.from, s.to))
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

// sortName returns a name with * in place of its number or GPU.
func sortName(name string) string {
	if _, setting, ok := (plan.Tunable{Name: name}).GPU(); ok {
		return "nvml/*/" + setting
	}
	name, _ = cutNumber(name)
	return name
}
