package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	pretty "github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/evaluate/compare"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// compareFlags are those of commands that compare two files.
type compareFlags struct {
	rounds int
	plot   string
}

func (c *compareFlags) add(fl *pflag.FlagSet) {
	fl.IntVar(&c.rounds, "rounds", compare.DefaultRounds, "with two files: `N` evaluations of each")
	fl.StringVar(&c.plot, "plot", "", "with two files: write a plot of the times, an SVG, to `FILE`")
}

// oneOrTwo are the files of a command that compares two.
func oneOrTwo(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 2 && (isProblem(args[0]) || slices.Contains(task.Examples(), args[0])):
		return term.Usagef("%q is a problem; write --problem before it", text.Line(args[0], 60))
	case len(args) > 3:
		return term.Usagef("%s compares two files, and these are %d; name two", cmd.CommandPath(), len(args))
	case len(args) > 2:
		absent := func(file string) bool { _, err := os.Lstat(file); return err != nil }
		i := slices.IndexFunc(args, absent)
		if i < 0 || slices.ContainsFunc(args[i+1:], absent) {
			i = 2
		}
		return term.Usagef("%s compares two files; leave out %s", cmd.CommandPath(), text.ShellWord(text.Line(args[i], 60)))
	}
	return nil
}

// check refuses what does not fit the number of files, and a mode in which two are not compared.
func (c *compareFlags) check(s term.Streams, cmd *cobra.Command, args []string, mode string, modes []string) error {
	given := cmd.Flags().Changed
	if len(args) < 2 {
		for _, name := range []string{"rounds", "plot"} {
			if given(name) {
				return both(s, cmd, args, fmt.Sprintf("--%s compares two files", name))
			}
		}
		if given("mode") && mode == result.ModeCompare {
			return term.Usagef("--mode %s: leave it out, and name both files, such as %s old.py new.py", mode, cmd.CommandPath())
		}
		return nil
	}
	if err := checkPlaces(s, args); err != nil {
		return err
	}
	switch {
	case sameFile(args[0], args[1]):
		copied := strings.Join([]string{"cp", term.Word(args[0]), term.Word("copy" + text.Line(filepath.Ext(args[0]), 20))}, term.Unbroken)
		return term.Usagef("both files are %s; name two, or compare it with a copy to see what the machine tells apart: %s", text.ShellWord(text.Line(args[0], 60)), copied)
	case given("workdir"):
		return term.Usagef("--workdir is for one evaluation, and a comparison has many; leave it out")
	case !slices.Contains(modes, mode):
		return term.Usagef("--mode %.60q: two files are compared by their times; write %s", mode, strings.Join(modes, " or "))
	case c.rounds < compare.MinRounds || c.rounds > compare.MaxRounds:
		return term.Usagef("--rounds %d: write %d to %d", c.rounds, compare.MinRounds, compare.MaxRounds)
	}
	return c.checkPlot(given("plot"))
}

// both refuses a line that names one file, or none.
func both(s term.Streams, cmd *cobra.Command, args []string, says string) error {
	if len(args) == 1 {
		if i := slices.Index(s.Typed, args[0]); i >= 0 {
			return s.Advise(says, s.With(i, args[0], "other"+text.Line(filepath.Ext(args[0]), 20)))
		}
	}
	return term.Usagef("%s; name both, such as %s old.py new.py", says, cmd.CommandPath())
}

// checkPlot refuses what no plot can be written to.
func (c *compareFlags) checkPlot(given bool) error {
	if given && filepath.Ext(c.plot) != ".svg" {
		return term.Usagef("--plot %.60q: a plot is an SVG; write the name of a file such as times.svg", c.plot)
	}
	return term.CheckReplaced("--plot", c.plot, "<svg ")
}

