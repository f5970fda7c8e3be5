package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// maxEntries bounds the files of one area.
const maxEntries = 1 << 18

// recordAreas records what every area holds. Call it before any program of the submission runs.
func (e *engine) recordAreas() error {
	if err := e.findAreas(); err != nil {
		return err
	}
	if e.landlock == 0 && !losesCapability() && (os.Getppid() != 0 || len(e.beside) > 0) {
		e.note("without Landlock (Linux 5.19), programs may open the environment and the pipes of the processes above and beside this one: " +
			"one may read the payload there, or write what a shell or the log goes on with; exec kbnode runner as the container's first process")
	}
	e.dropByteCode()
	e.originals = newOriginals(append(lineage()[1:], e.beside...), e.mayWrite)
	family := append(lineage(), e.beside...)
	e.tmpfs, e.proc, e.logs = map[uint64]bool{}, recordProcState(family), openFiles(family)
	e.theirs, e.sockets = maps.Clone(e.logs), socketsBefore()
	for _, a := range e.areas {
		a.before = map[string]stamp{}
		if err := e.walkArea(a, func(name string, info fs.FileInfo) (err error) {
			if len(a.before) > a.limit() {
				return fs.SkipAll
			}
			if a.kind == jobArea && !e.isSource(name) {
				e.originals.add(name, info)
			}
			if a.kind != jobArea && info.IsDir() && isBlind(name, info) {
				e.note("programs may enter %s but not list it, so what they leave in it, or below it, is not removed: the next program may read it; "+
					"use an image without it, or a kernel with Landlock (Linux 5.19)", name)
			}
			a.before[name], err = e.stampOf(a, name, info, true)
			return err
		}); err != nil {
			return err
		}
		if len(a.before) > a.limit() {
			advice := "start in a smaller directory"
			if a.limit() == maxContainer {
				advice = "use a smaller image, or a kernel with Landlock (Linux 5.19), which keeps programs from them"
			}
			return fmt.Errorf("%s holds more than %d files; %s", a.dir, a.limit(), advice)
		}
	}
	return nil
}

// mayWrite reports whether programs may write to a file that is there.
func (e *engine) mayWrite(path string) bool {
	return slices.ContainsFunc(e.areas, func(a *area) bool { return a.kind != foreignArea && within(a.dir, path) }) && writable(path)
}

// walkArea calls f for everything in an area. f may return fs.SkipDir for a directory, and fs.SkipAll. Another error
// does not end the walk: what comes after it is looked at, too.
func (e *engine) walkArea(a *area, f func(name string, info fs.FileInfo) error) error {
	var errs []error
	_ = filepath.WalkDir(a.dir, func(name string, d fs.DirEntry, err error) error { // each error is in errs
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case name != a.dir && a.borders[name]:
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case err != nil && (a.kind == jobArea || a.kind == temporaryArea) && (d == nil || !closed(name, d)):
			errs = append(errs, err)
			return nil
		case d == nil || err != nil:
			return nil // this user cannot see it, so programs cannot either
		}
		info, err := d.Info()
		if err == nil && !e.isTheirs(a, name, info) {
			err = f(name, info)
		}
		if err != nil && !errors.Is(err, fs.SkipDir) && !errors.Is(err, fs.SkipAll) {
			if !errors.Is(err, fs.ErrNotExist) && len(errs) < maxFaults {
				errs = append(errs, err)
			}
			err = nil
		}
		if err == nil && a.shallow && d.IsDir() && name != a.dir {
			err = fs.SkipDir
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("look at the files in %s: %w", a.dir, err)
	}
	return nil
}

// closed reports whether a directory is another user's, in which programs can neither look nor write, nor enter
// one below.
func closed(name string, d fs.DirEntry) bool {
	info, err := d.Info()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) != os.Geteuid() && unix.Access(name, unix.R_OK) != nil && unix.Access(name, unix.W_OK) != nil && unix.Access(name, unix.X_OK) != nil
}

// isBlind reports whether this user, and so programs, may use names in a directory, but not list them.
func isBlind(name string, info fs.FileInfo) bool {
	return info.Mode().Perm()&0o444 != 0o444 && unix.Access(name, unix.R_OK) != nil && unix.Access(name, unix.X_OK) == nil
}

