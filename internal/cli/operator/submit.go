package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/compare"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type submitFlags struct {
	targetFlags

	problem, template, payload, mode, runID, resultFile, follow string
	hello, cached, refresh                                      bool
	need                                                        time.Duration // of the job
	runs                                                        []string      // that the result must contain
	compare                                                     compareFlags
	comparison                                                  *submit.Comparison
}

// NewSubmit returns kbnode submit.
func NewSubmit(s term.Streams) *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit [SUBMISSION [OTHER]]",
		Short: "Evaluate a submission on a queue's agents, or compare two",
		Long: `Evaluate a submission on the agents of a queue, and show its result.

It creates a build in Buildkite and follows it to its end, with the file SUBMISSION for
the problem of --problem (default: the problem's own), a --payload, or --hello. Ctrl-C
cancels the build, as does closing the terminal.

With two files, one job tests both, evaluates them in turn in rounds, and this command
says whether OTHER is faster: by how much, with 95 % intervals and a plot.

With --cached, a submission in mode test that is identical to an earlier one, on the same
image, kind of GPU, driver and kbnode, is answered with that one's result, of the last
seven days.

Exit code 0 if the submission passed, and 1 otherwise. Of two files, 0 if they were
compared, whichever is faster. The API token needs the scopes
write_builds, read_builds, read_artifacts and, to see that the queue has agents and
that its steps have time, read_agents and read_pipelines.`,
		Example: `  kbnode submit --org gpu-mode --queue b200 --hello
  kbnode submit --org gpu-mode --gpu B200_BK --problem vectoradd_triton --mode benchmark
  kbnode submit --problem prefix_python --template Python >mine.py
  kbnode submit --org gpu-mode --queue b200 --problem prefix_python mine.py --dry-run
  kbnode submit --org gpu-mode --queue b200 --problem prefix_python old.py new.py`,
		Args: oneOrTwo,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("follow") {
				return f.followRun(cmd, s, args)
			}
			mode := cmp.Or(f.mode, compare.Modes[0])
			if err := f.compare.check(s, cmd, args, mode, compare.Modes[:1]); err != nil {
				return err
			}
			return f.run(cmd.Context(), s, args)
		},
	}
	f.add(cmd, submitDoc)
	f.api.without = "; to compete, you need none: hand the file in where the competition says"
	fl := cmd.Flags()
	f.compare.add(fl)
	addProblem(fl, &f.problem, "")
	fl.StringVar(&f.template, "template", "", "print the template for a submission in this language, and send nothing")
	fl.StringVar(&f.payload, "payload", "", `file with a payload, as JSON or encoded, "-" for standard input`)
	fl.BoolVar(&f.hello, "hello", false, "a small evaluation that every node passes")
	fl.StringVar(&f.mode, "mode", "", "test, benchmark, leaderboard, profile or private (default: test, or the payload's mode)")
	fl.StringVar(&f.runID, "run-id", "", "name of this run (default: a new one)")
	fl.StringVar(&f.follow, "follow", "", "show the progress and result of the build with this run ID, and send nothing")
	fl.BoolVar(&f.cached, "cached", false, "with --inline-steps: answer mode test with the result of an identical submission")
	fl.BoolVar(&f.refresh, "refresh", false, "with --cached: evaluate all the same, and replace that result")
	fl.StringVar(&f.resultFile, "result", "", "also write result.json to this file")
	return cmd
}

func (f *submitFlags) run(ctx context.Context, s term.Streams, args []string) error {
	if f.template != "" && len(args) > 0 {
		i := slices.Index(s.Typed, args[0])
		return term.Usagef("--template prints; write %s%s>%s", s.Line(s.With(i)), term.Unbroken, term.Word(args[0]))
	}
	if f.template != "" {
		return f.showTemplate(s)
	}
	if f.runID != "" && !isRunID(f.runID) {
		return term.Usagef("--run-id %.40q looks like something else, and kbnode cancel would refuse it; write one such as kbnode-q3xs5e7yzkw2a1bc, or leave it out", f.runID)
	}
	req, err := f.request(s, args)
	if err != nil {
		return err
	}
	if err := term.CheckReplaced("--result", f.resultFile, "{"); err != nil {
		return err
	}
	j, err := req.Job()
	if err != nil {
		return term.Usage(err)
	}
	j.Runs, j.Compare = f.runs, f.comparison
	if err := checkPayload(req.Payload); err != nil && f.dryRun {
		return term.Usage(err)
	} else if err != nil {
		s.Warn("%v; the job will end with this", err)
	}
	if f.dryRun {
		f.warnShort(s, f.need, submit.Limits{})
		all := f.requests(j)
		return requestsDoc.Print(s, f.asJSON, requestList{all}, func() { printRequests(s.Out, all) })
	}
	p := NewSubmitProgress(term.NewProgress(s))
	defer p.Stop()
	client, err := f.api.Client(s, p.Trouble)
	if err != nil {
		return err
	}
	f.Org = f.api.Org
	ctx, stop := untilHangup(ctx)
	defer stop()
	req.Org = f.Org
	if f.cached {
		if out := f.fromCache(ctx, s, client, req); out != nil {
			p.Stop()
			return f.show(s, *out)
		}
	}
	if err := f.check(ctx, s, client, f.need); err != nil {
		p.Stop()
		return err
	}
	out := submit.Run(ctx, client, submit.Options{
		Target: req.Target, Node: true,
		On: p.Show, Log: func(why string) { p.Trouble(why, 0) },
	}, []submit.Job{j})[0]
	p.Stop()
	if f.cached {
		f.toCache(s, req, out)
	}
	return f.show(s, out)
}

