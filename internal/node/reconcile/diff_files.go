package reconcile

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// files brings users, directories and files to their planned state: users
// first, because they own the rest, and unit files last, because they name the
// rest. The last of all is the node's service: by it, a first boot sees that its
// installation was not interrupted.
func (d *differ) files() {
	for _, u := range slices.SortedFunc(slices.Values(d.p.Users), func(a, b plan.User) int {
		return cmp.Or(cmp.Compare(slotOf(a.Home), slotOf(b.Home)), cmp.Compare(a.Name, b.Name))
	}) {
		if _, ok := d.s.users[u.Name]; !ok {
			d.add(phaseWrite, Change{Kind: AddUser, Subject: u.Name, Slot: slotOf(u.Home), inert: true})
		}
	}
	for _, dir := range slices.SortedFunc(slices.Values(d.p.Dirs), func(a, b plan.Dir) int { return cmp.Compare(a.Path, b.Path) }) {
		d.dir(dir)
	}
	order := func(f plan.File) int {
		switch {
		case f.Path == plan.UnitDir+"/"+plan.NodeService:
			return 2
		case path.Dir(f.Path) == plan.UnitDir:
			return 1
		}
		return 0
	}
	for _, f := range slices.SortedFunc(slices.Values(d.p.Files), func(a, b plan.File) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Path, b.Path))
	}) {
		d.file(f)
	}
	d.takeOver()
}

func (d *differ) dir(w plan.Dir) {
	c := Change{Kind: Create, Subject: w.Path + "/", Slot: slotOf(w.Path), inert: true}
	switch got, ok := d.s.paths[w.Path]; {
	case !ok:
		c.Diff = describe(w.Mode, w.Owner)
	case got.err != nil:
		c.Kind, c.Why, c.fault, c.inert = Update, "what exists there cannot be read", got.err, false
	case got.kind != directory:
		c.Kind, c.Why, c.inert = Adopt, "something else is in the way", false
	case d.differs(got, w.Mode, w.Owner):
		c.Kind, c.inert = Chmod, false
		c.Diff = d.modes(got, w.Mode, w.Owner)
		c.owner = got.mode == w.Mode
	default:
		return
	}
	d.add(phaseWrite, c)
}

func (d *differ) differs(got pathState, mode uint32, owner string) bool {
	own, _ := wantedOwner(d.s.users, owner) // -1 for a user that does not exist yet
	return got.mode != mode || d.s.chown && (got.uid != own.uid || got.gid != own.gid)
}

func (d *differ) modes(got pathState, mode uint32, owner string) string {
	had := strconv.Itoa(got.uid) + ":" + strconv.Itoa(got.gid)
	for _, u := range d.s.users {
		if u.GID == got.gid && u.UID == got.uid {
			had = u.Name
		} else if u.GID == got.gid && got.uid == 0 {
			had = "root:" + u.Name
		}
	}
	return describe(got.mode, had) + " -> " + describe(mode, cmp.Or(owner, "root"))
}

func (d *differ) file(f plan.File) {
	c := Change{Subject: f.Path, Slot: f.Slot, inert: f.Slot >= 0 && inert(f.Path, f.Slot)}
	got, ok := d.s.paths[f.Path]
	same := got.kind == regular && got.content == f.Content
	if f.Source != "" || f.SHA256 != "" {
		same = got.kind == regular && got.copied
	}
	if f.ModeOnly {
		same = ok && got.kind == regular
		if !same {
			return // if someone has moved it, the next read of it says so
		}
	}
	switch {
	case !ok:
		c.Kind = Create
		c.Diff = lineDiff("", f.Content)
	case got.err != nil:
		c.Kind, c.Why, c.fault = Update, "what exists there cannot be read", got.err
	case got.kind != regular, !got.marked && !same && f.Source == "" && f.SHA256 == "" && !cut(got.content, f.Content):
		// A file that someone else wrote may contain a secret: it is not shown.
		c.Kind, c.Why = Adopt, "not written by kbnode"
		c.Diff = lineDiff("", f.Content)
	case !same:
		c.Kind = Update
		c.Diff = lineDiff(got.content, f.Content)
	case d.differs(got, f.Mode, f.Owner):
		c.Kind = Chmod
		c.Diff = d.modes(got, f.Mode, f.Owner)
	default:
		return
	}
	if f.Source != "" {
		c.Diff = "copy of " + f.Source + "\n"
	}
	if f.SHA256 != "" {
		c.Diff = "program with SHA-256 " + f.SHA256 + "\n"
	}
	if path.Dir(f.Path) == plan.UnitDir && c.Kind != Chmod {
		d.written[path.Base(f.Path)] = true
	}
	if path.Dir(f.Path) == plan.HooksDir && slices.ContainsFunc(d.s.Slots, func(s slot.State) bool { return earlierAgent(s.Agent) }) {
		d.add(phaseHooks, c) // an agent without a slot cannot run them
		return
	}
	d.add(phaseWrite, c)
}

// inert reports whether a file of a slot can be written while the slot runs a job: the
// agent has already read its configuration, and a new unit file of a service does not
// affect a running one, nor a job's process. (A new slice file does, on systemd 252.)
func inert(file string, slot int) bool {
	return path.Dir(file) == plan.AgentDir(slot) || file == plan.UnitDir+"/"+plan.AgentUnit(slot) || file == plan.UnitDir+"/"+plan.JobService(slot)
}

