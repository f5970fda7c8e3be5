package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/task"
	"github.com/gpu-mode/kbnode/internal/text"
)

const defaultRunTime = time.Hour // of a payload, whose time limits are not known

type submitFlags struct {
	targetFlags

	eval, template, payload, mode, runID, resultFile string
	hello                                            bool
	runs                                             []string // that the result must contain
}

func newSubmit(s Streams) *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit [SUBMISSION]",
		Short: "Evaluate a submission on a queue's agents, and show its result",
		Long: `Evaluate a submission on the agents of a queue, and show its result.

It creates a build in Buildkite and follows it to its end, with the file SUBMISSION for
the problem of --eval (default: the problem's own), a --payload, or --hello. If a build
with the same --run-id exists, it follows that build. Ctrl-C asks whether to cancel.

Exit code 0 if the submission passed, and 1 otherwise. The API token needs the scopes
write_builds, read_builds, read_artifacts and, to see that the queue has agents,
read_agents.`,
		Example: `  kbnode submit --org gpu-mode --queue b200 --hello
  kbnode submit --org gpu-mode --gpu B200_BK --eval vectoradd_triton --mode benchmark
  kbnode submit --eval prefix_python --template Python >mine.py
  kbnode submit --org gpu-mode --queue b200 --eval prefix_python mine.py --dry-run`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), s, args) },
	}
	f.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.eval, "eval", "", "`PROBLEM`: "+task.Choice)
	fl.StringVar(&f.template, "template", "", "print the template for a submission in this language, and send nothing")
	fl.StringVar(&f.payload, "payload", "", `file with a payload, as JSON or encoded, "-" for standard input`)
	fl.BoolVar(&f.hello, "hello", false, "a small evaluation that every node passes")
	fl.StringVar(&f.mode, "mode", "", "test, benchmark, leaderboard, profile or private (default: test, or the payload's mode)")
	fl.StringVar(&f.runID, "run-id", "", "name of this run (default: a new one)")
	fl.StringVar(&f.resultFile, "result", "", "also write result.json to this file")
	return cmd
}

func (f *submitFlags) run(ctx context.Context, s Streams, args []string) error {
	if f.template != "" {
		return f.showTemplate(s)
	}
	req, err := f.request(s, args)
	if err != nil {
		return err
	}
	if err := checkFolder("--result", f.resultFile); err != nil {
		return err
	}
	j, err := req.Job()
	if err != nil {
		return usage(err)
	}
	j.Runs = f.runs
	if f.dryRun {
		return f.show(s, j)
	}
	p := newSubmitProgress(newProgress(s))
	defer p.stop()
	client, err := f.api.client(s, p.trouble)
	if err != nil {
		return err
	}
	if !f.force {
		if err := submit.CheckQueue(ctx, client, f.api.org, req.Queue); err != nil {
			p.stop()
			return client.Explain(ctx, err, f.api.org, f.pipeline)
		}
	}
	out := submit.Run(ctx, client, submit.Options{
		Org: f.api.org, Pipeline: f.pipeline, QueueTime: f.queueTimeout, RunTime: f.timeout, Resume: f.runID != "", Node: true,
		On: p.show, Leave: p.leave(), Log: func(_ int, why string) { p.trouble(why, 0) },
	}, []submit.Job{j})[0]
	p.stop()
	if out.Verdict == submit.NotCreated && out.Err != nil {
		out.Reason = client.Explain(ctx, out.Err, f.api.org, f.pipeline).Error()
	}
	err = s.print(f.asJSON, out, func() { printOutcome(s, out) })
	if f.resultFile != "" && len(out.Raw) > 0 {
		if writeErr := renameio.WriteFile(f.resultFile, out.Raw, 0o644); writeErr != nil {
			err = errors.Join(err, fmt.Errorf("write result: %w", writeErr))
		}
	}
	return exitUnless(out.Verdict == submit.Passed, err)
}