// followRun shows a build that was sent before.
func (f *submitFlags) followRun(cmd *cobra.Command, s term.Streams, args []string) error {
	var others []string
	cmd.Flags().Visit(func(fl *pflag.Flag) {
		if !slices.Contains([]string{"follow", "org", "pipeline", "token-file", "json", "result", "plot"}, fl.Name) {
			others = append(others, "--"+fl.Name)
		}
	})
	for _, arg := range args {
		others = append(others, text.Line(arg, 60))
	}
	if len(others) > 0 {
		return term.Usagef("--follow sends nothing; leave out %s", strings.Join(others, ", "))
	}
	if err := cmp.Or(term.CheckReplaced("--result", f.resultFile, "{"), f.compare.checkPlot(cmd.Flags().Changed("plot"))); err != nil {
		return err
	}
	f.Pipeline = pipelineOf(f.Pipeline)
	if err := checkRuns(f.Target, false, f.follow); err != nil {
		return err
	}
	p := NewSubmitProgress(term.NewProgress(s))
	defer p.Stop()
	client, err := f.api.Client(s, p.Trouble)
	if err != nil {
		return err
	}
	f.Org = f.api.Org
	out, err := submit.Follow(cmd.Context(), client, submit.Options{Target: f.Target, Node: true, On: p.Show, Log: func(why string) { p.Trouble(why, 0) }}, f.follow)
	p.Stop()
	if err != nil {
		return err
	}
	return f.show(s, out)
}

// show prints an outcome, and writes the result's file and the plot.
func (f *submitFlags) show(s term.Streams, out submit.Outcome) error {
	err := errors.Join(submitDoc.Print(s, f.asJSON, out, func() { printOutcome(s, out) }), f.compare.write(out.Comparison))
	if f.resultFile != "" && len(out.Raw) > 0 {
		if writeErr := renameio.WriteFile(f.resultFile, out.Raw, 0o644); writeErr != nil {
			err = errors.Join(err, fmt.Errorf("write result: %w", writeErr))
		}
	}
	if out.MayRun() {
		s.Progress("to cancel it: %s", s.Line(f.cancelLine(s, out.RunID)))
	}
	return term.ExitUnless(out.Verdict == submit.Passed, err)
}

// cancelLine returns the words that cancel a run where this command sent it.
func (f *submitFlags) cancelLine(s term.Streams, run string) []string {
	words := []string{"cancel"}
	for _, flag := range [][]string{{"--org", f.api.Org}, {"--pipeline", f.Pipeline}, {"--token-file", f.api.TokenFile}} {
		if s.Find(flag[0]) >= 0 {
			words = append(words, flag...)
		}
	}
	return append(words, run)
}

