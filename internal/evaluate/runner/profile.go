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
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// ProfileDir is the directory beside result.json where the profiler's files are left
// for the upload of artifacts.
const ProfileDir = "profile_data"

const (
	profileLimit = 1 << 30  // bytes in ProfileDir
	profileFiles = 1 << 12  // files in it
	profileDepth = 16       // directories in each other in a recording; each is opened by its whole path
	traceLimit   = 32 << 20 // bytes of a zip archive that goes into result.json
	tracesLimit  = 64 << 20 // bytes of all of a job's; result.MaxBytes bounds them in base64
)

// recording is a directory with a profiler's files for one evaluation, until it ends.
type recording struct {
	name string // of the evaluation
	tmp  string // relative to the job's directory; ProfileDir is in it

	texts []string // its files that are text of the others, and far smaller
}

// profiles are the files of the recordings that ended. No program can reach them: the next one would read there
// what the last one left, or change it.
type profiles struct {
	store       *os.File // without a name, with the contents of all after each other
	files       []profileFile
	evaluations int
	size        int64 // bytes in store
}

type profileFile struct {
	evaluation, name string
	offset, size     int64 // in store
}

func (r recording) dir() string { return path.Join(r.tmp, ProfileDir) }

// checkProfiler returns an error if no profile can be made here.
func (e *engine) checkProfiler() error {
	tool := map[string]string{runtimeCUDA: "ncu", runtimeROCm: "rocprofv3"}[e.runtime]
	switch {
	case tool == "":
		return errors.New(`mode "profile" needs a GPU, and none is seen here; profile it where there is one`)
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
	root := e.src.root
	if err := errors.Join(root.Mkdir(r.tmp, 0o700), root.Mkdir(r.dir(), 0o777)); err != nil {
		return nil, nil, fmt.Errorf("make directory for the profile: %w", err)
	}
	record := e.ncu
	if e.runtime == runtimeROCm {
		record = e.rocprof
	}
	run, trace, err := record(ctx, r, p)
	if kerr := e.keep(ctx, r); kerr != nil {
		e.note("keep profile: %v", kerr) // the verdicts do not depend on it
	}
	if rerr := tree.Remove(root, r.tmp); rerr != nil {
		err = errors.Join(err, fmt.Errorf("remove directory of the profile: %w", rerr))
	}
	return run, trace, err
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
		err = errors.Join(err, cerr, tree.Remove(root, name)) // it may be a directory of any depth
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

// fullWriter fails when there is no more room.
type fullWriter struct{ *bounded }

func (w fullWriter) Write(p []byte) (int, error) {
	n, err := w.bounded.Write(p)
	if w.over {
		err = errFull
	}
	return n, err
}

// trace packs a profiler's files for the result. If they do not fit, Trace has only their texts, or is empty.
func (e *engine) trace(r recording, profiler string) *result.Profile {
	p := &result.Profile{Profiler: profiler}
	limit := min(traceLimit, tracesLimit-e.traced)
	archive, err := e.archive(r.dir(), limit, profileLimit, func(string) bool { return true })
	if err != nil {
		e.note("%s: the profile is not in %s, only in %s: it is over %d bytes or cannot be read (%v)", r.name, result.File, ProfileDir, limit, err)
		if len(r.texts) == 0 {
			return p
		}
		if archive, err = e.archive(r.dir(), limit, profileLimit, func(name string) bool { return slices.Contains(r.texts, name) }); err != nil {
			return p
		}
	}
	e.traced += len(archive)
	p.Trace = base64.StdEncoding.EncodeToString(archive)
	return p
}

// archive packs the files and directories in a directory that are wanted into at most limit bytes. They may have as many
// bytes as room in all: zeros take next to none in the archive, but time.
func (e *engine) archive(dir string, limit int, room int64, wanted func(name string) bool) ([]byte, error) {
	archive := &bounded{limit: limit}
	z := zip.NewWriter(fullWriter{archive})
	err := e.walk(dir, func(name string, size int64) error {
		if !wanted(name) {
			return nil
		}
		room -= size
		if room < 0 {
			return errFull
		}
		w, err := z.Create(name)
		if err == nil && !strings.HasSuffix(name, "/") {
			_, err = e.copyFile(w, path.Join(dir, name), size)
		}
		return err
	})
	return archive.buf, errors.Join(err, z.Close())
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
		n++
		if n > profileFiles {
			return fmt.Errorf("%s holds more than %d files and directories", dir, profileFiles)
		}
		if d.IsDir() && strings.Count(name[len(dir):], "/") > profileDepth {
			return fmt.Errorf("%s holds more than %d directories in each other", dir, profileDepth)
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

// keep copies the files of a recording to where no program can reach them.
func (e *engine) keep(ctx context.Context, r recording) (err error) {
	kept := &e.profiles
	if kept.store == nil {
		name := tempName()
		if kept.store, err = e.src.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			err = e.src.root.Remove(name)
		}
		if err != nil {
			return err
		}
	}
	kept.evaluations++
	return e.walk(r.dir(), func(name string, size int64) error {
		if strings.HasSuffix(name, "/") {
			return ctx.Err()
		}
		if size > profileLimit-kept.size {
			e.note("%s: %s is omitted: %s holds at most %d bytes", r.name, name, ProfileDir, profileLimit)
			return ctx.Err()
		}
		n, err := e.copyFile(kept.store, path.Join(r.dir(), name), size)
		if err != nil {
			_, serr := kept.store.Seek(kept.size, io.SeekStart) // what follows overwrites it
			e.note("keep profile: %v", errors.Join(err, serr))
			return serr
		}
		kept.files = append(kept.files, profileFile{r.name, name, kept.size, n})
		kept.size += n
		return ctx.Err()
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
		if err == nil && e.profiles.evaluations > 0 {
			err = root.Mkdir(ProfileDir, 0o777)
		}
		if err == nil && e.profiles.store != nil {
			if derr := e.deliver(); derr != nil {
				e.note("deliver profile: %v", derr) // the verdicts do not depend on it
			}
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

// plainName returns a file's name that shows as itself: the agent writes it into the job's log when it uploads the file.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if !text.Visible(r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name, "_"))
}

// deliver writes the files that were kept to ProfileDir. It makes no subdirectories, as an artifact path such as
// "profile_data/*" expects. With several evaluations, file names begin with the name of theirs.
func (e *engine) deliver() (err error) {
	kept := &e.profiles
	// Files of directories come last: they must not take the names of the profiler's own.
	slices.SortStableFunc(kept.files, func(a, b profileFile) int { return cmp.Compare(strings.Count(a.name, "/"), strings.Count(b.name, "/")) })
	for _, f := range kept.files {
		to := plainName(strings.ReplaceAll(f.name, "/", "-"))
		if kept.evaluations > 1 {
			to = f.evaluation + "-" + to
		}
		to = path.Join(ProfileDir, to)
		out, oerr := e.here.root.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(oerr, fs.ErrExist) {
			e.note("%s of %s is omitted: %s is there already", f.name, f.evaluation, to)
			continue
		}
		if oerr != nil { // such as a name that is too long now
			err = errors.Join(err, oerr)
			continue
		}
		_, cerr := io.Copy(out, io.NewSectionReader(kept.store, f.offset, f.size))
		err = errors.Join(err, cerr, out.Close())
	}
	return errors.Join(err, kept.store.Close())
}