// request returns what the flags ask for. Its error says everything that is wrong with them.
func (f *submitFlags) request(s Streams, args []string) (submit.Request, error) {
	var errs []error
	if len(args) > 0 && f.eval == "" {
		says := "a submission needs --eval DIR"
		if h := (hints{s.typed}); slices.Contains(h.args, args[0]) {
			says += "; write " + line(h.with(slices.Index(h.args, args[0]), "--eval", problemFor(args[0]), args[0]))
		}
		errs = append(errs, errors.New(says))
	} else if n := len(slices.DeleteFunc([]string{f.eval, f.payload, map[bool]string{true: "hello"}[f.hello]}, func(v string) bool { return v == "" })); n != 1 {
		errs = append(errs, errors.New("say what to evaluate: one of --eval DIR, --payload FILE and --hello"))
	}
	if f.hello && f.mode != "" && f.mode != "test" {
		errs = append(errs, errors.New("--hello has only the mode test; leave out --mode"))
	}
	errs = append(errs, f.resolve())
	r := submit.Request{RunID: cmp.Or(f.runID, submit.NewRunID()), Queue: f.queue, AMD: f.amd, Image: f.image, Branch: f.branch, Inline: f.inline, Profile: f.profile}
	if err := errors.Join(errs...); err != nil {
		return r, usage(err)
	}
	var err error
	switch {
	case f.hello:
		var doc []byte
		doc, err = image.Smoke()
		r.Payload, r.Message = string(doc), "kbnode submit --hello"
		f.runs = task.Runs("test")
	case f.payload != "":
		r.Payload, err = f.readPayload(s)
		r.Message = "kbnode submit: a payload"
	default:
		err = f.readTask(&r, args)
	}
	if f.timeout == 0 {
		f.timeout = defaultRunTime
	}
	r.Minutes = int((f.timeout + time.Minute - 1) / time.Minute)
	return r, err
}

// readTask reads the problem and the submission.
func (f *submitFlags) readTask(r *submit.Request, args []string) error {
	t, text, err := readProblem(f.eval, args)
	if err != nil {
		return err
	}
	mode := cmp.Or(f.mode, "test")
	if err := f.useArch(t); err != nil {
		return usage(err)
	}
	if r.Payload, err = t.Config(text, f.arch, mode); err != nil {
		return usage(err)
	}
	f.runs = task.Runs(mode)
	r.Message = fmt.Sprintf("kbnode submit: %s, %s", t.Name(), mode)
	if f.timeout == 0 {
		f.timeout = t.RunTime(mode)
	}
	return nil
}

// showTemplate prints the problem's template: to a file as its author wrote it, and to a
// terminal without control characters.
func (f *submitFlags) showTemplate(s Streams) error {
	if f.eval == "" {
		return usagef("a template belongs to a problem; add --eval DIR")
	}
	t, err := task.Find(f.eval)
	if err != nil {
		return usage(err)
	}
	for lang, body := range t.Templates {
		if strings.EqualFold(lang, f.template) {
			if _, ok := terminal(s.Out); ok {
				body = text.Block(body)
			}
			verbatim(s.Out, body)
			return nil
		}
	}
	if len(t.Templates) == 0 {
		return usagef("%s has no templates", filepath.Join(t.Dir, task.FileName))
	}
	return usagef("%s has no template for %.40q; it has %s", filepath.Join(t.Dir, task.FileName), f.template, strings.Join(slices.Sorted(maps.Keys(t.Templates)), ", "))
}

// readPayload reads a payload in either form. --mode replaces its mode.
func (f *submitFlags) readPayload(s Streams) (string, error) {
	in, err := s.input([]string{f.payload})
	if err != nil {
		return "", err
	}
	defer in.Close() //nolint:errcheck // opened for reading
	text, err := payload.ReadJSON(in)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		if text, err = payload.Inflate(text); err != nil {
			return "", err
		}
	}
	o, err := payload.ParseObject(text)
	if err != nil {
		return "", err
	}
	if f.mode != "" {
		if !slices.Contains(task.Modes, f.mode) {
			return "", usagef("--mode %q: write %s", f.mode, strings.Join(task.Modes, ", "))
		}
		o.Set("mode", f.mode)
		text = payload.JSON(o)
	}
	if arch, _ := o.Get("arch"); arch != nil {
		if err := f.fits("", payload.Str(arch)); err != nil {
			return "", usage(fmt.Errorf("the payload's arch: %w", err))
		}
	}
	mode, _ := o.Get("mode")
	f.runs = task.Runs(fmt.Sprint(mode))
	return text, nil
}

// requestOf returns the request that would be sent.
func (f *submitFlags) requestOf(j submit.Job) map[string]any {
	org := cmp.Or(f.api.org, os.Getenv("BUILDKITE_ORG"), "ORG")
	j.Build.MetaData = map[string]string{buildkite.RunIDKey: j.RunID}
	at := fmt.Sprintf("%s/v2/organizations/%s/pipelines/%s/builds", buildkite.BaseURL(os.Getenv("BUILDKITE_API_URL")), org, f.pipeline)
	return map[string]any{"method": "POST", "url": at, "body": j.Build}
}

// show prints the request that would be sent.
func (f *submitFlags) show(s Streams, j submit.Job) error {
	request := f.requestOf(j)
	if f.asJSON {
		return printJSON(s.Out, request)
	}
	body, err := json.MarshalIndent(request["body"], "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	verbatim(s.Out, fmt.Sprintf("POST %s\nAuthorization: Bearer (hidden)\nContent-Type: application/json\n\n%s\n", request["url"], body))
	return nil
}
