package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// preRunProgram runs once before the task's program, which shows what it compiles on import.
// Nothing that it leaves reaches the task's program, which compiles again: it may be anything.
const preRunProgram = "submission.py"

// engine runs the evaluations of one job.
type engine struct {
	*submission // whose turn it is
	submissions []*submission
	here        *jobDir
	dir         string   // its path
	env         []string // of every program, without POPCORN_ variables
	gpus        int      // GPUs that torch would count
	runtime     string   // CUDA, ROCm or empty
	note        func(format string, args ...any)
	begin       func(what, name string) // called before each step: what is "compile" or "run"

	landlock  int               // version; 0 for none
	programs  map[string]string // paths by name; none if it is not installed
	temp      []string          // environment that says where spaces are made
	spaceName string
	judgeName string   // of the space of a program that asks for workers
	temporary []string // other directories where programs may write
	areas     []*area
	kept      []string            // caches that the image or the job placed
	brought   []brought           // what the image has of libraries' caches
	leads     map[string]string   // where paths that programs look through lead, without Landlock
	proc      procState           // of this process and those above and beside it
	beside    []int               // the other programs of a pipe
	alone     bool                // in a container, with them and with what is above
	logs      map[string]identity // files that those, and this process, had open for writing
	theirs    map[string]identity // likewise, with those since then
	sockets   sockets             // of them and what is above
	tmpfs     map[uint64]bool     // which devices of theirs are one
	profiles  profiles            // to be delivered
	originals *originals          // what the step may go on with
	traced    int                 // bytes of their archives in the result
	left      error               // why something that a program left is still there
	changed   []error             // what the last program did to what was there before
	lost      []error             // of that, what cannot be put back
	output    int                 // by all evaluations of a comparison, as count counts
}

// step is one evaluation: of which submission, its name, the mode of the task's program, its cases and its
// time limit.
type step struct {
	side  int
	name  string
	mode  string
	cases string
	limit timeLimit
}

func (c *config) steps() []step {
	test := step{0, "test", "test", c.tests, c.test}
	switch c.mode {
	case "test":
		return []step{test}
	case "profile":
		var steps []step
		for line := range splitLines(c.benchmarks) {
			steps = append(steps, step{0, "profile." + strconv.Itoa(len(steps)), "profile", chomp(line), c.benchmark})
		}
		return steps
	case result.ModeCompare:
		return c.turns()
	}
	lines := c.benchmarkLines()
	benchmark := step{0, "benchmark", "benchmark", lines, c.benchmark}
	if c.mode == "benchmark" {
		return []step{benchmark}
	}
	return []step{test, benchmark, {0, "leaderboard", "leaderboard", lines, c.ranked}}
}

// runAll runs the evaluations in order and calls done after each. It stops after the
// first that does not pass, except for profiles, which do not depend on each other.
func (e *engine) runAll(ctx context.Context, done func(name string, ev *result.Evaluation)) (err error) {
	steps := e.steps()
	err = e.checkIncludes()
	if e.mode == "profile" && len(steps) > 0 {
		err = errors.Join(err, e.checkProfiler())
	}
	if err != nil {
		return err // nothing is changed yet
	}
	defer func() { err = errors.Join(err, e.deliverProfiles()) }()
	if e.lang == "cu" { // an earlier job's program must not be mistaken for this one's
		if err := e.src.root.RemoveAll(evalProgram); err != nil {
			return fmt.Errorf("remove old %s: %w", evalProgram, err)
		}
	}
	if err := e.recordAreas(); err != nil {
		return err
	}
	e.placeCaches(ctx)
	e.here.reserve(len(steps))
	for _, s := range steps {
		if err := errors.Join(e.changed...); err != nil {
			return err
		}
		e.submission = e.submissions[s.side]
		ev, err := e.evaluate(ctx, s)
		if ev != nil {
			done(s.name, ev)
		}
		if err == nil && ev != nil && e.mode == result.ModeCompare {
			err = e.count(ev)
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return cancelled(ctx)
		}
		if s.mode != "profile" && (ev.Run == nil || !ev.Run.Passed) {
			break
		}
	}
	for _, err := range e.changed {
		e.note("%v", err)
	}
	return nil
}

// evaluate runs one step. It returns a nil Evaluation if an error or the job's cancellation came before the
// end of the task's program.
func (e *engine) evaluate(ctx context.Context, s step) (*result.Evaluation, error) {
	start := time.Now()
	e.begin("compile", s.name)
	if e.lang == "py" && !e.preRan {
		if err := e.preRun(ctx); err != nil || ctx.Err() != nil {
			return nil, err
		}
	}
	ev, err := e.compileAndRun(ctx, s)
	// Use the monotonic clock, so that the end is not before the start.
	end := start.Add(max(time.Since(start), time.Microsecond))
	cerr := e.clear()
	if cerr == nil && e.originals.wanted { // the step's next command may be made of it
		cerr = errors.Join(e.lost...)
	}
	if cerr != nil {
		if err = errors.Join(err, cerr); ev != nil && ev.Run != nil {
			ev.Run.Passed = false
		}
	}
	if ev != nil {
		ev.Start, ev.End = result.Time(start), result.Time(end)
	}
	return ev, err
}

