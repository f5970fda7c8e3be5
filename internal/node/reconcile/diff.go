package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Diff returns what has to change for a machine to be as planned, in the order of
// application. It is pure. An empty plan removes everything of kbnode's. Changes that
// would touch a running job are Deferred.
func Diff(p *plan.Plan, s *State) []Change {
	d := newDiffer(p, s)
	d.retire()
	d.staleNetworks()
	d.files()
	d.removeEarlier()
	d.removals()
	d.stops()
	d.slices()
	d.starts()
	d.enables()
	d.tune()
	d.postpone()
	d.protect()
	d.reload()
	slices.SortStableFunc(d.out, func(a, b Change) int { return cmp.Compare(a.phase, b.phase) })
	return d.out
}

// empty reports whether a plan wants nothing at all, as uninstall does. One with slots alone is of a node that cannot be planned.
func empty(p *plan.Plan) bool {
	return len(p.Slots)+len(p.Files)+len(p.Dirs)+len(p.Users)+len(p.Units)+len(p.Slices) == 0
}

type differ struct {
	p          *plan.Plan
	s          *State
	uninstall  bool
	wantFiles  map[string]plan.File  // planned, by path
	wantDirs   map[string]plan.Dir   // planned, and those with planned files
	wantUnits  map[string]plan.Unit  // planned, by name
	wantSlices map[string]plan.Slice // planned, by unit
	written    map[string]bool       // unit files to write
	deleted    map[string]bool       // paths to delete
	out        []Change
}

func newDiffer(p *plan.Plan, s *State) *differ {
	d := &differ{
		p: p, s: s, uninstall: empty(p),
		wantFiles: map[string]plan.File{}, wantDirs: map[string]plan.Dir{},
		wantUnits: map[string]plan.Unit{}, wantSlices: map[string]plan.Slice{},
		written: map[string]bool{}, deleted: map[string]bool{},
	}
	for _, f := range p.Files {
		d.wantFiles[f.Path] = f
		d.wantDirs[path.Dir(f.Path)] = plan.Dir{}
	}
	for _, dir := range p.Dirs {
		d.wantDirs[dir.Path] = dir
	}
	for _, u := range p.Units {
		d.wantUnits[u.Name] = u
	}
	for _, sl := range p.Slices {
		d.wantSlices[sl.Unit] = sl
	}
	return d
}

func (d *differ) add(phase phase, c Change) {
	c.phase = phase
	d.out = append(d.out, c)
}

func isAgent(unit string, slot int) bool { return slot >= 0 && unit == plan.AgentUnit(slot) }

func isSlice(unit string) bool { return strings.HasSuffix(unit, ".slice") }

// retire stops and disables kbnode's unplanned units: the node's own first, so that the
// daemon starts nothing again, then agents, sockets, slices and their parent.
func (d *differ) retire() {
	var stale []string
	for _, name := range slices.Sorted(maps.Keys(d.s.Units)) {
		_, unit := d.wantUnits[name]
		_, slice := d.wantSlices[name]
		if !unit && !slice && d.retires(name) {
			stale = append(stale, name)
		}
	}
	slices.SortStableFunc(stale, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	for _, name := range stale {
		u := d.s.Units[name]
		slot, _ := plan.OwnsUnit(name)
		why := "no longer planned"
		if d.uninstall {
			why = "" // that is what was asked for
		}
		if u.Enabled {
			d.add(phaseRetire, Change{Kind: Disable, Subject: name, Slot: slot, Why: why, inert: true})
		}
		if u.Running() || u.Active == "failed" {
			d.add(phaseRetire, Change{Kind: Stop, Subject: name, Slot: slot, Why: why})
		}
	}
}

// rank orders units as they stop; they start in the reverse order.
func rank(unit string) int {
	slot, _ := plan.OwnsUnit(unit)
	switch {
	case slot < 0 && !isSlice(unit):
		return 0
	case isAgent(unit, slot):
		return 1
	case !isSlice(unit):
		return 2
	case slot >= 0:
		return 3
	}
	return 4
}

// retires reports whether kbnode is to stop an unplanned unit: kbnode started it or wrote
// its file, or the file is gone and only the name is left.
func (d *differ) retires(name string) bool {
	if name == plan.InstallService {
		return d.s.Units[name].Enabled
	}
	if slot, ok := plan.IsJobSlice(name); ok {
		_, planned := d.wantSlices[plan.SliceName(slot)]
		return !planned
	}
	if g := d.s.Units[name].Generation; g != "" && g != unknown {
		return true // kbnode started it, whatever has become of its file
	}
	file, ok := d.s.paths[plan.UnitDir+"/"+name]
	if ok {
		return file.marked
	}
	return !d.s.Units[name].Exists() || d.s.Units[name].NeedReload
}

// stops stops agents that are to run something else, or nothing, and the other units of
// parked slots: the agents first, because their units clear the slots through the sockets. An agent of the old
// scripts stops after the reload, so that systemd stops it in the new, graceful way.
func (d *differ) stops() {
	units := d.planned()
	slices.SortStableFunc(units, func(a, b plan.Unit) int { return cmp.Compare(rank(a.Name), rank(b.Name)) })
	for _, w := range units {
		u := d.s.Units[w.Name]
		if w.Slot < 0 || !u.Running() || u.Stopping() {
			continue
		}
		switch {
		case !w.Active && !earlierAgent(u):
			d.add(phasePark, Change{Kind: Stop, Subject: w.Name, Slot: w.Slot, Why: "slot takes no jobs"})
		case !w.Active:
			d.add(phaseStop, Change{Kind: Stop, Subject: w.Name, Slot: w.Slot, Why: "slot takes no jobs"})
		case isAgent(w.Name, w.Slot) && d.restarts(w, u) != "":
			d.add(phaseStop, Change{Kind: Stop, Subject: w.Name, Slot: w.Slot, Why: d.restarts(w, u)})
		}
	}
}

// planned returns the units in the order in which they start: sockets, agents, the node's
// own.
func (d *differ) planned() []plan.Unit {
	return slices.SortedStableFunc(slices.Values(d.p.Units), func(a, b plan.Unit) int {
		return cmp.Or(cmp.Compare(rank(b.Name), rank(a.Name)), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Name, b.Name))
	})
}

