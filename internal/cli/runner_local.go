package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/runner"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/task"
)

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
	o.Begin = func(what, name string) { s.progress("%s: %s", name, what) }
	text, r, err := evaluate(ctx, o)
	if err != nil {
		return err
	}
	return l.show(s, t, args, text, r)
}

// evaluate runs an evaluation in its directory or, without one, in a temporary directory. It returns
// result.json.
func evaluate(ctx context.Context, o runner.Options) (text []byte, r *result.Result, err error) {
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "kbnode-runner-"); err != nil {
			return nil, nil, fmt.Errorf("make a directory for the evaluation: %w", err)
		}
		defer func() { err = errors.Join(err, runner.RemoveAll(o.Dir)) }()
	}
	var notes bytes.Buffer
	o.Stderr = &notes
	runner.Main(ctx, o)
	if text, r, err = readResult(o.Dir); err != nil {
		return nil, nil, errors.Join(errors.New(strings.TrimSpace(notes.String())), err)
	}
	return text, r, nil
}

func readResult(dir string) ([]byte, *result.Result, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close() //nolint:errcheck // opened for reading
	text, err := result.ReadFile(root, result.File)
	if err != nil {
		return nil, nil, err
	}
	r, err := result.Read(text)
	return text, r, err
}

// show prints the result for people or, as JSON, for programs.
func (l *localFlags) show(s Streams, t *task.Task, args []string, text []byte, r *result.Result) error {
	said, passed := r.Verdict()
	missing := submit.Missing(r)
	switch {
	case l.asJSON:
		verbatim(s.Out, string(text))
	case missing != "" && !passed:
		printf(s.Out, "Not evaluated: %s\n", missing)
	default:
		var report strings.Builder
		r.Report(&report)
		printf(s.Out, "%s", paintReport(s.Out, report.String(), said, passed))
	}
	if passed {
		return nil
	}
	if missing != "" {
		s.progress("install it, or evaluate on a node: %s", line(append([]string{"submit", "--gpu", gpuFor(t), "--eval", l.problem, "--mode", l.mode}, args...)))
	}
	return &exitError{code: exitNo}
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
