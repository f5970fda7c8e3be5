package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/runner"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/task"
	"github.com/gpu-mode/kbnode/internal/tree"
)

// exitNoResult is the exit code of the runner if it could not write result.json.
const exitNoResult = 3

// localFlags say what to evaluate on this machine.
type localFlags struct {
	problem, mode string
	asJSON        bool
}

// run evaluates a submission and shows the result.
func (l *localFlags) run(ctx context.Context, s Streams, o runner.Options, args []string) error {
	t, submission, err := readProblem(l.problem, args)
	if err != nil {
		return err
	}
	doc, err := t.Config(submission, "", l.mode)
	if err != nil {
		return usage(err)
	}
	if err := submit.CheckSize(payload.Encode([]byte(doc))); err != nil {
		s.warn("no node can evaluate this: %v", err)
	}
	o.Config, o.Stdin = "-", strings.NewReader(doc)
	if len(args) == 0 {
		s.progress("submission: the problem's own %s; name a file to evaluate yours", t.Submission)
	}
	limits := map[string]time.Duration{"test": t.TestTimeout, "benchmark": t.BenchmarkTimeout, "leaderboard": t.RankedTimeout}
	o.Begin = func(what, name string) {
		if limit := limits[name]; what == "run" && limit > 0 {
			what += fmt.Sprintf(", %.0f s at most", limit.Seconds())
		}
		s.progress("%s: %s", name, what)
	}
	out, err := evaluate(ctx, o)
	if err != nil {
		return err
	}
	said, passed := out.Result.Verdict()
	missing := submit.Missing(out.Result)
	switch {
	case l.asJSON:
		verbatim(s.Out, string(out.Raw))
	case ctx.Err() != nil:
		printf(s.Out, "%s\n", said)
	case missing != "":
		printf(s.Out, "Not evaluated: %s\n", missing)
	default:
		var report strings.Builder
		out.Result.ReportTests(&report)
		printf(s.Out, "%s", paintReport(s.Out, report.String(), said, passed))
	}
	if !passed && missing != "" {
		s.progress("install what is missing, or evaluate on a node: %s", line(append([]string{"submit", "--gpu", gpuFor(t), "--eval", l.problem, "--mode", l.mode}, args...)))
	}
	return exitUnless(passed, nil)
}

// evaluate runs an evaluation in its directory or, without one, in a temporary directory.
func evaluate(ctx context.Context, o runner.Options) (out submit.Outcome, err error) {
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "kbnode-runner-"); err != nil {
			return out, fmt.Errorf("make a directory for the evaluation: %w; set TMPDIR to a directory that you may write to", err)
		}
		defer func() { err = errors.Join(err, tree.RemoveAll(o.Dir)) }()
	}
	var notes bytes.Buffer
	o.Stderr = &notes
	if runner.Main(ctx, o) == exitNoResult {
		return out, errors.New(strings.TrimSpace(notes.String()))
	}
	return submit.ReadLocal(o.Dir)
}

// gpuFor returns a type of GPU that a problem is for.
func gpuFor(t *task.Task) string {
	for _, name := range t.GPUs {
		if _, err := submit.GPUOf(name); err == nil {
			return name
		}
	}
	return "B200_BK"
}
