package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/host"
)

// area is a directory whose contents are recorded before the first program runs, and restored
// before each that follows.
type area struct {
	dir     string
	kind    areaKind
	shallow bool            // without what is in its directories
	borders map[string]bool // paths that are in other areas, or in none
	before  map[string]stamp
}

type areaKind int

const (
	jobArea       areaKind = iota // what was there must stay as it was; what is new is removed
	temporaryArea                 // what is new or changed is removed
	containerArea                 // as in the job's directory, but for what this user may not look at
	foreignArea                   // others write there, too: what is new or changed fails the job
)

// maxContainer bounds the files of one area outside, of which 100,000 take 60 MB of memory.
const maxContainer = 1 << 20

// limit is how many files the area may have.
func (a *area) limit() int {
	if a.kind == jobArea || a.kind == temporaryArea {
		return maxEntries
	}
	return maxContainer
}

// findAreas finds what must be put back: the job's directory, the system's directories for temporary files
// unless other processes use them, too, and without Landlock all else where programs can write. In a container
// of the job's own that is every file system that is not read-only, whatever its files are for. Elsewhere, it
// is what interpreters, compilers, loaders and shells read.
func (e *engine) findAreas() error {
	e.areas = []*area{{dir: e.dir}}
	container, err := inContainer()
	if err != nil {
		return err
	}
	alone := container && onlyFamily()
	for tries := 0; container && !alone && tries < joinTries && forming(); tries++ {
		time.Sleep(joinPause)
		alone = onlyFamily()
	}
	e.beside, e.alone = pipeline(group()), alone
	if alone {
		e.findTemporary()
		if dir := resolved(sharedMemory); !slices.Contains(e.temporary, dir) { // on a file system that may have files of the job's
			e.areas = append(e.areas, &area{dir: dir, kind: containerArea, borders: map[string]bool{e.dir: true}})
		}
	} else if container {
		e.note("other processes run in this container, so what programs leave in connections and in /dev/shm, or without Landlock in any " +
			"directory for temporary files, is not removed: the next program may read it; start them in another step")
	}
	for _, dir := range e.temporary {
		e.areas = append(e.areas, &area{dir: dir, kind: temporaryArea})
	}
	if e.landlock > 0 {
		return nil
	}
	if !alone {
		e.areas = append(e.areas, e.loaded()...)
		return nil
	}
	mounts, ok := host.Tree{Root: "/"}.Mounts("self")
	if !ok {
		return errors.New("read /proc/self/mountinfo: it cannot be read; mount /proc in the container")
	}
	borders := map[string]bool{}
	for _, a := range e.areas {
		borders[a.dir] = true
	}
	for _, m := range mounts {
		inside := slices.ContainsFunc(e.areas, func(a *area) bool { return a.kind != containerArea && within(a.dir, m.Point) })
		if !borders[m.Point] && !inside && writable(m.Point) {
			e.areas = append(e.areas, &area{dir: m.Point, kind: containerArea, borders: borders})
		}
		borders[m.Point] = true
	}
	return nil
}

// A shell may start this process before the other programs of its pipe, which is no reason to leave files of a program.
const (
	joinTries = 20
	joinPause = 10 * time.Millisecond
)

// kernelFiles are file systems whose files the kernel makes, as statfs(2) calls them. A program can write to them
// no more than Landlock would let it.
var kernelFiles = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC,
	unix.SECURITYFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC,
}

// writable reports whether files can be kept in the file system at a path.
func writable(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY == 0 && !slices.Contains(kernelFiles, int64(st.Type)) //nolint:unconvert // another type on other machines
}

// within reports whether a path is that of a directory, or below it.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// dockerMark is a file that Docker makes in every container, whatever its storage driver.
const dockerMark = "/.dockerenv"

// inContainer reports whether this is a container.
func inContainer() (bool, error) {
	var root unix.Statfs_t
	if err := unix.Statfs("/", &root); err != nil {
		return false, fmt.Errorf("look at the root file system: %w", err)
	}
	_, err := os.Lstat(dockerMark)
	return root.Type == unix.OVERLAYFS_SUPER_MAGIC || err == nil, nil
}

// sharedMemory is where C libraries make shared memory and semaphores. Programs may always write there.
const sharedMemory = "/dev/shm"

// findTemporary finds the system's directories for temporary files. Where others use them, programs have only
// their TMPDIR. One may be a link, which Landlock follows and a walk does not.
func (e *engine) findTemporary() {
	var root unix.Statfs_t
	_ = unix.Statfs("/", &root)
	for _, dir := range []string{"/tmp", "/var/tmp", sharedMemory} {
		dir = resolved(dir)
		if within(dir, e.dir) || within(e.dir, dir) {
			continue // the job's directory is in it, or it is there, and is restored by other rules
		}
		if slices.ContainsFunc(e.temporary, func(other string) bool { return within(other, dir) }) {
			continue
		}
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && (st.Type == root.Type || st.Type == unix.TMPFS_MAGIC) {
			e.temporary = append(slices.DeleteFunc(e.temporary, func(other string) bool { return within(dir, other) }), dir)
		}
	}
}

// resolved returns where a path leads, or the path if that cannot be said.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// loaded returns the directories that a later interpreter, compiler, loader or shell reads from, with all below
// them that a library may load by its configuration, and notes where the links on the way lead.
func (e *engine) loaded() []*area {
	areas := []*area{{dir: "/etc", kind: foreignArea}}
	e.leads = map[string]string{}
	add := func(dir string, shallow bool) {
		if !filepath.IsAbs(dir) {
			return
		}
		// Through links, and also if it is not there: a program may create it.
		real, err := filepath.EvalSymlinks(dir)
		e.leads[dir] = real
		if err == nil {
			dir = real
		}
		if slices.ContainsFunc(areas, func(a *area) bool { return a.dir == dir && shallow || !a.shallow && within(a.dir, dir) }) {
			return
		}
		areas = append(slices.DeleteFunc(areas, func(a *area) bool { return !shallow && within(dir, a.dir) }),
			&area{dir: dir, kind: foreignArea, shallow: shallow, borders: map[string]bool{e.dir: true}})
	}
	for _, list := range searchPaths {
		for _, dir := range filepath.SplitList(getenv(e.env, list)) {
			add(dir, list == "PATH")
		}
	}
	for _, dir := range systemLibraries() {
		add(dir, false)
	}
	for _, dir := range []string{"/usr/lib", "/usr/local/lib", "/lib"} {
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
	dirs, _ := filepath.Glob("/usr/lib/*-linux-gnu") // the pattern is valid
	dirs = append(dirs, "/usr/lib64", "/lib64")
	settings, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf") // likewise
	for _, name := range append(settings, "/etc/ld.so.conf") {
		text, _ := os.ReadFile(name) // without it, the loader reads none either
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
	}
	return dirs
}
