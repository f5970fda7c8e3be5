// Package runner evaluates one submission inside a job's container and writes
// result.json. It does not isolate the job from the node; the container does.
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
	"strings"
	"sync"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// Options configure Main.
type Options struct {
	Dir     string    // where programs run and result.json is written; "" is the current directory
	Payload string    // file with an encoded payload, "-" for Stdin; "" means that the environment has it
	Config  string    // payload file that is not encoded, "-" for Stdin; overrides Payload
	Stdin   io.Reader // with the payload, if Payload or Config says so; programs never get it
	Stdout  io.Writer // the log and the summary; nil discards them
	Stderr  io.Writer // errors; nil discards them
	// Begin, if not nil, is called before each step of an evaluation: what is "compile" or "run".
	Begin func(what, evaluation string)
}

// maxProcs bounds the threads that run Go code at the same time: the runner mostly
// waits.
const maxProcs = 2

// exitNoResult is the exit code if result.json could not be written. A file with that
// name is then not the runner's.
const exitNoResult = 3

// Main evaluates a payload and returns the exit code: 0 if result.json reports success,
// whatever the tests found, or there is nothing to evaluate; 1 if it reports an error,
// or the directory cannot be opened; 3 if it could not be written. Main kills and reaps
// every child of the process: call it last, and only once.
func Main(ctx context.Context, o Options) int {
	_ = growStack()
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	runtime.GOMAXPROCS(min(maxProcs, runtime.GOMAXPROCS(0)))

	out := newOutlet()
	s := &session{
		Options: o, landlock: landlockVersion(),
		log: &buildLog{result.Log{W: out.writer(o.Stdout), Groups: os.Getenv("BUILDKITE") == "true"}, out.writer(o.Stderr)},
	}
	ctx = prepare(ctx, s.landlock)
	code := s.main(ctx)
	out.flush(ctx, outletPatience)
	return code
}

