package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// postpone defers changes that would touch a running job. While a slot is busy, only its
// inert files are written. If anything else has to change, its agent is asked to finish
// its job and take no more, and the rest waits. A slot that is to get CPUs or a GPU from
// a busy slot waits with it. Until then it keeps serving as it is, and is drained as well
// if a later look finds it busy.
func (d *differ) postpone() {
	waits := map[int]string{} // why, by slot
	foreignJob := ""          // a job outside kbnode's slices
	old := ""                 // a job of an earlier setup
	for _, slot := range d.s.Slots {
		busy := slot.Busy()
		if busy == "" && slot.Agent.Stopping() {
			busy = fmt.Sprintf("the agent of slot %s to stop", slot.Name)
		}
		if busy == "" || d.s.now {
			continue
		}
		waits[slot.Index] = "waits for " + busy
		if slot.Job != nil && !strings.HasPrefix(slot.Agent.Cgroup, "/"+plan.ParentSlice+"/") {
			foreignJob = waits[slot.Index]
		}
		if earlierAgent(slot.Agent) {
			old = waits[slot.Index]
		}
	}
	if len(waits) == 0 {
		return
	}
	busy := maps.Clone(waits)
	for _, slot := range d.s.Slots {
		if why := busy[slot.Index]; why != "" {
			d.postponeBusy(slot, why)
		}
	}
	d.postponeOwners(old)
	d.postponeNode(waits, foreignJob)
	d.spread(waits)
	for slot, why := range waits {
		if busy[slot] == "" {
			d.deferSlot(slot, why)
		}
	}
	d.keepUsed()
}

// keepUsed keeps files of the node that are no longer planned while slots run with earlier files,
// which may name them.
func (d *differ) keepUsed() {
	why := ""
	for _, c := range d.out {
		if c.Slot >= 0 && c.Deferred != "" {
			why = c.Deferred
		}
	}
	for i := range d.out {
		if c := &d.out[i]; c.Slot < 0 && c.Kind == Delete && !c.inert && c.Deferred == "" {
			c.Deferred = why
		}
	}
}

// holds returns the CPUs that a slot has now by its own limits.
func (d *differ) holds(k int) cpuset.Set {
	files := d.s.Slices[plan.SliceName(k)].Files
	if files[slot.FileOwnCPUs] == "" {
		return cpuset.Set{}
	}
	held, _ := cpuset.Parse(files[slot.FileCPUs])
	return held
}

// devicesLost returns the devices that a slot has now and will not keep, as lines of a policy.
// Devices without a number are left out, because all slots of a vendor share them.
func (d *differ) devicesLost(slot int) []string {
	unit := plan.SliceName(slot)
	planned := deviceLines(d.wantSlices[unit])
	return slices.DeleteFunc(slices.Clone(d.s.Slices[unit].Devices), func(line string) bool {
		name, _, _ := strings.Cut(line, " ")
		return slices.Contains(planned, line) || strings.TrimRight(name, "0123456789") == name
	})
}

// dependents returns the slots that are to get CPUs or devices which a slot has now.
func (d *differ) dependents(slot int) []int {
	held, left := d.holds(slot), d.devicesLost(slot)
	var all []int
	for _, w := range d.p.Slices {
		cpus, _ := cpuset.Parse(w.CPUs)
		lines := deviceLines(w)
		takes := !cpus.Disjoint(held) || slices.ContainsFunc(left, func(line string) bool { return slices.Contains(lines, line) })
		if takes && w.Slot >= 0 && w.Slot != slot {
			all = append(all, w.Slot)
		}
	}
	return all
}

// spread adds to waits the slots that depend on a waiting slot, transitively.
func (d *differ) spread(waits map[int]string) {
	next := slices.Sorted(maps.Keys(waits))
	for len(next) > 0 {
		k := next[0]
		next = next[1:]
		for _, slot := range d.dependents(k) {
			if waits[slot] == "" {
				waits[slot], next = waits[k], append(next, slot)
			}
		}
	}
}

