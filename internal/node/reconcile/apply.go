package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/runner/program"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/machine/textfile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Result is what Apply did.
type Result struct {
	Applied  []Change `json:"applied"`
	Deferred []Change `json:"deferred"` // with the reason in Change.Deferred
	Warnings []string `json:"warnings,omitempty"`
}

// Apply makes the changes that Diff found, in order. After a failure it makes no more
// changes to that slot, except those that keep jobs away from it as planned; all other
// slots get all their changes. If a file that all jobs depend on fails, this applies to
// all slots. The error joins all failures; the next run continues from there.
func (h *Host) Apply(ctx context.Context, p *plan.Plan, s *State, changes []Change) (Result, error) {
	a := &applier{h: h, differ: newDiffer(p, s), failed: map[int]bool{}, late: map[int]string{}}
	if paths := Conflicts(changes); len(paths) > 0 && !h.Adopt {
		if !a.ours() { // a node that kbnode did not set up is changed completely or not at all
			return a.result, &ConflictError{Paths: paths}
		}
		a.errs = conflictsBySlot(changes)
	}
	for i := 0; i < len(changes); {
		if err := ctx.Err(); err != nil {
			return a.result, errors.Join(append(a.errs, err)...)
		}
		n := together(changes[i:])
		if err := a.change(ctx, changes[i:i+n]); err != nil {
			a.errs = append(a.errs, err)
		}
		i += n
	}
	return a.result, errors.Join(a.errs...)
}

// ours reports whether kbnode has written any planned file whose content it plans.
func (d *differ) ours() bool {
	for name, f := range d.wantFiles {
		if d.s.paths[name].marked && !f.ModeOnly {
			return true
		}
	}
	return false
}

type applier struct {
	*differ
	h      *Host
	result Result
	errs   []error
	failed map[int]bool   // slots with a failed change; -1: what all jobs depend on
	theirs []string       // units of the node whose file is not as planned
	late   map[int]string // why slots wait for agents that took a job meanwhile
	parent string         // why the slice above all slots waits for them
}

// together returns how many of the next changes systemd can make at once: starts of the
// same kind of unit.
func together(changes []Change) int {
	first := changes[0]
	if first.Kind != Start || isSlice(first.Subject) || first.Deferred != "" {
		return 1
	}
	n := 1
	for n < len(changes) && changes[n].Kind == Start && changes[n].Deferred == "" &&
		isAgent(changes[n].Subject, changes[n].Slot) == isAgent(first.Subject, first.Slot) &&
		(changes[n].Slot < 0) == (first.Slot < 0) {
		n++
	}
	return n
}