// compileAndRun writes the task's files, compiles them if the language needs it, and runs the task's program.
func (e *engine) compileAndRun(ctx context.Context, s step) (*result.Evaluation, error) {
	ev, call, ok := &result.Evaluation{Compilation: e.compiled}, []string{"python3", e.main}, true
	var err error
	if e.lang == "cu" {
		call = []string{"./" + evalProgram}
		ev.Compilation, ok, err = e.compileCUDA(ctx)
	} else {
		err = e.src.put()
	}
	if err != nil || ctx.Err() != nil {
		return nil, err
	}
	if ok {
		e.begin("run", s.name)
		ev.Run, ev.Profile, err = e.run(ctx, s, call)
		if err != nil && e.lang == "cu" && cannotExecute(err) {
			fail(ev.Compilation, "what the compiler left cannot be executed ("+err.Error()+")")
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return ev, nil
}

// clear puts back and removes what programs left, also after the last one: the next program would trust
// it, and a launcher may take an uploaded file for the job's result.
func (e *engine) clear() error {
	err := e.here.putBack()
	if e.lang == "cu" {
		if rerr := tree.Remove(e.src.root, evalProgram); rerr != nil {
			err = errors.Join(err, fmt.Errorf("remove program: %w", rerr))
		}
	}
	err = errors.Join(err, e.left, e.putBack(), e.src.remove())
	e.left = nil
	return err
}

// preRun writes the files and runs the submission by itself, once in a job. It ignores its failure, and
// keeps a Compilation only if the submission compiled an extension.
func (e *engine) preRun(ctx context.Context) error {
	if err := e.src.put(); err != nil {
		return err
	}
	p := program{argv: []string{"python3", preRunProgram}, env: setenv(e.env, "POPCORN_SEED", "1"), limit: compileLimit, popcorn: true}
	o, err := e.runAlone(ctx, p)
	// Nothing that it left in place of a source, or ahead of one on a search path, may judge the submission.
	if err = errors.Join(err, e.clear(), errors.Join(e.changed...)); err != nil {
		return err
	}
	e.preRan = true
	stdout, stderr := o.texts()
	if !strings.Contains(stdout, "-DTORCH_EXTENSION_NAME") {
		return nil
	}
	if o.timedOut {
		o.exitCode = result.ExitTimeout
	}
	e.compiled = &result.Compilation{
		NvccFound: true, Success: true, Command: quote(p.argv),
		Stdout: stdout, Stderr: stderr, ExitCode: o.exitCode,
	}
	return nil
}

// run runs the task's program, under a profiler in mode profile.
func (e *engine) run(ctx context.Context, s step, call []string) (*result.Run, *result.Profile, error) {
	name, workers := e.spaceName, s.mode != "profile" && e.asksForWorkers()
	if workers { // the name is that of the submission's homes
		name = e.judgeName
	}
	own, err := e.newSpace(name)
	if err != nil {
		return nil, nil, err
	}
	defer e.drop(own)
	cases, err := own.writeCases(s.cases)
	if err != nil {
		return nil, nil, err
	}
	env := e.env
	if e.hasSeed {
		env = setenv(env, "POPCORN_SEED", e.seed)
	}
	if e.multiGPU {
		env = setenv(env, "POPCORN_GPUS", strconv.Itoa(e.gpus))
	}
	p := e.inSpace(program{argv: append(call, s.mode, cases), env: env, limit: s.limit, popcorn: true}, own)
	if s.mode == "profile" {
		return e.profile(ctx, s.name, p)
	}
	if workers {
		p.workers, p.compilers = e, nil // a worker could ask those that compile for its judge
	}
	o, err := p.run(ctx)
	if err != nil {
		return nil, nil, err
	}
	run := e.report(p, o)
	e.evidence = append(e.evidence, witness.Evaluation{Name: s.name, Claims: run.Result, Report: o.popcorn.buf, Marks: o.popcorn.sight.marks, End: o.last})
	return run, nil, nil
}

// report converts the outcome of a program to a Run.
func (e *engine) report(p program, o *outcome) *result.Run {
	run := &result.Run{
		Command: quote(p.argv), ExitCode: o.exitCode,
		Duration: json.Number(strconv.FormatFloat(o.duration.Seconds(), 'f', -1, 64)),
	}
	run.Stdout, run.Stderr = o.texts()
	if o.starved > 0 { // any of them: also the one that would have said so
		run.Stderr = addLine(run.Stderr, fmt.Sprintf("memory ran out, and the kernel ended %d processes", o.starved))
	}
	if o.timedOut {
		run.ExitCode, run.Duration = result.ExitTimeout, json.Number(p.limit.text)
		if at := caseAtEnd(o.popcorn.buf); p.workers != nil && at != "" { // else the submission could have written it
			run.Stderr = addLine(run.Stderr, "the time limit came "+at)
		}
		return run
	}
	if o.cancelled {
		return run
	}
	reported, over := parsePopcorn(o.popcorn.buf)
	run.Result = reported
	run.Success = o.exitCode == 0 || o.exitCode == result.ExitWrong
	run.Passed = o.exitCode == 0 && reported.Get("check") == "pass"
	if o.popcorn.foreign > 0 {
		e.note("%d bytes of POPCORN_FD are ignored: a process other than the task's program wrote them", o.popcorn.foreign)
	}
	if over || o.popcorn.over {
		// The omitted part may contain a check that takes back this one.
		run.Passed = false
		e.note("the program reported more than %d bytes or %d keys; the rest is ignored, and the run does not pass", popcornLimit, result.MaxNames)
	}
	return run
}