// putBack restores every area: it removes what is new, whatever its modes, and puts back what directories had.
// It returns an error if that failed. What a program changed or removed that was there before is in e.changed: it
// fails the job if another program would trust it. Call it when all processes of the last program are dead.
func (e *engine) putBack() error {
	e.changed, e.lost = nil, nil
	e.proc.putBack()
	maps.Copy(e.theirs, openFiles(e.beside))
	errs := []error{e.here.putBack(), e.originals.putBackScripts()}
	for path, was := range e.leads {
		if now, _ := filepath.EvalSymlinks(path); now != was { // an error leads nowhere
			e.change(nil, path, "changed")
		}
	}
	removed := 0
	for _, a := range e.areas {
		errs = append(errs, e.putBackArea(a, &removed))
	}
	e.checkSockets(e.sockets)
	return errors.Join(errs...)
}

// checkSockets looks for sockets of processes that have ended. Where others run, they may be theirs.
func (e *engine) checkSockets(before sockets) {
	if e.alone {
		if err := before.await(); err != nil {
			e.changed = append(e.changed, err)
		}
	}
}

// putBackArea restores an area. removed counts what is removed.
func (e *engine) putBackArea(a *area, removed *int) error {
	var errs []error
	found := make(map[string]bool, len(a.before))
	var changed []string
	errs = append(errs, e.walkArea(a, func(name string, info fs.FileInfo) error {
		was, old := a.before[name]
		if old {
			found[name] = true
		}
		// What is new or has another size may have exabytes to read.
		now, err := e.stampOf(a, name, info, old && was.size == info.Size())
		if err != nil {
			return err
		}
		switch {
		case old && was.same(now), info.Mode().IsRegular() && e.isSource(name):
			return nil
		case old && was.mode.IsDir() && now.mode.IsDir():
			if a.kind != foreignArea {
				was.mode |= 0o700 // to be read and emptied
			}
			return was.restore(name, now)
		case old && a.kind == temporaryArea && !e.isScratch(a, name):
			e.change(a, name, "changed") // and removed
		case (a.kind == foreignArea && !isCache(name) || old && (a.kind == jobArea || a.kind == containerArea)) && !e.isSource(name):
			e.change(a, name, "changed")
			changed = append(changed, name)
			// A directory in the place of a file has files that are new.
			if a.kind == foreignArea || was.mode.Type() == now.mode.Type() && !e.isForged(name) {
				return nil
			}
		default:
			*removed++
			if !isCache(name) && *removed <= maxFaults {
				e.note("%s was created by a program; removing it", strings.TrimPrefix(name, e.dir+"/"))
			}
		}
		if err = tree.RemoveAll(name); errors.Is(err, fs.ErrPermission) { // in a directory that is read-only
			_ = os.Chmod(filepath.Dir(name), 0o700) //nolint:gosec // a directory
			err = tree.RemoveAll(name)
		}
		if err != nil {
			return fmt.Errorf("remove what a program left: %w", err)
		}
		if now.mode.IsDir() {
			return fs.SkipDir
		}
		return nil
	}))
	if a.kind == jobArea {
		errs = append(errs, e.goBack(a, found, changed))
	}
	for name, was := range a.before {
		switch {
		case name == a.dir && a.kind == temporaryArea && !isDir(name): // what was in its place was removed, too
			e.change(a, name, "removed")
		case found[name] && was.mode.IsDir() && a.kind != foreignArea:
			errs = append(errs, was.settle(name)) // what was removed in it changed it again
			a.before[name] = was
		case !found[name] && (a.kind != temporaryArea || !e.isScratch(a, name)) && !e.isTheirFile(a, name) && (a.kind != foreignArea || !isCache(name)) && !e.isSource(name):
			e.change(a, name, "removed")
		}
	}
	return errors.Join(errs...)
}

// clearsShared reports whether what a worker leaves in shared memory is removed.
func (e *engine) clearsShared() bool {
	return slices.ContainsFunc(e.areas, isShared)
}

func isShared(a *area) bool { return a.kind != foreignArea && a.dir == resolved(sharedMemory) }

