package runner

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// A space is a program's own directory, its home and its TMPDIR, empty but for links when it starts. Caches and
// settings that the program leaves there must not reach the next program, which may judge it.
type space string

// searchPaths are variables that list directories. An empty or relative entry means the
// job's directory, where a submission may leave a library or a module for its judge.
var searchPaths = []string{"PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "PYTHONPATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"}

// tempDirs returns where Python would put temporary files: in TMPDIR, TEMP or TMP, or in one of the usual places.
func tempDirs(env []string, dir string) (dirs []string) {
	for _, in := range []string{getenv(env, "TMPDIR"), getenv(env, "TEMP"), getenv(env, "TMP"), "/tmp", "/var/tmp", "/usr/tmp", dir} {
		if in == "" {
			continue
		}
		if !filepath.IsAbs(in) {
			in = filepath.Join(dir, in)
		}
		if real, err := filepath.EvalSymlinks(in); err == nil {
			in = real
		}
		dirs = append(dirs, in)
	}
	return dirs
}

// newSpace creates a space in the first of these directories that has room for one. All of a job have the same name, one
// after the other, so that what is compiled there is the same, too.
func (e *engine) newSpace(name string) (space, error) {
	var errs []error
	for _, in := range tempDirs(e.temp, e.dir) {
		own := filepath.Join(in, name)
		err := os.Mkdir(own, 0o700)
		if err == nil {
			return space(own), nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("make a directory for temporary files: %w", errors.Join(errs...))
}

// drop removes a space and what its program left there.
func (e *engine) drop(s space) {
	e.here.open()
	if err := tree.RemoveAll(string(s)); err != nil {
		e.left = errors.Join(e.left, fmt.Errorf("remove a program's home: %w", err))
	}
}

// runAlone runs a program in a space of its own.
func (e *engine) runAlone(ctx context.Context, p program) (*outcome, error) {
	own, err := e.newSpace(e.spaceName)
	if err != nil {
		return nil, err
	}
	defer e.drop(own)
	return e.inSpace(p, own).run(ctx)
}

// inSpace returns p, set up to run in a space, in the job's directory and in the engine's environment
// unless it has another.
func (e *engine) inSpace(p program, s space) program {
	if p.env == nil {
		p.env = e.env
	}
	p.dir = e.dir
	p.env = e.bring(setenv(setenv(p.env, "HOME", string(s)), "TMPDIR", string(s)), s)
	p.compilers, p.home, p.note, p.reopen = e.compilers, string(s), e.note, e.here.open
	p.landlock, p.writable = e.landlock, append([]string{e.dir, string(s), sharedMemory}, e.temporary...)
	p.exec = slices.Clone(p.argv)
	if path := e.programs[p.argv[0]]; path != "" {
		p.exec[0] = path
	}
	return p
}

// childEnv completes the environment of programs as starting the Python engine did: in the C locale,
// CPython sets LC_CTYPE and its children inherit it (PEP 538). Compilers' messages depend on it. A locale
// that has no directory counts as C: C.UTF-8 has all that a program of a job needs.
func childEnv(public []string) []string {
	if getenv(public, "LC_ALL") != "" || getenv(public, "PYTHONCOERCECLOCALE") == "0" {
		return public
	}
	switch name := cmp.Or(getenv(public, "LC_CTYPE"), getenv(public, "LANG")); {
	case name == "C.UTF-8" || name == "C.utf8",
		name != "" && filepath.IsLocal(name) && isDir(filepath.Join("/usr/lib/locale", name)):
		return public
	}
	return setenv(public, "LC_CTYPE", "C.UTF-8")
}

// homeless returns an environment, for programs with their own home, without variables
// that lead to caches, settings and modules that a program may change; placeCaches gives some back. Modules of the
// image's user stay available: programs cannot write there.
func homeless(env []string) []string {
	user := filepath.Join(getenv(env, "HOME"), ".local")
	var rest []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(searchPaths, name) {
			dirs := slices.DeleteFunc(filepath.SplitList(value), func(dir string) bool { return !filepath.IsAbs(dir) })
			value = strings.Join(dirs, string(filepath.ListSeparator))
			kv = name + "=" + value
		}
		// Compilers take an empty list as the job's directory.
		if isCacheVar(name) || name == "TEMP" || name == "TMP" || value == "" && slices.Contains(searchPaths, name) {
			continue
		}
		rest = append(rest, kv)
	}
	env = rest
	switch {
	case getenv(env, "PYTHONUSERBASE") != "" || getenv(env, "PYTHONNOUSERSITE") != "":
	case filepath.IsAbs(user) && isDir(filepath.Join(user, "lib")):
		env = setenv(env, "PYTHONUSERBASE", user)
	default:
		env = setenv(env, "PYTHONNOUSERSITE", "1")
	}
	return env
}

// writeCases writes the test lines to a temporary file.
func (s space) writeCases(lines string) (string, error) {
	name := filepath.Join(string(s), tempName())
	if err := os.WriteFile(name, []byte(lines), 0o600); err != nil {
		return "", fmt.Errorf("write cases: %w", err)
	}
	return name, nil
}

// tempName returns a name like those of Python's tempfile.
func tempName() string {
	return "tmp" + strings.ToLower(rand.Text()[:8])
}
