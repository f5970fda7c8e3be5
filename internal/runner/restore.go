package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/tree"
)

// maxEntries bounds the files of one area.
const maxEntries = 1 << 18

// area is a directory whose contents are recorded before the first program runs, and restored
// before each that follows.
type area struct {
	dir     string
	kind    areaKind
	shallow bool // without what is in its directories
	before  map[string]stamp
}

type areaKind int

const (
	jobArea       areaKind = iota // what was there must stay as it was; what is new is removed
	temporaryArea                 // what is new or changed is removed
	foreignArea                   // programs should not be able to write there
)

// recordAreas records what every area holds. Call it before any program of the submission runs.
func (e *engine) recordAreas() error {
	if err := e.findTemporary(); err != nil {
		return err
	}
	e.areas, e.tmpfs = []*area{{dir: e.dir}}, map[uint64]bool{}
	for _, dir := range e.temporary {
		e.areas = append(e.areas, &area{dir: dir, kind: temporaryArea})
	}
	if e.landlock == 0 {
		e.areas = append(e.areas, e.loaded()...)
	}
	for _, a := range e.areas {
		a.before = map[string]stamp{}
		if err := e.walkArea(a, func(name string, info fs.FileInfo) (err error) {
			if len(a.before) > maxEntries {
				return fs.SkipAll
			}
			a.before[name], err = e.stampOf(name, info, a.kind != foreignArea)
			return err
		}); err != nil {
			return err
		}
		if len(a.before) > maxEntries {
			return fmt.Errorf("%s holds more than %d files; start in a smaller directory", a.dir, maxEntries)
		}
	}
	return nil
}

// dockerMark is a file that Docker makes in every container, whatever its storage driver.
const dockerMark = "/.dockerenv"

// findTemporary finds the system's directories for temporary files if no other job uses
// them: in a container in which nothing else runs. Elsewhere, programs have only their
// TMPDIR.
func (e *engine) findTemporary() error {
	var root unix.Statfs_t
	if err := unix.Statfs("/", &root); err != nil {
		return fmt.Errorf("look at the root file system: %w", err)
	}
	if _, err := os.Lstat(dockerMark); root.Type != unix.OVERLAYFS_SUPER_MAGIC && err != nil || !onlyFamily() {
		return nil
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if rel, err := filepath.Rel(dir, e.dir); err == nil && filepath.IsLocal(rel) || e.dir == dir {
			continue // the job's directory is in it, and is restored by other rules
		}
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && (st.Type == root.Type || st.Type == unix.TMPFS_MAGIC) {
			e.temporary = append(e.temporary, dir)
		}
	}
	return nil
}

// loaded returns the directories that a later interpreter, compiler, loader or shell reads from, and
// notes where the links on the way lead. It is for kernels on which programs may write there.
func (e *engine) loaded() []*area {
	areas := []*area{{dir: "/etc", kind: foreignArea}}
	e.leads = map[string]string{}
	add := func(dir string, shallow bool) {
		if !filepath.IsAbs(dir) {
			return
		}
		// Through links, and also if it is not there: a program may create it.
		real, err := filepath.EvalSymlinks(dir)
		if e.leads[dir] = real; err == nil {
			dir = real
		}
		if !slices.ContainsFunc(areas, func(a *area) bool { return a.dir == dir && (shallow || !a.shallow) }) {
			areas = append(areas, &area{dir: dir, kind: foreignArea, shallow: shallow})
		}
	}
	for _, list := range searchPaths {
		for _, dir := range filepath.SplitList(getenv(e.env, list)) {
			add(dir, true)
		}
	}
	for _, dir := range append(systemLibraries(), "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib") {
		add(dir, true)
	}
	for _, program := range e.programs {
		if real, err := filepath.EvalSymlinks(program); err == nil {
			e.leads[program] = real
			add(filepath.Dir(real), true)
		}
	}
	if nvcc := e.leads[e.programs["nvcc"]]; nvcc != "" {
		toolkit := filepath.Dir(filepath.Dir(nvcc))
		for _, dir := range []string{toolkit + "/nvvm", toolkit + "/include", toolkit + "/targets", "/usr/include", "/usr/lib/gcc", "/usr/libexec/gcc"} {
			add(dir, false)
		}
	}
	if python := e.programs["python3"]; python != "" {
		dirs, _ := pythonDirs(e.env, python)
		if real := e.leads[python]; real != "" {
			dirs = append(dirs, filepath.Join(filepath.Dir(filepath.Dir(real)), "lib", filepath.Base(real)))
		}
		for _, dir := range dirs {
			add(dir, false)
		}
	}
	return areas
}