// putBackBetween restores what a worker could change, when it is dead and its judge is not. The judge's home stays. What
// was there before must be as it was.
func (e *engine) putBackBetween(home string) error {
	e.changed, e.lost = nil, nil
	e.proc.putBack()
	var errs []error
	removed := 0
	for _, a := range e.areas {
		if e.landlock > 0 && a.kind == jobArea {
			errs = append(errs, e.putBackModes(a))
		}
		if e.landlock > 0 && !isShared(a) {
			continue // it cannot write there
		}
		a.borders = maps.Clone(a.borders)
		if a.borders == nil {
			a.borders = map[string]bool{}
		}
		a.borders[home] = true
		errs = append(errs, e.putBackArea(a, &removed))
		delete(a.borders, home)
	}
	errs = append(errs, e.src.put())            // as the next one must find them
	e.checkSockets(sockets{owned: math.MaxInt}) // the judge has others
	return errors.Join(append(errs, e.changed...)...)
}

// putBackModes puts back what Landlock does not keep from directories: modes, owners and times. Of a file, the time of its
// last change tells.
func (e *engine) putBackModes(a *area) error {
	var errs []error
	for name, was := range a.before {
		info, err := os.Lstat(name)
		if err != nil || e.isSource(name) || e.isTheirs(a, name, info) {
			continue // the judge may remove what is its
		}
		now, err := e.stampOf(a, name, info, false)
		switch {
		case err != nil:
			errs = append(errs, err)
		case was.mode.IsDir() && now.mode.IsDir():
			errs = append(errs, was.restore(name, now), was.settle(name))
		case was.mode != now.mode || was.change != now.change:
			e.change(a, name, "changed")
		}
	}
	return errors.Join(errs...)
}

// goBack puts back what was changed or is not found in the job's directory, directories before what is in them.
func (e *engine) goBack(a *area, found map[string]bool, changed []string) error {
	for name := range a.before {
		if !found[name] && !e.isSource(name) {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	var errs []error
	for _, name := range changed {
		errs = append(errs, e.originals.putBack(name, a.before[name]))
	}
	for _, name := range slices.Backward(changed) { // what is in a directory changes its times, and may need its mode
		errs = append(errs, e.originals.settle(name, a.before[name]))
	}
	return errors.Join(errs...)
}

// change records what a program did to a path of an area that was there before. Outside of the job's directory, no one
// puts it back.
func (e *engine) change(a *area, path, did string) {
	if len(e.changed) < maxFaults {
		e.changed = append(e.changed, fmt.Errorf("a program %s %s, which those after it trust; a submission must leave it", did, path))
	}
	if (a == nil || a.kind != jobArea) && len(e.lost) < maxFaults {
		e.lost = append(e.lost, fmt.Errorf("a program %s %s, which cannot be put back; exec kbnode runner, so that nothing goes on with it", did, path))
	}
}

// isScratch reports whether a file in a directory for temporary files may change from one program to the next: in a
// cache that programs are led to, and in shared memory, where libraries keep locks of the machine's GPUs.
func (e *engine) isScratch(a *area, name string) bool {
	return within(resolved(sharedMemory), name) || slices.ContainsFunc(e.kept, func(dir string) bool { return dir != a.dir && within(dir, name) })
}

// isForged reports whether a path in the job's directory could be taken for the job's result.
func (e *engine) isForged(name string) bool {
	return result.IsOwnName(filepath.Base(name)) && name != filepath.Join(e.dir, result.File)
}

// dropByteCode removes Python's byte code from the job's directory: Python replaces what is stale, and a program that
// replaced or removed some of it would leave a trace.
func (e *engine) dropByteCode() {
	_ = filepath.WalkDir(e.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() != "__pycache__" || name == e.dir {
			return nil // what cannot be read is found again
		}
		_ = tree.RemoveAll(name) // what cannot be removed must stay as it is
		return fs.SkipDir
	})
}

// isCache reports whether a file is Python's byte code, which Python writes again.
func isCache(name string) bool { return strings.Contains(name+"/", "/__pycache__/") }

// isSource reports whether a path is that of a source, which the engine writes before each use.
func (e *engine) isSource(name string) bool {
	rel, err := filepath.Rel(e.dir, name)
	_, source := e.src.at[rel]
	return err == nil && source
}
