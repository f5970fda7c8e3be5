package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/machine/textfile"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// refusedPath holds the CPUs for which the kernel refused a cpuset partition, so that
// kbnode asks once per boot and plan, not every 30 s.
const refusedPath = "/run/kbnode/partition-refused"

// runtimeDirs are where systemd keeps what SetProperties set, one per slice.
var runtimeDirs = plan.OwnedDir{Pattern: runtimeDir + "/*.slice.d"}

// Observe reads everything that a plan covers, and everything of kbnode's that is no
// longer planned. It changes nothing.
func (h *Host) Observe(ctx context.Context, p *plan.Plan) (*State, error) {
	o := &observer{h: h, p: p, s: &State{
		Offline: h.Systemd == nil,
		Units:   map[string]slot.Unit{},
		Slices:  map[string]slot.Slice{},
		paths:   map[string]pathState{},
		chown:   canChown(),
		adopt:   h.Adopt,
		now:     h.Now,
	}, dirs: map[string][]os.DirEntry{}}
	for _, step := range []func(context.Context) error{o.users, o.files, o.directories, o.units, o.slots, o.network, o.tunables} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return o.s, nil
}

type observer struct {
	h    *Host
	p    *plan.Plan
	s    *State
	dirs map[string][]os.DirEntry // directories already listed
}

func (o *observer) users(context.Context) (err error) {
	o.s.users, err = host.Tree{Root: o.h.Root}.Users()
	return err
}

// list lists a directory once. An absent directory, or a link, has no entries.
func (o *observer) list(dir string) ([]os.DirEntry, error) {
	if entries, ok := o.dirs[dir]; ok {
		return entries, nil
	}
	var entries []os.DirEntry
	info, err := os.Lstat(o.h.path(dir))
	if err == nil && info.IsDir() {
		entries, err = os.ReadDir(o.h.path(dir))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		err = fmt.Errorf("list %s: %w", dir, err)
		if slotOf(dir) < 0 || empty(o.p) {
			return nil, err
		}
		o.s.Warnings = append(o.s.Warnings, err.Error()) // planned paths in it say more
	}
	o.dirs[dir] = entries
	return entries, nil
}

// match calls found for the paths that match a pattern of package plan, and for the
// temporary files left beside such paths.
func (o *observer) match(pattern string, found func(name string, slot int, leftover bool)) error {
	parents := []string{path.Dir(pattern)}
	if strings.ContainsRune(parents[0], '*') {
		parent := parents[0]
		parents = nil
		if err := o.match(parent, func(name string, _ int, left bool) {
			if !left {
				parents = append(parents, name)
			}
		}); err != nil {
			return err
		}
	}
	for _, dir := range parents {
		entries, err := o.list(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			// renameio writes to .NAME<63 random bits> before it renames. With fewer digits
			// than these practically always have, it is an operator's copy.
			if written, ok := strings.CutPrefix(strings.TrimRight(e.Name(), "0123456789"), "."); ok && len(e.Name())-len(written)-1 >= 15 {
				if slot, ok := plan.MatchOwned(pattern, path.Join(dir, written)); ok {
					found(name, slot, true)
					continue
				}
			}
			if strings.HasPrefix(e.Name(), ".") {
				continue
			}
			if slot, ok := plan.MatchOwned(pattern, name); ok {
				found(name, slot, false)
			}
		}
	}
	return nil
}

// files reads planned files and those that kbnode may have written.
func (o *observer) files(context.Context) error {
	var errs []error
	for _, f := range o.p.Files {
		if f.Source != "" || f.SHA256 != "" {
			errs = append(errs, o.copy(f))
		} else {
			errs = append(errs, o.file(f.Path, f.Slot, regular))
		}
	}
	find := func(pattern string, kind pathKind) {
		errs = append(errs, o.match(pattern, func(name string, slot int, left bool) {
			kind := kind
			if left {
				kind = leftover
			}
			errs = append(errs, o.file(name, slot, kind))
		}))
	}
	for _, pattern := range plan.Owned {
		find(pattern, regular)
	}
	for _, name := range slices.Concat(plan.OwnedInputs, plan.OwnedCopies) {
		errs = append(errs, o.file(name, -1, input))
		find(name, input)
	}
	for _, earlier := range plan.EarlierFiles {
		find(earlier.Pattern, foreign)
	}
	if empty(o.p) {
		o.metrics()
	}
	dropIns, err := o.list(runtimeDir)
	errs = append(errs, err)
	for _, d := range dropIns {
		unit := strings.TrimSuffix(d.Name(), ".d")
		slot, ok := plan.OwnsUnit(unit)
		if !ok || !strings.HasSuffix(unit, ".slice") {
			continue
		}
		errs = append(errs, o.dir(path.Join(runtimeDir, d.Name()), slot, runtimeDirs))
	}
	refused, err := readSmall(o.h.path(refusedPath))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("read %s: %w", refusedPath, err))
	}
	cpus, why, _ := strings.Cut(strings.TrimSpace(string(refused)), "\n")
	o.s.refused = cpus
	if why != "" {
		o.s.Warnings = append(o.s.Warnings, "no cpuset partition: "+why)
	}
	return errors.Join(errs...)
}

