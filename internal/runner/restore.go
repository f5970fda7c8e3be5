package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/result"
)

// maxEntries bounds the files of one area.
const maxEntries = 1 << 18

// area is a directory that programs may write to or, if foreign is set, should not be
// able to write to. Its contents are recorded before the first program runs.
type area struct {
	dir     string
	foreign bool
	before  map[string]stamp
}

// stamp tells a file from a changed one: no program without CAP_SYS_TIME can set the
// time of a change.
type stamp struct {
	mode   fs.FileMode
	inode  uint64
	size   int64
	change syscall.Timespec
}

// record records what every area holds. Call it before any program runs.
func (e *engine) record() error {
	if err := e.findTemporary(); err != nil {
		return err
	}
	e.areas = []*area{{dir: e.dir}}
	for _, dir := range e.temporary {
		e.areas = append(e.areas, &area{dir: dir})
	}
	if e.landlock == 0 {
		for _, dir := range e.loaded() {
			e.areas = append(e.areas, &area{dir: dir, foreign: true})
		}
	}
	for _, a := range e.areas {
		a.before = map[string]stamp{}
		if err := e.walkArea(a, func(name string, s stamp) error {
			a.before[name] = s
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// findTemporary finds the system's directories for temporary files if no other job uses
// them: in a container in which nothing else runs. Elsewhere, programs have only their
// TMPDIR.
func (e *engine) findTemporary() error {
	var root unix.Statfs_t
	if err := unix.Statfs("/", &root); err != nil {
		return fmt.Errorf("look at the root file system: %w", err)
	}
	if root.Type != unix.OVERLAYFS_SUPER_MAGIC || !alone() {
		return nil
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if rel, err := filepath.Rel(dir, e.dir); err == nil && filepath.IsLocal(rel) || e.dir == dir {
			continue // the job's directory is in it, and is restored by other rules
		}
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && (st.Type == unix.OVERLAYFS_SUPER_MAGIC || st.Type == unix.TMPFS_MAGIC) {
			e.temporary = append(e.temporary, dir)
		}
	}
	return nil
}

// loaded returns the directories that a later interpreter or loader reads from. It is
// for kernels on which programs may write there.
func (e *engine) loaded() []string {
	dirs := []string{"/etc"}
	if python, err := lookPath(e.env, "python3"); err == nil {
		found, _ := pythonDirs(e.env, python)
		if real, err := filepath.EvalSymlinks(python); err == nil {
			found = append(found, filepath.Join(filepath.Dir(filepath.Dir(real)), "lib", filepath.Base(real)))
		}
		dirs = append(dirs, found...)
	}
	var real []string
	for _, dir := range dirs {
		if dir, err := filepath.EvalSymlinks(dir); err == nil && isDir(dir) && !slices.Contains(real, dir) {
			real = append(real, dir)
		}
	}
	return real
}

// walkArea calls f for everything in an area except the engine's own files. f may
// return fs.SkipDir.
func (e *engine) walkArea(a *area, f func(name string, s stamp) error) error {
	n := 0
	err := filepath.WalkDir(a.dir, func(name string, d fs.DirEntry, err error) error {
		if name == a.dir || errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err != nil && !a.foreign {
			return err
		}
		if d.IsDir() && e.own(name) {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if n++; n > maxEntries {
			return fmt.Errorf("more than %d files; start in a smaller directory", maxEntries)
		}
		s := stamp{mode: info.Mode(), size: info.Size()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s.inode, s.change = st.Ino, st.Ctim
		}
		return f(name, s)
	})
	if err != nil {
		return fmt.Errorf("look at the files in %s: %w", a.dir, err)
	}
	return nil
}

// own reports whether the engine itself looks after the file or directory with this
// path.
func (e *engine) own(name string) bool {
	if name == e.scratch || name == filepath.Join(e.dir, ".git") {
		return true
	}
	return slices.ContainsFunc(e.recorded, func(r recording) bool { return name == filepath.Join(e.dir, r.tmp) })
}

// putBack restores every area so that the next program may trust it. Call it when all
// processes of the last one are dead. It removes new files, except plain data in the
// job's directory, and returns an error if a program changed or removed anything but
// data.
func (e *engine) putBack() error {
	here, err := os.Stat(e.dir)
	was, werr := e.src.root.Stat(".")
	if err = errors.Join(err, werr); err == nil && !os.SameFile(here, was) {
		err = fmt.Errorf("a program put another directory in the place of %s", e.dir)
	}
	if err != nil {
		return err
	}
	removed := 0
	for _, a := range e.areas {
		seen := make(map[string]bool, len(a.before))
		if err := e.walkArea(a, func(name string, now stamp) error {
			seen[name] = true
			was, old := a.before[name]
			if old && was.mode.Type() == now.mode.Type() && (now.mode.IsDir() || was == now) || e.harmless(a, name, now.mode) && (!old || e.harmless(a, name, was.mode)) {
				return nil
			}
			if (old && a.dir == e.dir || a.foreign) && !isCache(name) {
				return fmt.Errorf("a program changed %s, which those after it trust; a submission must leave it", name)
			}
			if removed++; !isCache(name) && removed <= maxFaults {
				e.note("%s was created by a program; removing it before the next one runs", strings.TrimPrefix(name, e.dir+"/"))
			}
			if err := os.RemoveAll(name); err != nil {
				return fmt.Errorf("remove what a program left: %w", err)
			}
			if now.mode.IsDir() {
				return fs.SkipDir
			}
			return nil
		}); err != nil {
			return err
		}
		for name, was := range a.before {
			if !seen[name] && (a.dir == e.dir || a.foreign) && !isCache(name) && !e.harmless(a, name, was.mode) {
				return fmt.Errorf("a program removed %s, which those after it trust; a submission must leave it", name)
			}
		}
	}
	return nil
}

// isCache reports whether a file is Python's byte code, which Python writes again.
func isCache(name string) bool { return strings.Contains(name+"/", "/__pycache__/") }

// data are the extensions of files that are loaded only by name.
var data = []string{
	"", ".txt", ".log", ".md", ".csv", ".tsv", ".json", ".jsonl", ".bin", ".dat", ".npy", ".npz", ".pt", ".safetensors",
	".out", ".err", ".png", ".svg", ".html", ".o",
}

// harmless reports whether a program may have changed a file in the job's directory:
// plain data, or a source, which the engine writes before each use. In lang cu nothing
// counts as plain data, because the compiler can read every file.
func (e *engine) harmless(a *area, name string, mode fs.FileMode) bool {
	rel, err := filepath.Rel(e.dir, name)
	if err != nil || a.dir != e.dir {
		return false
	}
	if _, source := e.src.at[rel]; source {
		return true
	}
	base := path.Base(rel)
	return e.lang == "py" && mode.IsRegular() && mode.Perm()&0o111 == 0 && base != result.File &&
		!strings.HasPrefix(base, ".") && slices.Contains(data, strings.ToLower(path.Ext(base)))
}

// alone reports whether this process shares its process table only with its parents and
// children.
func alone() bool {
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