// change makes one change, or several starts at once, and logs each.
func (a *applier) change(ctx context.Context, group []Change) error {
	var do []Change
	for _, c := range group {
		c.Deferred = a.wait(c)
		switch {
		case a.refuses(c): // the error says so
		case c.Deferred != "":
			a.result.Deferred = append(a.result.Deferred, c)
			a.h.log().Debug("change deferred", "kind", c.Kind, "unit", c.Subject, "slot", c.Slot, "why", c.Deferred)
			// A later run has no consent to replace what is in the way.
			if c.Kind == Adopt {
				if err := a.claim(c); err != nil {
					return a.fail(c, err)
				}
			}
		case a.skips(c): // the error says why
		default:
			do = append(do, c)
		}
	}
	if len(do) == 0 {
		return nil
	}
	began := time.Now()
	for _, c := range do {
		if a.h.Progress != nil {
			a.h.Progress(c)
		}
	}
	err := a.apply(ctx, do)
	if errors.Is(err, errLate) {
		do[0].Deferred = a.late[do[0].Slot]
		a.result.Deferred = append(a.result.Deferred, do...)
		return nil
	}
	var bad []string // if the error names units
	for _, err := range parts(err) {
		if one, ok := errors.AsType[*systemd.UnitError](err); ok {
			bad = append(bad, one.Unit)
		}
	}
	for _, c := range do {
		if err != nil && (len(bad) == 0 || slices.Contains(bad, c.Subject)) {
			named := a.fail(c, err)
			if len(do) == 1 {
				err = named
			}
			continue
		}
		a.result.Applied = append(a.result.Applied, c)
		a.h.log().Info("changed", "kind", c.Kind, "subject", c.Subject, "slot", c.Slot, "why", c.Why, "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// wait returns why a change has to wait; "" if it does not.
func (a *applier) wait(c Change) string {
	if c.Deferred != "" {
		return c.Deferred
	}
	if c.Subject == plan.ParentSlice {
		return a.parent
	}
	return a.late[c.Slot]
}

// claim sets aside what is in the way of a change that has to wait. A unit file stays, marked as kbnode's,
// because the job that runs keeps its limits by it.
func (a *applier) claim(c Change) error {
	got := a.s.paths[c.Subject]
	if path.Dir(c.Subject) != plan.UnitDir || got.kind != regular {
		return a.setAside(c)
	}
	err := wrap(a.h.backUp(c.Subject), "back up "+c.Subject)
	if err == nil {
		text := "# " + plan.Marker + ", to be replaced when its job is done.\n" + got.content
		err = wrap(a.h.write(c.Subject, 0o644, owner{0, 0}, strings.NewReader(text), nil), "write "+c.Subject)
	}
	return err
}

// setAside backs up what is in the way of a change, and removes it.
func (a *applier) setAside(c Change) error {
	subject := strings.TrimSuffix(c.Subject, "/")
	err := wrap(a.h.backUp(subject), "back up "+subject)
	if err == nil {
		err = wrap(a.h.remove(subject, false), "remove "+subject)
	}
	return err
}

// apply makes a change. A group of more than one consists of starts.
func (a *applier) apply(ctx context.Context, group []Change) error {
	c := group[0]
	h, subject := a.h, strings.TrimSuffix(c.Subject, "/")
	isDir := subject != c.Subject
	if c.fault != nil {
		return c.fault
	}
	var err error
	switch c.Kind {
	case Create, Update, Chmod:
		if isDir {
			return wrap(a.makeDir(c), "make directory "+subject)
		}
		return wrap(a.writeFile(c), "write "+subject)
	case Adopt:
		switch {
		case c.away:
			return a.setAside(c)
		case isDir:
			err = errors.Join(a.setAside(c), a.makeDir(c))
		default: // without a moment in which the path has neither
			if err = wrap(h.backUp(subject), "back up "+subject); err == nil {
				err = a.writeFile(c)
			}
		}
		return wrap(err, "replace "+subject)
	case Delete:
		if path.Base(subject) == textfile.Name {
			return a.removeMetrics(subject)
		}
		for _, entry := range a.s.paths[subject].entries {
			if isRuntime(entry) {
				err = errors.Join(err, h.remove(entry, false))
			}
		}
		if err == nil {
			err = h.remove(subject, isDir && a.s.paths[subject].owned.All)
		}
		return wrap(err, "delete "+subject)
	case AddUser:
		return a.addUser(ctx, subject)
	case DelUser:
		if err = h.callStep("deluser", subject); err == nil {
			err = h.Users.Remove(ctx, subject)
		}
		return wrap(err, "delete user "+subject)
	case DelNet, Protect, Unprotect:
		return a.network(ctx, c)
	case Partition:
		return a.partition(subject)
	case Tune:
		return a.tune(ctx, c)
	case Untune:
		return a.untune(ctx, c)
	case Start, Restart, Stop, Drain, Set, Reload, Enable, Disable:
		return a.systemd(ctx, group)
	}
	return fmt.Errorf("unknown change %s", c)
}

// removeMetrics removes metrics that the daemon left. If that fails, all else goes anyway.
func (a *applier) removeMetrics(name string) error {
	if err := a.h.callStep("remove", name); err != nil {
		return err
	}
	if err := textfile.Remove(a.h.Root, path.Dir(name)); err != nil {
		a.result.Warnings = append(a.result.Warnings, err.Error())
	}
	return nil
}

func (a *applier) makeDir(c Change) error {
	name := strings.TrimSuffix(c.Subject, "/")
	dir := a.wantDirs[name]
	own, err := wantedOwner(a.s.users, dir.Owner)
	if err != nil {
		return err
	}
	if c.mode {
		own = owner{-1, -1}
	}
	return a.h.mkdir(name, dir.Mode, own)
}

func (a *applier) writeFile(c Change) error {
	if c.text != "" { // the unit of an agent that takeOver lets finish
		return a.h.write(c.Subject, 0o644, owner{0, 0}, strings.NewReader(c.text), nil)
	}
	f := a.wantFiles[c.Subject]
	own, err := wantedOwner(a.s.users, f.Owner)
	if err != nil {
		return err
	}
	if c.Kind == Chmod {
		return a.h.chmod(f.Path, f.Mode, own)
	}
	if err := os.MkdirAll(a.h.path(path.Dir(f.Path)), 0o755); err != nil { //nolint:gosec // system directories are for all to read
		return err
	}
	if f.SHA256 != "" {
		src, err := program.Open()
		if err != nil {
			return err
		}
		return errors.Join(a.h.write(f.Path, f.Mode, own, src, nil), src.Close())
	}
	if f.Source == "" {
		return a.h.write(f.Path, f.Mode, own, strings.NewReader(f.Content), nil)
	}
	src, err := os.Open(a.h.path(f.Source))
	if errors.Is(err, fs.ErrNotExist) && f.Source == f.Path {
		return fmt.Errorf("%w; sudo kbnode upgrade --agent-version fetches it again", err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	return a.h.write(f.Path, f.Mode, own, src, info)
}

func (a *applier) addUser(ctx context.Context, name string) error {
	i := slices.IndexFunc(a.p.Users, func(u plan.User) bool { return u.Name == name })
	if err := a.h.callStep("adduser", name); err != nil {
		return err
	}
	if err := a.h.Users.Add(ctx, a.p.Users[i]); err != nil {
		return fmt.Errorf("add user %s: %w", name, err)
	}
	users, err := host.Tree{Root: a.h.Root}.Users()
	if err == nil {
		a.s.users = users
	}
	return err
}

func wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