// untilHangup returns a context for a command that follows builds, which would run on without it: it also
// ends when the terminal closes, unless nohup keeps the command. Nor does a closed pipe end the command.
func untilHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	if signal.Ignored(syscall.SIGHUP) {
		return ctx, func() {}
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// request returns what the flags ask for. Its error says everything that is wrong with them.
func (f *submitFlags) request(s term.Streams, args []string) (submit.Request, error) {
	var errs []error
	own := cmp.Or(map[bool]string{true: "--payload"}[f.payload != ""], map[bool]string{true: "--hello"}[f.hello])
	if own != "" && len(args) > 0 && f.problem == "" {
		errs = append(errs, fmt.Errorf("%s brings its own submission; leave out %s, or write --problem %s in place of %s", own, text.Line(strings.Join(args, " "), 60), cmp.Or(nearestProblem(args), "PROBLEM"), own))
	} else if len(args) > 0 && f.problem == "" {
		says, instead := "a submission needs --problem", []string{"--problem", cmp.Or(nearestProblem(args), "PROBLEM"), args[0]}
		if err := checkPlaces(s, args); err != nil {
			says = err.Error()
		} else if i := slices.Index(s.Typed, args[0]); i >= 0 {
			says += "; write " + s.Line(s.With(i, instead...))
		}
		errs = append(errs, errors.New(says))
	} else if n := len(slices.DeleteFunc([]string{f.problem, f.payload, map[bool]string{true: "hello"}[f.hello]}, func(v string) bool { return v == "" })); n != 1 {
		errs = append(errs, errors.New("say what to evaluate: one of --problem PROBLEM, --payload FILE and --hello"))
	}
	if f.hello && f.mode != "" && f.mode != "test" {
		errs = append(errs, errors.New("--hello has only the mode test; leave out --mode"))
	}
	errs = append(errs, f.resolve(), f.checkCached())
	r := submit.Request{RunID: cmp.Or(f.runID, submit.NewRunID())}
	if err := errors.Join(errs...); err != nil {
		return r, term.Usage(err)
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
		if !errors.Is(err, context.Canceled) {
			err = term.Usage(err) // 1 is for a submission that did not pass
		}
		r.Message = "kbnode submit: a payload"
	default:
		err = f.readTask(s, &r, args)
	}
	if err == nil && f.cached {
		err = term.Usage(checkCachedMode(r.Payload))
	}
	f.need = jobTime(r.Payload)
	r.Target = f.Target
	r.RunTime = cmp.Or(f.RunTime, f.need)
	return r, err
}

// checkPayload returns what the runner would refuse.
func checkPayload(doc string) error {
	o, err := payload.ParseObject(doc)
	if err != nil {
		return err
	}
	if err := runner.Check(o); err != nil {
		return fmt.Errorf("the payload: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

func (f *submitFlags) readTask(s term.Streams, r *submit.Request, args []string) error {
	t, text, err := readProblem(s, f.problem, args[:min(len(args), 1)])
	if err != nil {
		return err
	}
	if len(args) == 2 {
		return f.readBoth(s, r, t, text, args)
	}
	if len(args) == 0 {
		s.Progress("submission: the problem's own %s; name a file to send yours", t.Submission)
	}
	mode := cmp.Or(f.mode, "test")
	if err := f.UseProblem(t); err != nil {
		return term.Usage(err)
	}
	if r.Payload, err = t.Config(text, f.Arch, mode); err != nil {
		return term.Usage(err)
	}
	f.runs = task.Runs(mode)
	r.Message = fmt.Sprintf("kbnode submit: %s, %s", t.Name(), mode)
	return nil
}

// readBoth makes the payload of a comparison. first is the text of the first file.
func (f *submitFlags) readBoth(s term.Streams, r *submit.Request, t *task.Task, first string, files []string) error {
	_, second, err := readProblem(s, f.problem, files[1:])
	if err != nil {
		return err
	}
	if err := f.UseProblem(t); err != nil {
		return term.Usage(err)
	}
	if first == second {
		s.Progress("both files have the same text: this shows what the machine tells apart")
	}
	if r.Payload, err = t.Comparison([2]string{first, second}, f.Arch, f.compare.rounds); err != nil {
		return term.Usage(err)
	}
	f.comparison = &submit.Comparison{Problem: t.Name(), Files: [2]string(files), Ranking: t.RankingBy, Rounds: f.compare.rounds, Untested: t.Tests == 0}
	r.Message = fmt.Sprintf("kbnode submit: %s, comparison in %d rounds", t.Name(), f.compare.rounds)
	s.Progress("%d rounds of both files in one job, which may take up to %.0f minutes", f.compare.rounds, jobTime(r.Payload).Minutes())
	return nil
}

// showTemplate prints the problem's template: to a file as its author wrote it, and to a
// terminal without control characters.
func (f *submitFlags) showTemplate(s term.Streams) error {
	if f.problem == "" {
		return term.Usagef("a template belongs to a problem; add --problem PROBLEM")
	}
	t, err := task.Find(f.problem)
	if err != nil {
		return term.Usage(err)
	}
	for lang, body := range t.Templates {
		if strings.EqualFold(lang, f.template) {
			if _, ok := term.Terminal(s.Out); ok {
				body = text.Block(body)
			}
			term.Verbatim(s.Out, body)
			return nil
		}
	}
	if len(t.Templates) == 0 {
		return term.Usagef("%s has no templates", filepath.Join(t.Dir, task.FileName))
	}
	return term.Usagef("%s has no template for %.40q; it has %s", filepath.Join(t.Dir, task.FileName), f.template, strings.Join(slices.Sorted(maps.Keys(t.Templates)), ", "))
}

// readPayload reads a payload in either form. --mode replaces its mode.
func (f *submitFlags) readPayload(s term.Streams) (string, error) {
	if task.LangOf(f.payload) != "" {
		return "", term.Usagef("--payload %s is a submission; write --problem PROBLEM %[1]s instead", text.ShellWord(text.Line(f.payload, 60)))
	}
	in, err := input(s, []string{f.payload})
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
			return "", term.Usagef("--mode %q: write %s", f.mode, strings.Join(task.Modes, ", "))
		}
		o.Set("mode", f.mode)
		text = payload.JSON(o)
	}
	if arch, _ := o.Get("arch"); arch != nil {
		if err := f.Fits("", payload.Str(arch)); err != nil {
			return "", term.Usage(fmt.Errorf("the payload's arch: %w", err))
		}
	}
	lang, _ := o.Get("lang")
	if err := f.FitsLang("the payload", payload.Str(lang), submit.GPUFor(&task.Task{})); err != nil {
		return "", term.Usage(err)
	}
	mode, _ := o.Get("mode")
	f.runs, f.comparison = task.Runs(fmt.Sprint(mode)), submit.ComparisonOf(o)
	return text, nil
}
