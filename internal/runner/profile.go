package runner

import (
	"archive/zip"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/tree"
)

// ProfileDir is the directory beside result.json where the profiler's files are left
// for the upload of artifacts.
const ProfileDir = "profile_data"

const (
	profileLimit = 1 << 30  // bytes in ProfileDir
	profileFiles = 1 << 12  // files in it
	traceLimit   = 32 << 20 // bytes of a zip archive that goes into result.json
	tracesLimit  = 64 << 20 // bytes of all of a job's; result.MaxBytes bounds them in base64
)

// recording is a directory with a profiler's files for one evaluation.
type recording struct {
	name string // of the evaluation
	tmp  string // relative to the job's directory; ProfileDir is in it

	texts []string // its files that are text of the others, and far smaller
}

func (r recording) dir() string { return path.Join(r.tmp, ProfileDir) }

// checkProfiler returns an error if no profile can be made here.
func (e *engine) checkProfiler() error {
	tool := map[string]string{runtimeCUDA: "ncu", runtimeROCm: "rocprofv3"}[e.runtime]
	switch {
	case tool == "":
		return errors.New(`mode "profile" needs a GPU, and none is seen here; run it in a slot with one`)
	case e.runtime == runtimeCUDA && e.multiGPU:
		return errors.New(`mode "profile" with multi_gpu is not possible under ncu; profile one GPU`)
	}
	if e.programs[tool] == "" {
		return fmt.Errorf("%s %w", tool, errNoProgram)
	}
	return nil
}

// profile runs the task's program under the vendor's profiler.
func (e *engine) profile(ctx context.Context, name string, p program) (*result.Run, *result.Profile, error) {
	r := recording{name: name, tmp: tempName()}
	e.recorded = append(e.recorded, r)
	root := e.src.root
	if err := errors.Join(root.Mkdir(r.tmp, 0o700), root.Mkdir(r.dir(), 0o777)); err != nil {
		return nil, nil, fmt.Errorf("make directory for the profile: %w", err)
	}
	if e.runtime == runtimeROCm {
		return e.rocprof(ctx, r, p)
	}
	return e.ncu(ctx, r, p)
}

// underProfiler returns p as the child of a profiler.
func (e *engine) underProfiler(p program, profiler string, options ...string) program {
	p.argv = slices.Concat([]string{profiler}, options, p.argv)
	p.exec = slices.Concat([]string{e.programs[profiler]}, options, p.exec)
	p.wrapped = true
	return p
}

func (e *engine) rocprof(ctx context.Context, r recording, p program) (*result.Run, *result.Profile, error) {
	p = e.underProfiler(p, "rocprofv3", "--log-level", "fatal", "--hip-trace", "--kernel-trace", "--rccl-trace",
		"--marker-trace", "--hip-trace", "--memory-copy-trace", "--scratch-memory-trace",
		"--output-format", "pftrace", "csv", "-d", r.dir(), "-o", "%pid%", "--")
	p.env = setenv(p.env, "GPU_DUMP_CODE_OBJECT", "1")
	o, err := p.run(ctx)
	if err != nil {
		return nil, nil, err
	}
	run := e.report(p, o)
	if !run.Success {
		return run, nil, nil
	}
	// An incomplete profile must not cost the result.
	if err := errors.Join(e.combine(r), e.takeCodeObjects(r)); err != nil {
		e.note("%v", err)
	}
	return run, e.trace(r, "rocPROF"), nil
}

// combine joins the traces, one per process, into one that a viewer shows as a whole.
func (e *engine) combine(r recording) error {
	const combined = "combined.pftrace"
	root, tmp := e.src.root, path.Join(r.tmp, combined)
	out, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("combine traces: %w", err)
	}
	traces, err := fs.Glob(root.FS(), r.dir()+"/*.pftrace")
	room := int64(profileLimit)
	for _, name := range traces {
		n, cerr := e.copyFile(out, name, room)
		room -= n
		err = errors.Join(err, cerr, root.RemoveAll(name))
	}
	if err = errors.Join(err, out.Close(), root.Rename(tmp, path.Join(r.dir(), combined))); err != nil {
		return fmt.Errorf("combine traces: %w", err)
	}
	return nil
}

// takeCodeObjects moves the ROCm runtime's dumps from the job's directory to the
// recording.
func (e *engine) takeCodeObjects(r recording) error {
	names, err := fs.Glob(e.src.root.FS(), "_code_object*.o")
	for _, name := range names {
		err = errors.Join(err, e.src.root.Rename(name, path.Join(r.dir(), name)))
	}
	if err != nil {
		return fmt.Errorf("take code objects: %w", err)
	}
	return nil
}

// copyFile copies a regular file to w. It returns errFull if the file has more than
// limit bytes.
func (e *engine) copyFile(w io.Writer, name string, limit int64) (int64, error) {
	f, err := result.OpenFile(e.src.root, name)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	n, err := io.Copy(w, io.LimitReader(f, limit+1))
	if err == nil && n > limit {
		err = errFull
	}
	return n, err
}

var errFull = errors.New("is over the limit")