// systemLibraries returns the directories of the C library, and those that the loader's settings add
// (ld.so.conf(5)).
func systemLibraries() []string {
	dirs, _ := filepath.Glob("/usr/lib/*-linux-gnu")         // the pattern is valid
	settings, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf") // likewise
	for _, name := range append(settings, "/etc/ld.so.conf") {
		text, _ := os.ReadFile(name) // without it, the loader reads none either
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
	}
	return dirs
}

// walkArea calls f for everything in an area except the engine's own files. f may return fs.SkipDir for a
// directory, and fs.SkipAll. Another error does not end the walk: what comes after it is looked at, too.
func (e *engine) walkArea(a *area, f func(name string, info fs.FileInfo) error) error {
	var errs []error
	_ = filepath.WalkDir(a.dir, func(name string, d fs.DirEntry, err error) error { // each error is in errs
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil && a.kind != foreignArea && (d == nil || !closed(name, d)):
			errs = append(errs, err)
			return nil
		case d == nil || err != nil:
			return nil // this user cannot see it, so programs cannot either
		case d.IsDir() && e.own(name):
			return fs.SkipDir
		}
		info, err := d.Info()
		if err == nil {
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

// own reports whether the engine itself looks after the file or directory with this
// path.
func (e *engine) own(name string) bool {
	return slices.ContainsFunc(e.recorded, func(r recording) bool { return name == filepath.Join(e.dir, r.tmp) })
}

// putBack restores every area: it removes what is new, whatever its modes, and puts back what directories had.
// It returns an error if that failed. What a program changed or removed that was there before is in e.changed: it
// fails the job if another program would trust it. Call it when all processes of the last program are dead.
func (e *engine) putBack() error {
	e.changed = nil
	errs := []error{e.here.putBack()}
	for path, was := range e.leads {
		if now, _ := filepath.EvalSymlinks(path); now != was { // an error leads nowhere
			e.change(path, "changed")
		}
	}
	removed := 0
	for _, a := range e.areas {
		found := make(map[string]bool, len(a.before))
		errs = append(errs, e.walkArea(a, func(name string, info fs.FileInfo) error {
			was, old := a.before[name]
			if old {
				found[name] = true
			}
			// What is new or has another size may have exabytes to read.
			now, err := e.stampOf(name, info, old && was.size == info.Size() && a.kind != foreignArea)
			if err != nil {
				return err
			}
			switch {
			case old && was == now, info.Mode().IsRegular() && e.isSource(name):
				return nil
			case old && was.mode.IsDir() && now.mode.IsDir():
				if a.kind != foreignArea {
					was.mode |= 0o700 // to be read and emptied
				}
				return was.restore(name, now)
			case (a.kind == foreignArea || old && a.kind == jobArea) && !isCache(name) && !e.isSource(name):
				e.change(name, "changed")
				// A directory in the place of a file has files that are new.
				if a.kind == foreignArea || was.mode.Type() == now.mode.Type() && !e.isForged(name) {
					return nil
				}
			default:
				if removed++; !isCache(name) && removed <= maxFaults {
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
		for name, was := range a.before {
			switch {
			case found[name] && was.mode.IsDir() && a.kind != foreignArea:
				errs = append(errs, was.settle(name)) // what was removed in it changed it again
			case !found[name] && a.kind != temporaryArea && !isCache(name) && !e.isSource(name):
				e.change(name, "removed")
			}
		}
	}
	return errors.Join(errs...)
}

// change records what a program did to a path that was there before.
func (e *engine) change(path, did string) {
	if len(e.changed) < maxFaults {
		e.changed = append(e.changed, fmt.Errorf("a program %s %s, which those after it trust; a submission must leave it", did, path))
	}
}

// isForged reports whether a path in the job's directory could be taken for the job's result.
func (e *engine) isForged(name string) bool {
	return result.IsOwnName(filepath.Base(name)) && name != filepath.Join(e.dir, result.File)
}

// isCache reports whether a file is Python's byte code, which Python writes again.
func isCache(name string) bool { return strings.Contains(name+"/", "/__pycache__/") }

// isSource reports whether a path is that of a source, which the engine writes before each use.
func (e *engine) isSource(name string) bool {
	rel, err := filepath.Rel(e.dir, name)
	_, source := e.src.at[rel]
	return err == nil && source
}

// onlyFamily reports whether this process shares its process table only with its parents and
// children.
func onlyFamily() bool {
	family := map[int]bool{os.Getpid(): true}
	for _, pid := range descendants() {
		family[pid] = true
	}
	for pid := os.Getpid(); pid > 0; {
		parent, ok := parentOf(pid)
		if !ok {
			return false
		}
		family[parent], pid = true, parent
	}
	names, err := os.ReadDir("/proc")
	return err == nil && !slices.ContainsFunc(names, func(d fs.DirEntry) bool {
		pid, err := strconv.Atoi(d.Name())
		return err == nil && !family[pid]
	})
}