// write writes the plot, if one is wanted and there is something to plot.
func (c *compareFlags) write(r *compare.Report) error {
	if c.plot == "" || r == nil || len(r.Rounds) == 0 {
		return nil
	}
	if err := renameio.WriteFile(c.plot, []byte(r.SVG()), 0o644); err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

func sameFile(a, b string) bool {
	first, err := os.Stat(a)
	second, err2 := os.Stat(b)
	return filepath.Clean(a) == filepath.Clean(b) || err == nil && err2 == nil && os.SameFile(first, second)
}

// run compares two submissions.
func (c *compareFlags) run(ctx context.Context, s term.Streams, l *localFlags, files []string) error {
	var docs [2]map[string]string // payloads, by mode
	var problem *task.Task
	var texts [2]string
	for side, file := range files {
		t, submission, err := readProblem(s, l.problem, []string{file})
		if err != nil {
			return err
		}
		problem, texts[side], docs[side] = t, submission, map[string]string{}
		for _, mode := range []string{"test", l.mode} {
			doc, err := t.Config(submission, "", mode)
			if err != nil {
				return term.Usage(err)
			}
			docs[side][mode] = doc
		}
	}
	if texts[0] == texts[1] {
		s.Progress("both files have the same text: this shows what the machine tells apart")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find kbnode's own program: %w", err)
	}
	p := term.NewProgress(s)
	defer p.End("")
	local := arena.Local(1, self)
	r := &compare.Report{Problem: problem.Name(), Ranking: problem.RankingBy, Files: [2]string(files)}
	o := compare.Options{Mode: l.mode, Rounds: c.rounds, Untested: problem.Tests == 0}
	o.Evaluate = func(ctx context.Context, side int, mode string) (e arena.Evaluation) {
		local(ctx, []arena.Trial{{Name: files[side], Payload: docs[side][mode]}}, func(_ int, got arena.Evaluation) { e = got })
		return e
	}
	names := compare.Label(r.Files, 24)
	var began time.Time
	o.On = func(side, round int) {
		if round == 0 {
			p.Show("test: "+names[side], "test: "+names[side])
			return
		}
		if began.IsZero() {
			began = time.Now()
		}
		// No ratio: who sees one stops when it pleases.
		line, fixed := fmt.Sprintf("round %d of %d: %s", round, c.rounds, names[side]), ""
		if n := len(r.Rounds); n > 0 {
			left := time.Since(began) / time.Duration(n) * time.Duration(c.rounds-n)
			line += fmt.Sprintf(", about %s left", left.Round(time.Second))
		}
		if side == result.First(round) {
			fixed = fmt.Sprintf("round %d of %d", round, c.rounds)
		}
		p.Show(line, fixed)
	}
	err = compare.Run(ctx, o, r)
	p.End("")
	if wrong, ok := errors.AsType[*compare.Failure](err); ok {
		return printFailure(s, l, problem, wrong, files)
	}
	if len(r.Rounds) == 0 {
		if err == nil {
			err = fmt.Errorf("compare: %s before the end of the first round", r.Stopped)
		}
		return err
	}
	err = errors.Join(err, c.write(r))
	if l.asJSON {
		return term.ExitUnless(r.Done(), errors.Join(err, compareDoc.Print(s, true, r, nil)))
	}
	printComparison(s, r)
	return term.ExitUnless(r.Done(), err)
}

// printFailure shows the report on a submission that did not pass. What a person reads is on standard
// output, as without a comparison, but not with --json, whose reader expects something else.
func printFailure(s term.Streams, l *localFlags, t *task.Task, wrong *compare.Failure, files []string) error {
	said, passed := wrong.Result.Verdict()
	to := s.Out
	if l.asJSON {
		to = s.Err
	}
	if missing := submit.Missing(wrong.Result); missing != "" {
		term.Printf(to, "Not evaluated: %s\n", missing)
		s.Progress("install what is missing, or compare on a node: %s", s.Line(append([]string{"submit", "--gpu", submit.GPUFor(t), "--problem", l.problem}, files...)))
	} else {
		var report strings.Builder
		wrong.Result.Report(&report, true)
		term.Printf(to, "%s\n", paintReport(to, report.String(), said, passed))
	}
	return fmt.Errorf("not compared: %s did not pass %s", text.ShellWord(text.Line(files[wrong.Side], 100)), wrong.Where())
}

// printComparison shows a comparison, and returns its first line.
func printComparison(s term.Streams, r *compare.Report) (says string) {
	width, screen := term.Terminal(s.Out)
	if !screen {
		width = 80
	}
	names := compare.Label(r.Files, 30)
	color := func(side int, word string) string {
		return term.Paint(s.Out, []pretty.Color{pretty.FgCyan, pretty.FgYellow}[side], word)
	}
	says, why := r.Conclusion(names)
	term.Printf(s.Out, "%s\n", paintVerdict(s.Out, r.Overall.Verdict, says))
	for _, line := range why {
		term.Printf(s.Out, "%s\n", line)
	}
	term.Printf(s.Out, "on %s, %s of mode %s\n\n", cmp.Or(r.On, "an unknown machine"), text.Count(len(r.Rounds), "round"), r.Mode)
	for side, name := range names {
		term.Printf(s.Out, "  %s\n", color(side, fmt.Sprintf("%c  %s", 'A'+side, name)))
	}
	term.Printf(s.Out, "\n")
	t := term.NewList(s.Out, "Benchmark", "A", "B", "B to A", "Verdict")
	t.Wraps, t.Spare = "Benchmark", []string{"A", "B"}
	row := func(spec, a, b string, d compare.Difference) {
		verdict := string(d.Verdict)
		if width < 60 { // without the interval
			d.Low, verdict = 0, strings.TrimSuffix(verdict, " to tell")
		}
		t.Row(spec, a, b, d.Change(), verdict)
	}
	for _, b := range r.Benchmarks {
		row(text.Line(b.Spec, 100), result.Span(b.Mean[0], 4), result.Span(b.Mean[1], 4), b.Difference)
	}
	if len(r.Benchmarks) > 1 {
		row("all, as the problem ranks", "", "", r.Overall)
	}
	t.Print()
	term.Verbatim(s.Out, r.Strips(min(width, 100), color))
	if n := r.Unseen(); n > 0 {
		term.Printf(s.Out, "\n%d more benchmarks are only in the table; --plot FILE.svg shows all\n", n)
	}
	return says
}

// paintVerdict colors a sentence about the second file.
func paintVerdict(w io.Writer, v compare.Verdict, says string) string {
	switch v {
	case compare.Faster:
		return term.Paint(w, pretty.FgGreen, says)
	case compare.Slower, compare.Implausible:
		return term.Paint(w, pretty.FgRed, says)
	case compare.Noisy, compare.Unknown, compare.Withheld:
		return term.Paint(w, pretty.FgYellow, says)
	}
	return says
}