// metrics finds the files of metrics. They are the daemon's, and only uninstall removes those that it left.
func (o *observer) metrics() {
	dirs, err := textfile.ReadRecord(o.h.Root)
	if err != nil {
		o.s.Warnings = append(o.s.Warnings, err.Error())
	}
	for _, dir := range dirs {
		o.s.paths[path.Join(dir, textfile.Name)] = pathState{kind: input, marked: true, slot: -1}
	}
}

func (o *observer) file(name string, slot int, kind pathKind) error {
	if _, done := o.s.paths[name]; done {
		return nil
	}
	state, err := o.stat(name)
	if err != nil {
		return o.unreadable(name, slot, err)
	}
	if state == nil {
		return nil
	}
	state.slot = slot
	switch {
	case state.kind == regular && slices.Contains(plan.OwnedCopies, name):
		state.marked, state.kind = true, kind
	case state.kind == regular:
		data, err := readSmall(o.h.path(name))
		switch secret := errors.Is(err, fs.ErrPermission); {
		case secret && kind == input:
			return nil // the token is root's, and others may see a plan
		case errors.Is(err, errLarge): // kbnode writes none
		case err != nil && (!secret || kind != foreign):
			return o.unreadable(name, slot, fmt.Errorf("read %s: %w", name, err))
		}
		state.content, state.kind = string(data), kind
		state.marked = ours(name, state.content) || emptied(name, state.content)
		if kind == input || kind == foreign {
			state.content = ""
		}
	}
	o.s.paths[name] = *state
	return nil
}

// unreadable records that what is at a path is unknown. If the path is planned, Apply
// reports that; an unplanned path is left alone, except that uninstall fails.
func (o *observer) unreadable(name string, slot int, err error) error {
	if empty(o.p) {
		return err
	}
	o.s.paths[name] = pathState{kind: other, slot: slot, err: err}
	o.s.Warnings = append(o.s.Warnings, err.Error())
	return nil
}

// copy compares a planned copy with its source by size and time, or with its checksum.
func (o *observer) copy(f plan.File) error {
	state, err := o.stat(f.Path)
	if err != nil || state == nil {
		return err
	}
	state.slot = f.Slot
	if f.SHA256 != "" {
		state.copied = state.kind == regular && o.sum(f.Path) == f.SHA256
	} else {
		a, errA := os.Stat(o.h.path(f.Source))
		b, errB := os.Lstat(o.h.path(f.Path))
		// If one cannot be read, copying it again reports why.
		state.copied = errA == nil && errB == nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
	}
	o.s.paths[f.Path] = *state
	return nil
}

// sum returns the SHA-256 checksum of a file, or "" if it cannot be read; writing it again
// reports why.
func (o *observer) sum(name string) string {
	f, err := os.Open(o.h.path(name))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// stat returns nil if nothing is at a path.
func (o *observer) stat(name string) (*pathState, error) {
	info, err := os.Lstat(o.h.path(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", name, err)
	}
	mode, own := modeAndOwner(info)
	state := &pathState{kind: other, mode: mode, uid: own.uid, gid: own.gid, slot: -1}
	switch {
	case info.Mode().IsRegular():
		state.kind = regular
	case info.IsDir():
		state.kind = directory
	}
	return state, nil
}

// directories reads planned directories and those that kbnode may have made.
func (o *observer) directories(context.Context) error {
	var errs []error
	for _, d := range o.p.Dirs {
		errs = append(errs, o.dir(d.Path, slotOf(d.Path), plan.OwnedDir{}))
	}
	for _, d := range plan.OwnedDirs {
		errs = append(errs, o.match(d.Pattern, func(name string, slot int, left bool) {
			if !left {
				errs = append(errs, o.dir(name, slot, d))
			}
		}))
	}
	return errors.Join(errs...)
}

func (o *observer) dir(name string, slot int, owned plan.OwnedDir) error {
	state, err := o.stat(name)
	if err != nil {
		return o.unreadable(name, slot, err)
	}
	if state == nil {
		return nil
	}
	state.slot, state.owned = slot, owned
	if owned.Pattern != "" && !owned.All && state.kind == directory {
		entries, err := o.list(name)
		if err != nil {
			return err
		}
		for _, e := range entries {
			state.entries = append(state.entries, path.Join(name, e.Name()))
		}
	}
	o.s.paths[name] = *state
	return nil
}

// slotOf returns the slot that a directory belongs to, by its name or that of a directory
// above it; -1 if none.
func slotOf(dir string) int {
	for ; dir != "/" && dir != "."; dir = path.Dir(dir) {
		for _, d := range plan.OwnedDirs {
			if slot, ok := plan.MatchOwned(d.Pattern, dir); ok && slot >= 0 {
				return slot
			}
		}
	}
	return -1
}