// takeOver makes agents of the old scripts stop gracefully if their slots are not
// planned. Their unit files become kbnode's, changed so that SIGTERM only reaches the
// agent and so that it does not start again, because its configuration is removed. The
// next run retires the units.
func (d *differ) takeOver() {
	if d.uninstall || !d.s.adopt {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.s.paths)) {
		got := d.s.paths[name]
		if _, planned := d.wantFiles[name]; planned || got.marked || got.kind != regular || got.slot < 0 || name != plan.UnitDir+"/"+plan.AgentUnit(got.slot) {
			continue
		}
		d.add(phaseWrite, Change{
			Kind: Adopt, Subject: name, Slot: got.slot, Why: "no slot is planned for it", inert: true,
			text: "# " + plan.Marker + ", to stop this agent when its job is done.\n" + strings.TrimRight(got.content, "\n") +
				"\n\n[Service]\nKillMode=mixed\nTimeoutStopSec=infinity\nRestart=no\n",
		})
	}
}

// removeEarlier removes, with a backup, what an earlier setup left and no plan overwrites. It
// comes late: until systemd has read an agent's new unit it may start the old one again,
// which then reads its configuration.
func (d *differ) removeEarlier() {
	if d.uninstall {
		return
	}
	ours := d.s.paths[plan.HooksDir+"/agent-startup"].marked // no longer an earlier setup's
	for _, name := range slices.Sorted(maps.Keys(d.s.paths)) {
		got := d.s.paths[name]
		if _, planned := d.wantFiles[name]; planned || got.marked || got.kind == directory || got.kind == leftover || ours && plan.IsOperatorHook(name) {
			continue
		}
		for _, e := range plan.EarlierFiles {
			if slot, ok := plan.MatchOwned(e.Pattern, name); ok {
				d.add(phaseHooks, Change{
					Kind: Adopt, Subject: name, Slot: slot, Why: e.Why + ", so it is removed",
					away: true, inert: slot >= 0,
				})
			}
		}
	}
}

// removals deletes what is kbnode's but unplanned: files, what systemd keeps of
// SetProperties, temporary files, directories and users.
func (d *differ) removals() {
	names := slices.Sorted(maps.Keys(d.s.paths))
	for _, name := range names {
		got := d.s.paths[name]
		_, planned := d.wantFiles[name]
		c := Change{Kind: Delete, Subject: name, Slot: got.slot}
		switch {
		case planned:
			continue
		case got.kind == leftover:
			c.Why, c.inert = "left by an interrupted run", true
		case got.kind == input && got.marked && d.uninstall:
		case got.kind == regular && got.marked:
			c.Diff = lineDiff(got.content, "")
		default:
			continue
		}
		if !d.uninstall && c.Why == "" {
			c.Why = "no longer planned"
		}
		d.deleted[name] = true
		d.add(phaseDelete, c)
	}
	d.removeDirs(names)
	for _, name := range slices.Sorted(maps.Keys(d.s.users)) {
		if slices.ContainsFunc(d.p.Users, func(u plan.User) bool { return u.Name == name }) {
			continue
		}
		for _, pattern := range plan.OwnedUsers {
			if slot, ok := plan.MatchOwned(pattern, name); ok {
				d.add(phaseDelete, Change{Kind: DelUser, Subject: name, Slot: slot})
			}
		}
	}
}

// removeDirs deletes directories of unplanned slots and, at uninstall, the node's own:
// inner ones first, and those that others may use only if they contain nothing of others.
func (d *differ) removeDirs(names []string) {
	for _, owned := range append([]plan.OwnedDir{runtimeDirs}, plan.OwnedDirs...) {
		for _, name := range names {
			got := d.s.paths[name]
			_, planned := d.wantDirs[name]
			if got.kind != directory || got.owned != owned || planned || !d.uninstall && !d.outlived(name, got) {
				continue
			}
			if _, planned := d.wantSlices[strings.TrimSuffix(path.Base(name), ".d")]; planned {
				continue
			}
			if owned.All && got.slot >= 0 && d.s.chown && got.uid != 0 {
				if u, ok := d.s.users[plan.UserName(got.slot)]; !ok || u.UID != got.uid {
					continue // someone else's
				}
			}
			if !owned.All && slices.ContainsFunc(got.entries, func(e string) bool { return !d.deleted[e] && !isRuntime(e) }) {
				continue
			}
			d.deleted[name] = true
			d.add(phaseDelete, Change{Kind: Delete, Subject: name + "/", Slot: got.slot})
		}
	}
}

// outlived reports whether an unplanned directory is deleted before uninstall: that of a slot, and
// that of an agent's release when no agent runs anything but what is planned now, and all that run have
// registered: until then it is the way back.
func (d *differ) outlived(name string, got pathState) bool {
	if path.Dir(name) != plan.AgentsDir {
		return got.slot >= 0
	}
	if slices.ContainsFunc(d.s.Slots, func(s slot.State) bool {
		return !slices.Contains([]string{"", "inactive"}, s.Agent.Active) && !s.Registered
	}) {
		return false
	}
	for unit, u := range d.s.Units {
		if slot, _ := plan.OwnsUnit(unit); isAgent(unit, slot) && u.MainPID > 0 && u.Generation != d.wantUnits[unit].Generation {
			return false
		}
	}
	return true
}

// isRuntime reports whether a file is what systemd keeps of SetProperties. It is deleted
// with its directory.
func isRuntime(name string) bool {
	unit := strings.TrimSuffix(path.Base(path.Dir(name)), ".d")
	return slices.ContainsFunc(runtimeNames, func(property string) bool { return runtimeFile(unit, property) == name })
}