// main is Main with a log that does not block.
func (s *session) main(ctx context.Context) int {
	dir, err := filepath.Abs(s.Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	var here *jobDir
	if err == nil {
		here, err = openJobDir(dir)
	}
	if err != nil {
		s.log.note("open the job's directory: %v", err)
		return exitNoResult
	}
	defer here.close() //nolint:errcheck // written and linked

	if s.Stdin != nil {
		s.Stdin = limit.Reader(ctx, s.Stdin)
	}
	r := &result.Result{}
	err = s.evaluate(ctx, here, r)
	if errors.Is(err, errNoJob) {
		s.log.Line("kbnode runner: %v", err)
		return 0
	}
	if err == nil && ctx.Err() != nil {
		err = cancelled(ctx)
	}
	err = errors.Join(err, endTree())
	conclude(r, err)
	werr := here.write(r)
	conclude(r, errors.Join(err, werr)) // the log must not say that it passed
	s.log.End(r, s.summaries)
	if err := s.writeFindings(here); err != nil {
		s.log.note("%v", err) // they are in the log
	}
	for _, f := range s.implausible {
		s.log.Line("implausible: %s", f)
	}
	if !r.Success {
		// If the build failed, some readers see only its log.
		s.log.note("%s", r.Error)
	}
	if werr != nil {
		return exitNoResult
	}
	if !r.Success {
		return 1
	}
	return 0
}

// conclude says in a result how the job ended.
func conclude(r *result.Result, err error) {
	r.Success = err == nil
	if err != nil {
		r.Error = text.Line(strings.ReplaceAll(err.Error(), "\n", "; "), maxError)
	}
}

// session is one run of Main.
type session struct {
	Options
	landlock  int
	log       *buildLog
	summaries []*result.Summary

	implausible []witness.Finding
}

// writeFindings writes for the node what is implausible. Nothing that a program left under that name stays.
func (s *session) writeFindings(here *jobDir) error {
	err := tree.Remove(here.root, witness.File)
	if err == nil && len(s.implausible) > 0 {
		var body []byte
		if body, err = witness.Encode(s.implausible); err == nil {
			err = writeFile(here.root, witness.File, body, 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", witness.File, err)
	}
	return nil
}

// deadly are the signals that end or stop a Go program by default (os/signal). Programs may send them
// (before Linux 6.12), and a log that no one reads anymore must not end the job. Not all signals: to
// catch one, Go switches to another thread and back, which takes longer than all else at the start.
var deadly = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE,
	syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGSEGV, syscall.SIGSTKFLT, syscall.SIGSYS, syscall.SIGTRAP,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
}

// growStack makes room for the deepest calls while there are few: Go copies a stack, with each call on it,
// whenever it must double.
//
//go:noinline
func growStack() byte {
	var room [12 << 10]byte
	return room[len(os.Args)&1]
}

// preparing is done when programs may start.
var preparing sync.WaitGroup

// prepare does what programs need and what can be done while the payload is read: it catches deadly
// signals until the process ends, makes threads, and Landlock's rules. It returns a context that is
// canceled by a signal that asks the process to end.
func prepare(ctx context.Context, landlock int) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	preparing.Add(1)
	go func() {
		signals := make(chan os.Signal, 16)
		signal.Notify(signals, deadly...)
		spareThreads()
		if landlock > 0 {
			_, _ = landlockRules(landlock, nil) // on an error, the first program tries it again
		}
		preparing.Done()
		// The encoder looks at each type once: do it while a program runs.
		_, _ = (&result.Result{System: &result.System{}, Runs: result.Pairs[*result.Evaluation]{{Value: &result.Evaluation{Run: &result.Run{}}}}}).Encode()
		for sig := range signals {
			switch sig {
			case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
				cancel(fmt.Errorf("%v signal received", sig))
			}
		}
	}()
	return ctx
}

func (s *session) begin(what, name string) {
	s.log.begin(what, name)
	if s.Begin != nil {
		s.Begin(what, name)
	}
}

// errNoJob means that there is nothing to do, which is not a failure.
var errNoJob = errors.New("no payload, and this build was not started through the API: nothing to evaluate")

// cancelled returns the error of a job that was told to stop.
func cancelled(ctx context.Context) error {
	return fmt.Errorf(result.Cancelled+": %w", context.Cause(ctx))
}

// evaluate fills in the result as far as it gets.
func (s *session) evaluate(ctx context.Context, here *jobDir, r *result.Result) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("kbnode has a fault; report it: %v", p)
			stack := make([]byte, 64<<10)
			_, _ = s.log.err.Write(stack[:runtime.Stack(stack, false)])
		}
	}()
	public, private := split(os.Environ())
	object, err := s.object(public, private)
	if errors.Is(err, errNoJob) {
		return err
	}
	// An earlier job's result must not be mistaken for this one's.
	if rerr := tree.Remove(here.root, result.File); rerr != nil {
		err = errors.Join(err, fmt.Errorf("remove old %s: %w", result.File, rerr))
	}
	if err != nil {
		return err
	}
	c, err := parseConfig(object)
	if err != nil {
		return err
	}
	submissions, err := newSubmissions(here.root, c)
	if err != nil {
		return err
	}
	if err := adopt(); err != nil {
		return err
	}
	hideArgument(s.Payload)
	hideArgument(s.Config)
	e := &engine{
		submission: submissions[0], submissions: submissions, here: here, dir: here.root.Name(), env: homeless(childEnv(public)), note: s.log.note,
		temp: public, spaceName: tempName(), judgeName: tempName(), begin: s.begin, landlock: s.landlock,
	}
	if e.landlock == 0 { // a program can write into the interpreter's directories, and must not change what is there
		e.env = setenv(e.env, "PYTHONDONTWRITEBYTECODE", "1")
	}
	for _, in := range tempDirs(public, e.dir) {
		here.way = append(here.way, wayTo(in+"/x")...)
	}
	e.findPrograms(ctx)
	e.findCompilers()
	r.System, e.gpus = e.system(ctx)
	e.runtime = r.System.Runtime
	defer func() { s.implausible = e.implausible() }()
	return e.runAll(ctx, func(name string, ev *result.Evaluation) {
		r.Runs = append(r.Runs, result.Pair[*result.Evaluation]{Key: name, Value: ev})
		sum := result.Summarize(name, ev, ctx.Err() != nil)
		s.summaries = append(s.summaries, sum)
		s.log.Evaluation(sum, ev)
	})
}

// object returns the payload from a file, standard input or the environment.
func (s *session) object(public, private []string) (*payload.Object, error) {
	var text string
	var err error
	switch {
	case s.Config != "":
		text, err = s.read(s.Config, payload.ReadJSON)
		if err != nil {
			return nil, err
		}
		object, err := payload.ParseObject(text)
		if err != nil && !strings.Contains(text, "{") {
			if _, derr := payload.Decode(text); derr == nil {
				err = errors.New("the payload is encoded; give it with --payload instead of --config")
			}
		}
		return object, err
	case s.Payload != "":
		text, err = s.read(s.Payload, payload.Read)
	default:
		text, err = payload.FromEnv(private)
	}
	if err != nil {
		return nil, err
	}
	if text != "" || s.Payload != "" {
		return payload.Decode(text)
	}
	if getenv(public, "BUILDKITE") == "true" && getenv(public, "BUILDKITE_SOURCE") != "api" {
		return nil, errNoJob
	}
	return nil, fmt.Errorf("no payload; set %s or %s (or %s_0, _1, …), or name a file with --payload or --config",
		payload.Var, payload.OldVar, payload.Var)
}

// read reads a file, or standard input if name is "-".
func (s *session) read(name string, read func(io.Reader) (string, error)) (string, error) {
	if name == "-" && s.Stdin != nil {
		return read(s.Stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("read payload: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	return read(f)
}
