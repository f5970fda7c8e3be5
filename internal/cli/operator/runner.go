package operator

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// NewRunner returns kbnode runner.
func NewRunner(s term.Streams) *cobra.Command {
	var o runner.Options
	var l localFlags
	cmd := &cobra.Command{
		Use:   "runner [SUBMISSION]",
		Short: "Evaluate a submission on this machine, or in a job's container",
		Long: `Evaluate a submission on this machine, or in a job's container.

With --problem, it evaluates the file SUBMISSION (default: the problem's own) as a job
would, and shows the result. Exit code 0 if the submission passed, 1 if it did not.

In a job, the payload is read from KERNELBOT_PAYLOAD or SUBMISSION_PAYLOAD, from
KERNELBOT_PAYLOAD_0, _1, … if it is too large for one variable, or from --payload.
With --config, it is plain JSON text. Exit code 0 if the evaluation was done, whatever
the tests found, and 1 otherwise; result.json is written in both cases. Exit code 3 if
it could not be written.`,
		Example: `  kbnode runner --problem prefix_python mine.py
  kbnode runner                               as a job's command
  kbnode payload decode | kbnode runner --config - --workdir /tmp/job`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.Check(cmd.Flags().Changed); err != nil {
				return term.Usage(err)
			}
			if err := l.check(s, cmd, args); err != nil {
				return err
			}
			if l.problem != "" {
				return l.run(cmd.Context(), s, o, args)
			}
			if (o.Payload == "-" || o.Config == "-") && term.IsTerminal(s.In) {
				term.Printf(s.Err, "reading the payload from the terminal; end it with Ctrl-D\n")
			}
			// The answer is result.json, so errors in writing the summary do not count.
			o.Stdout, o.Stderr, o.Stdin = s.Raw, s.Err, s.In
			if code := runner.Main(cmd.Context(), o); code != term.ExitDone {
				return &term.ExitError{Code: code}
			}
			return nil
		},
	}
	fl := flag.NewFlagSet("runner", flag.ContinueOnError)
	o.Flags(fl)
	cmd.Flags().AddGoFlagSet(fl)
	cmd.Flags().Lookup("workdir").Usage = "where the program runs and result.json is written (default: this directory; with --problem, a temporary one)"
	cmd.Flags().StringVar(&l.problem, "problem", "", "evaluate for this `PROBLEM`: "+task.Choice)
	cmd.Flags().StringVar(&l.mode, "mode", "test", "with --problem: test, benchmark, leaderboard, private or profile")
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "with --problem: print result.json")
	return cmd
}

func (l *localFlags) check(s term.Streams, cmd *cobra.Command, args []string) error {
	given := cmd.Flags().Changed
	if given("problem") {
		for _, name := range []string{"payload", "config"} {
			if given(name) {
				return term.Usagef("--%s is for jobs, and --problem for this machine; give one of them", name)
			}
		}
		if l.problem == "" {
			return term.Usagef("--problem names no problem; give %s", task.Choice)
		}
		if given("workdir") && !isDir(cmd.Flag("workdir").Value.String()) {
			return term.Usagef("--workdir: there is no directory %.200q; make it, or leave --workdir out", cmd.Flag("workdir").Value)
		}
		return nil
	}
	if len(args) > 0 {
		i := slices.Index(s.Typed, args[0])
		shown := text.Line(args[0], 60)
		if i < 0 {
			return term.Usagef("%q needs --problem", shown)
		}
		if isProblem(args[0]) || slices.Contains(task.Examples(), args[0]) {
			return s.Advise(fmt.Sprintf("%q is a problem", shown), s.With(i, "--problem", args[0]))
		}
		return s.Advise(fmt.Sprintf("%q needs its problem, %s", shown, task.Choice), s.With(i, "--problem", problemFor(args[0]), args[0]))
	}
	for _, name := range []string{"mode", "json"} {
		if given(name) {
			return term.Usagef("--%s needs --problem; in a job, the payload says what to do", name)
		}
	}
	return nil
}

const exitNoResult = 3

type localFlags struct {
	problem, mode string
	asJSON        bool
}

func (l *localFlags) run(ctx context.Context, s term.Streams, o runner.Options, args []string) error {
	t, submission, err := readProblem(l.problem, args)
	if err != nil {
		return err
	}
	doc, err := t.Config(submission, "", l.mode)
	if err != nil {
		return term.Usage(err)
	}
	if err := submit.CheckSize(payload.Encode([]byte(doc))); err != nil {
		s.Warn("no node can evaluate this: %v", err)
	}
	o.Config, o.Stdin = "-", strings.NewReader(doc)
	if len(args) == 0 {
		s.Progress("submission: the problem's own %s; name a file to evaluate yours", t.Submission)
	}
	limits := map[string]time.Duration{"test": t.TestTimeout, "benchmark": t.BenchmarkTimeout, "leaderboard": t.RankedTimeout}
	o.Begin = func(what, name string) {
		if limit := limits[name]; what == "run" && limit > 0 {
			what += fmt.Sprintf(", %.0f s at most", limit.Seconds())
		}
		s.Progress("%s: %s", name, what)
	}
	raw, r, err := evaluate(ctx, o)
	if err != nil {
		return err
	}
	said, passed := r.Verdict()
	missing := submit.Missing(r)
	switch {
	case l.asJSON:
		term.Verbatim(s.Out, text.JSON(string(raw)))
	case ctx.Err() != nil:
		term.Printf(s.Out, "%s\n", said)
	case missing != "":
		term.Printf(s.Out, "Not evaluated: %s\n", missing)
	default:
		var report strings.Builder
		r.Report(&report, true)
		term.Printf(s.Out, "%s", paintReport(s.Out, report.String(), said, passed))
	}
	if !passed && missing != "" {
		s.Progress("install what is missing, or evaluate on a node: %s", s.Line(append([]string{"submit", "--gpu", gpuFor(t), "--eval", l.problem, "--mode", l.mode}, args...)))
	}
	return term.ExitUnless(passed, nil)
}

func gpuFor(t *task.Task) string {
	for _, name := range t.GPUs {
		if _, err := submit.GPUOf(name); err == nil {
			return name
		}
	}
	return "B200_BK"
}

// evaluate runs an evaluation in its directory or, without one, in a temporary directory, and returns
// result.json as it is and as it was read.
func evaluate(ctx context.Context, o runner.Options) (raw []byte, r *result.Result, err error) {
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "kbnode-runner-"); err != nil {
			return nil, nil, fmt.Errorf("make a directory for the evaluation: %w; set TMPDIR to a directory that you may write to", err)
		}
		defer func() { err = errors.Join(err, tree.RemoveAll(o.Dir)) }()
	}
	var notes bytes.Buffer
	o.Stderr = &notes
	if runner.Main(ctx, o) == exitNoResult {
		return nil, nil, errors.New(strings.TrimSpace(notes.String()))
	}
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read result: %w", err)
	}
	defer root.Close() //nolint:errcheck // opened for reading
	if raw, err = result.ReadFile(root, result.File); err != nil {
		return nil, nil, fmt.Errorf("read result: %w", err)
	}
	r, err = result.Read(raw)
	return raw, r, err
}