// trace packs a profiler's files for the result. If they do not fit, Trace has only their texts, or is empty.
func (e *engine) trace(r recording, profiler string) *result.Profile {
	p := &result.Profile{Profiler: profiler}
	limit := min(traceLimit, tracesLimit-e.traced)
	archive, err := e.pack(r, limit, func(string) bool { return true })
	if err != nil {
		e.note("%s: the profile is not in %s, only in %s: it is over %d bytes or cannot be read (%v)", r.name, result.File, ProfileDir, limit, err)
		if len(r.texts) == 0 {
			return p
		}
		if archive, err = e.pack(r, limit, func(name string) bool { return slices.Contains(r.texts, name) }); err != nil {
			return p
		}
	}
	e.traced += len(archive)
	p.Trace = base64.StdEncoding.EncodeToString(archive)
	return p
}

// pack returns a zip archive of a recording's files and directories that are wanted.
func (e *engine) pack(r recording, limit int, wanted func(name string) bool) ([]byte, error) {
	archive := &bounded{limit: limit}
	z := zip.NewWriter(archive)
	err := e.walk(r.dir(), func(name string, _ int64) error {
		if !wanted(name) {
			return nil
		}
		w, err := z.Create(name)
		if err == nil && !strings.HasSuffix(name, "/") {
			_, err = e.copyFile(w, path.Join(r.dir(), name), profileLimit)
		}
		if err == nil && archive.over {
			err = errFull
		}
		return err
	})
	if err = errors.Join(err, z.Close()); err == nil && archive.over {
		err = errFull
	}
	return archive.buf, err
}

// walk calls f for the regular files and the directories below a directory, ordered by
// name. The names of directories end with a slash.
func (e *engine) walk(dir string, f func(name string, size int64) error) error {
	// A link in its place would lead to files that no profiler made.
	if info, err := e.src.root.Lstat(dir); err != nil || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s is no longer a directory", dir))
	}
	n := 0
	return fs.WalkDir(e.src.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir || !d.Type().IsRegular() && !d.IsDir() {
			return err
		}
		if n++; n > profileFiles {
			return fmt.Errorf("%s holds more than %d files and directories", dir, profileFiles)
		}
		if d.IsDir() {
			return f(strings.TrimPrefix(name, dir+"/")+"/", 0)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return f(strings.TrimPrefix(name, dir+"/"), info.Size())
	})
}

// deliverProfiles puts the profilers' files, and nothing else, into ProfileDir, and leaves no file there that
// a launcher could take for the job's result. Call it at the job's end, when all programs are dead. An error
// means that there may be one.
func (e *engine) deliverProfiles() error {
	root := e.here.root
	var err error
	if e.mode == "profile" {
		err = tree.Remove(root, ProfileDir)
		if err == nil && len(e.recorded) > 0 {
			err = root.Mkdir(ProfileDir, 0o777)
		}
		room := int64(profileLimit)
		for _, r := range e.recorded {
			if err == nil {
				var derr error
				if room, derr = e.deliver(r, room); derr != nil {
					e.note("deliver profile: %v", derr) // the verdicts do not depend on it
				}
			}
			err = errors.Join(err, tree.Remove(root, r.tmp))
		}
	}
	if err = errors.Join(err, e.removeOwnNames()); err != nil {
		return fmt.Errorf("deliver profile: %w", err)
	}
	return nil
}

// removeOwnNames removes the files in ProfileDir that have the name of one of the node's results. A link of that
// name from before leads elsewhere.
func (e *engine) removeOwnNames() error {
	return e.walkArea(&area{dir: filepath.Join(e.dir, ProfileDir), kind: foreignArea}, func(name string, info fs.FileInfo) error {
		if info.IsDir() || !result.IsOwnName(info.Name()) {
			return nil
		}
		return os.Remove(name)
	})
}

// deliver moves the files of one evaluation to ProfileDir and returns how many bytes
// still fit. It makes no subdirectories, as an artifact path such as "profile_data/*"
// expects. With several evaluations, file names begin with the name of theirs.
func (e *engine) deliver(r recording, room int64) (int64, error) {
	sizes := map[string]int64{}
	err := e.walk(r.dir(), func(name string, size int64) error {
		if !strings.HasSuffix(name, "/") {
			sizes[name] = size
		}
		return nil
	})
	// Files of directories come last: they must not take the names of the profiler's own.
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
	})
	for _, name := range names {
		to := strings.ReplaceAll(name, "/", "-")
		if len(e.recorded) > 1 {
			to = r.name + "-" + to
		}
		to = path.Join(ProfileDir, to)
		if sizes[name] > room {
			e.note("%s is omitted: %s holds at most %d bytes", to, ProfileDir, profileLimit)
			continue
		}
		if _, lerr := e.src.root.Lstat(to); lerr == nil {
			e.note("%s of %s is omitted: %s is there already", name, r.name, to)
			continue
		}
		room -= sizes[name]
		err = errors.Join(err, e.src.root.Rename(path.Join(r.dir(), name), to))
	}
	return room, err
}
