// Package runner evaluates one submission inside of a job's container and
// leaves result.json; it isolates nothing, that is the container's work.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// Options say what a runner works with.
type Options struct {
	Env     []string  // NAME=VALUE; nil means the process's own
	Dir     string    // where the program runs and result.json is left; "" is the current directory
	Payload string    // file with an encoded payload, "-" for Stdin; "" means that Env has it
	Stdin   *os.File  // what programs inherit; nil means /dev/null
	Stdout  io.Writer // the summary; nil drops it
	Stderr  io.Writer // what went wrong; nil drops it
	Limits  payload.Limits
	Compile float64 // seconds for the compiler and for the pre-run; 0 means 120
}

// Main evaluates a payload and returns the process's exit code: 0 when
// result.json says success, whatever the tests gave, and 1 otherwise. It
// overwrites secrets in the process's initial environment, or executes the
// program again (os.Args) without them, and it kills and reaps every child of
// the process: call it last, and once.
func Main(ctx context.Context, o Options) int {
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The kernel ends children together with the thread that started them, so
	// that none is left should this process be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		o.note("open the job's directory: %v", err)
		return 1
	}
	defer root.Close() //nolint:errcheck // a directory

	r := &Result{}
	err = o.evaluate(ctx, root, r)
	if errors.Is(err, errNoJob) {
		say(o.Stdout, "kbnode runner: %v", err)
		return 0
	}
	if err == nil && ctx.Err() != nil {
		err = cancelled(ctx)
	}
	err = errors.Join(err, endTree())
	if r.Success = err == nil; err != nil {
		r.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		// With the build failed, its log is all that some readers see.
		o.note("%s", r.Error)
	}
	if err := r.write(root); err != nil {
		o.note("%v", err)
		return 1
	}
	if !r.Success {
		return 1
	}
	return 0
}

// note writes a line to the build's log.
func (o *Options) note(format string, args ...any) { say(o.Stderr, "kbnode runner: "+format, args...) }

// say writes a line; a log that cannot be written must not cost the result.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }

// errNoJob means that there is nothing to do, which is not a failure.
var errNoJob = errors.New("no payload, and this build was not started through the API: nothing to evaluate")

// cancelled is the error of a job that was told to stop.
func cancelled(ctx context.Context) error {
	return fmt.Errorf("the job was cancelled before its end: %w", context.Cause(ctx))
}

// evaluate fills in the result as far as it comes.
func (o *Options) evaluate(ctx context.Context, root *os.Root, r *Result) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("kbnode has a fault, please report it: %v", p)
			_, _ = o.Stderr.Write(debug.Stack())
		}
	}()
	public, private, err := shed(o.Env, "/proc/self/mem")
	if err != nil {
		return err
	}
	text, err := o.payload(public, private)
	if err != nil {
		return err
	}
	// A result of an earlier job must not be taken for this one's.
	if err := ignoreMissing(root.RemoveAll(ResultFile)); err != nil {
		return fmt.Errorf("remove old %s: %w", ResultFile, err)
	}
	object, err := payload.Decode(text, o.Limits)
	if err != nil {
		return err
	}
	c, err := parseConfig(object)
	if err != nil {
		return err
	}
	src, err := newSources(root, c)
	if err != nil {
		return err
	}
	if err := adopt(); err != nil {
		return err
	}
	e := &engine{
		config: c, src: src, dir: root.Name(), env: childEnv(public), stdin: o.Stdin, note: o.note,
		compile: seconds(compileLimit), begin: func(string, string) {},
	}
	if o.Compile > 0 {
		e.compile = limit{o.Compile, strconv.FormatFloat(o.Compile, 'f', -1, 64)}
	}
	r.System, e.gpus = e.system(ctx)
	e.runtime = r.System.Runtime
	return e.runAll(ctx, func(name string, ev *Evaluation) {
		r.Runs = append(r.Runs, Pair[*Evaluation]{name, ev})
		say(o.Stdout, "%s", summary(name, ev))
	})
}

// payload returns the encoded payload.
func (o *Options) payload(public, private []string) (string, error) {
	if o.Payload == "-" && o.Stdin != nil {
		return payload.Read(o.Stdin, o.Limits)
	}
	if o.Payload != "" {
		f, err := os.Open(o.Payload)
		if err != nil {
			return "", fmt.Errorf("read payload: %w", err)
		}
		defer f.Close() //nolint:errcheck // opened for reading
		return payload.Read(f, o.Limits)
	}
	text, _, err := payload.FromEnv(private)
	if err != nil || text != "" {
		return text, err
	}
	if getenv(public, "BUILDKITE") == "true" && getenv(public, "BUILDKITE_SOURCE") != "api" {
		return "", errNoJob
	}
	return "", fmt.Errorf("no payload; set %s or %s (or %s_0, _1, …), or name a file with --payload",
		payload.Var, payload.OldVar, payload.Var)
}

// summary says in a line how an evaluation went, for the build's log.
func summary(name string, ev *Evaluation) string {
	run := ev.Run
	verdict := "not passed"
	switch {
	case run == nil:
		return name + ": not run, as the compilation did not succeed"
	case run.Passed:
		verdict = "passed"
	case run.ExitCode == exitTimeout && len(run.Result) == 0:
		verdict = "out of time"
	}
	return fmt.Sprintf("%s: %s (exit code %d, %s s)", name, verdict, run.ExitCode, run.Duration)
}