// outdated reports whether a running unit was started with something other than what is
// planned now.
func outdated(w plan.Unit, u slot.Unit) bool {
	return w.Generation != "" && u.MainPID+u.ControlPID > 0 && u.Generation != w.Generation && u.Generation != unknown
}

func (d *differ) slices() {
	planned := slices.SortedFunc(slices.Values(d.p.Slices), func(a, b plan.Slice) int {
		return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Unit, b.Unit))
	})
	for _, w := range planned {
		got, running := d.s.Slices[w.Unit], d.s.Units[w.Unit].Running()
		why := ""
		switch mismatches := slot.Compare(w, got); {
		case !running:
			d.add(phaseSlice, Change{Kind: Start, Subject: w.Unit, Slot: w.Slot})
			why = "after its start"
		case len(mismatches) > 0:
			why = mismatches[0].String()
		case d.written[w.Unit]:
			why = "its unit file changed"
		case !sameDevices(w, got):
			why = "its device policy differs from the plan"
		default:
			continue
		}
		d.add(phaseSlice, Change{Kind: Set, Subject: w.Unit, Slot: w.Slot, Why: why})
	}
	for _, w := range planned {
		now, has := d.s.Slices[w.Unit].Files[slot.FilePartition]
		running := d.s.Units[w.Unit].Running()
		if w.Partition && w.CPUs != "" && d.s.refused != w.CPUs && (!running || has && !strings.HasPrefix(now, "root")) {
			d.add(phaseSlice, Change{Kind: Partition, Subject: w.Unit, Slot: w.Slot, Why: "keeps everything else off CPUs " + w.CPUs})
		}
	}
}

func (d *differ) starts() {
	for _, w := range d.planned() {
		u := d.s.Units[w.Name]
		c := Change{Kind: Start, Subject: w.Name, Slot: w.Slot}
		switch {
		case !w.Active:
			continue
		case !u.Running():
			if u.Active == "failed" {
				c.Why = "it failed: " + cmp.Or(u.Result, "unknown reason")
			}
		case w.Slot >= 0 && u.Stopping():
			c.Why = "it is stopping"
		case d.restarts(w, u) == "":
			continue
		case isAgent(w.Name, w.Slot):
			c.Why = d.restarts(w, u)
		default:
			c.Kind, c.Why = Restart, d.restarts(w, u)
		}
		d.add(phaseStart, c)
	}
}

// restarts returns why a running unit has to start again; "" if it need not. An agent whose socket is gone may have a directory
// mounted that is gone, too.
func (d *differ) restarts(w plan.Unit, u slot.Unit) string {
	switch {
	case outdated(w, u), isAgent(w.Name, w.Slot) && u.Clearing() && d.written[w.Name]: // it starts again as the pass goes on
		return "its configuration changed"
	case w.Slot >= 0 && d.written[w.Name] && strings.HasSuffix(w.Name, ".socket"):
		return "its unit file changed"
	case w.Slot >= 0:
		return d.s.Slot(w.Slot).CutOff
	}
	return ""
}

func (d *differ) enables() {
	for _, w := range d.planned() {
		switch u := d.s.Units[w.Name]; {
		case w.Enabled && !u.Enabled:
			d.add(phaseEnable, Change{Kind: Enable, Subject: w.Name, Slot: w.Slot, inert: true})
		case !w.Enabled && u.Enabled:
			d.add(phaseEnable, Change{Kind: Disable, Subject: w.Name, Slot: w.Slot, Why: "kbnode starts it", inert: true})
		}
	}
}

// reload makes systemd read its unit files once, if any change or have changed without
// its knowing.
func (d *differ) reload() {
	why := ""
	for _, name := range slices.Sorted(maps.Keys(d.s.Units)) {
		if d.s.Units[name].NeedReload {
			why = name + " changed on disk"
		}
	}
	changed := 0
	for _, c := range d.out {
		switch {
		case c.Deferred != "":
		case (c.phase == phaseDelete || c.phase == phaseWrite) && isUnitFile(c.Subject) && c.Kind != Chmod:
			changed++
		case c.Kind == Enable:
			why = c.Subject + " is enabled"
		case c.Kind == Disable:
			why = c.Subject + " is disabled"
		}
	}
	switch {
	case changed == 1:
		why = "1 unit file changes"
	case changed > 1:
		why = strconv.Itoa(changed) + " unit files change"
	}
	if why != "" && !d.s.Offline {
		d.add(phaseReload, Change{Kind: Reload, Subject: "systemd", Slot: -1, Why: why})
	}
}

func isUnitFile(name string) bool {
	return strings.HasPrefix(name, plan.UnitDir+"/") && !strings.HasPrefix(path.Base(name), ".") || strings.HasPrefix(name, runtimeDir+"/")
}

// describe formats a mode and owner for people.
func describe(mode uint32, owner string) string { return fmt.Sprintf("%04o %s", mode, owner) }