// postponeBusy defers the changes of one busy slot.
func (d *differ) postponeBusy(slot slot.State, why string) {
	mine := func(c Change) bool { return c.Slot == slot.Index && !c.inert }
	if !slices.ContainsFunc(d.out, func(c Change) bool { return mine(c) && c.Kind != Start }) {
		// Nothing changes except that something does not run. An agent that was killed
		// may start again beside what is left of its job, because it clears that away
		// first. One that is stopping cannot start yet.
		if slot.Agent.Stopping() {
			d.deferSlot(slot.Index, why)
		}
		return
	}
	d.deferSlot(slot.Index, why)
	// Instead of the agent's own stop, ask it to stop without waiting.
	d.out = slices.DeleteFunc(d.out, func(c Change) bool { return c.Kind == Stop && c.Subject == slot.Agent.Name })
	if slot.Agent.Running() && !slot.Agent.Stopping() {
		phase := phaseDrain
		if w := d.wantUnits[slot.Agent.Name]; !w.Active && !earlierAgent(slot.Agent) {
			phase = phaseParkBusy
		}
		d.add(phase, Change{
			Kind: Drain, Subject: slot.Agent.Name, Slot: slot.Index, inert: true,
			Why: "other changes wait until it has finished its job",
		})
	}
}

// earlierAgent reports whether an agent runs that kbnode did not start.
func earlierAgent(u slot.Unit) bool { return u.Running() && u.MainPID > 0 && u.Generation == "" }

// postponeOwners leaves the node's directories to the user of an earlier setup while one
// of its jobs runs: one of them is the user's home, where jobs write. Modes change at
// once, because slots have directories below.
func (d *differ) postponeOwners(why string) {
	for i := range d.out {
		c := &d.out[i]
		if why == "" || c.Kind != Chmod || c.Slot >= 0 || !strings.HasSuffix(c.Subject, "/") {
			continue
		}
		if c.owner {
			c.Deferred = why
		} else {
			c.mode, c.Why = true, "its owner "+why
		}
	}
}

// deferSlot defers all changes of a slot that matter to a job. A slot that waits for
// another one has no job, but its files stay as they are too: its agent would read them
// at its next start and disagree with its limits. An idle agent stops nevertheless if the
// slot is to take no jobs, or if it is of an earlier setup: the node's hooks are not for it.
func (d *differ) deferSlot(slot int, why string) {
	s := d.s.Slot(slot)
	idle, old := s.Busy() == "" && !s.Agent.Stopping(), earlierAgent(s.Agent)
	for i := range d.out {
		c := &d.out[i]
		if c.Slot != slot || c.Deferred != "" || c.inert && (!idle || old) {
			continue
		}
		if c.Kind == Stop && idle && (old || c.phase == phasePark && isAgent(c.Subject, slot)) {
			continue
		}
		c.Deferred = why
	}
}

// postponeNode defers changes of the node itself: of the slice above all slots if it
// would take CPUs from a busy slot, of the partition while a job runs outside it, and at
// uninstall of everything that jobs use. It adds slots to waits that cannot get their
// CPUs because of that.
func (d *differ) postponeNode(waits map[int]string, foreignJob string) {
	if d.uninstall {
		busy := slices.Sorted(maps.Keys(waits))
		for i := range d.out {
			if c := &d.out[i]; c.Slot < 0 && (c.phase != phaseRetire || isSlice(c.Subject)) {
				c.Deferred = waits[busy[0]]
			}
		}
		return
	}
	narrows := d.narrows(waits)
	for i := range d.out {
		c := &d.out[i]
		isParent := c.Subject == plan.ParentSlice || c.Subject == plan.UnitDir+"/"+plan.ParentSlice
		if isParent && narrows != "" {
			c.Deferred = narrows
		} else if c.Kind == Partition && foreignJob != "" {
			c.Deferred = foreignJob
		}
	}
}

// narrows returns what the slice above all slots waits for, because it would take CPUs
// from a waiting slot; "" if nothing. It adds to waits the slots that are to get CPUs
// that the slice does not have yet.
func (d *differ) narrows(waits map[int]string) string {
	parent, ok := d.wantSlices[plan.ParentSlice]
	if !ok || parent.CPUs == "" {
		return ""
	}
	planned, _ := cpuset.Parse(parent.CPUs)
	why := ""
	for _, k := range slices.Sorted(maps.Keys(waits)) {
		if d.holds(k).Difference(planned).Len() > 0 {
			why = waits[k]
		}
	}
	now, _ := cpuset.Parse(d.s.Slices[plan.ParentSlice].Files[slot.FileOwnCPUs])
	if why == "" || now.Len() == 0 {
		return why
	}
	for _, w := range d.p.Slices {
		if cpus, _ := cpuset.Parse(w.CPUs); w.Slot >= 0 && waits[w.Slot] == "" && cpus.Difference(now).Len() > 0 {
			waits[w.Slot] = why
		}
	}
	return why
}
