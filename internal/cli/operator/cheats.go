package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/operate/e2e"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// coresPerEvaluation is for a judge and a submission that each spin on a core, and what they start.
const (
	coresPerEvaluation = 4
	maxLocalJobs       = 64
)

type cheatFlags struct {
	targetFlags

	problem, corpus string
	only            []string
	jobs            int
	list            bool
}

// newCheats returns kbnode e2e cheats.
func newCheats(s term.Streams) *cobra.Command {
	var f cheatFlags
	cmd := &cobra.Command{
		Use:   "cheats [SUBMISSION]",
		Short: "Try known cheats against a problem",
		Long: `Try known cheats against a problem before it is a competition, on this machine or, with
--queue or --gpu, on the agents of a queue.

It evaluates the file SUBMISSION (default: the problem's own), which must be honest and
pass, and then wraps it in one attack after another. An attack has won if it passes and
claims less than 0.9 of the honest best time, or passes with a wrong output. For each
kind of attack that won, a sentence says what would stop it.

An attack is broken if its own code failed: that proves nothing. Attacks run as you, as
every submission does that you evaluate with kbnode evaluate. They try to change only the
evaluation's processes and files. Keep the machine idle. A queue gets a build for each.

Exit code 1 if an attack won or was not tried, 2 if the honest submission does not pass.`,
		Example: `  kbnode e2e cheats --problem prefix_python
  kbnode e2e cheats --problem . mine.py --only clock,statistics
  kbnode e2e cheats --problem vectoradd_triton --org gpu-mode --gpu B200_BK
  kbnode e2e cheats --list`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.Queue == "" && f.GPU == "" {
				var unused []string
				for _, name := range []string{"branch", "dry-run", "force", "image", "inline-steps", "org", "pipeline", "profile", "queue-timeout", "token-file"} {
					if cmd.Flags().Changed(name) {
						unused = append(unused, "--"+name)
					}
				}
				if len(unused) > 0 {
					return term.Usagef("%s: only a queue has a use for it; add --queue or --gpu", strings.Join(unused, ", "))
				}
			}
			return f.run(cmd.Context(), s, args)
		},
	}
	f.add(cmd, cheatsDoc, attacksDoc)
	fl := cmd.Flags()
	addProblem(fl, &f.problem, e2e.DefaultProblem)
	fl.StringVar(&f.corpus, "corpus", "", "directory with more attacks, each a file NAME.py")
	fl.StringSliceVar(&f.only, "only", nil, "only these attacks or kinds of attacks")
	_ = cmd.RegisterFlagCompletionFunc("only", onlyValues)
	fl.IntVar(&f.jobs, "jobs", 0, "evaluations at once on this machine (default: one for each four CPUs, and one with a GPU)")
	fl.BoolVar(&f.list, "list", false, "list the attacks, and try nothing")
	return cmd
}

func (f *cheatFlags) run(ctx context.Context, s term.Streams, args []string) error {
	corpus, err := f.attacks()
	if err != nil {
		return term.Usage(err)
	}
	if f.list {
		return attacksDoc.Print(s, f.asJSON, attackList{corpus.Attacks}, func() { printCorpus(s, corpus) })
	}
	if f.jobs < 0 || f.jobs > maxLocalJobs {
		return term.Usagef("--jobs %d: write 1 to %d", f.jobs, maxLocalJobs)
	}
	t, submission, err := readProblem(s, f.problem, args)
	if err != nil {
		return err
	}
	name := t.Submission
	if len(args) > 0 {
		name = args[0]
	}
	p := term.NewProgress(s)
	defer p.End("")
	o := arena.Options{
		Task: t, Honest: submission, Arch: cmp.Or(f.Arch, t.Arch), Corpus: corpus, Limit: f.RunTime,
		On: func(r arena.Row, n, all int) {
			line := fmt.Sprintf("%d of %d: %s %s", n, all, r.Attack, r.Outcome)
			p.Show(line, line)
		},
	}
	switch {
	case f.Queue != "" || f.GPU != "":
		var stop context.CancelFunc
		if ctx, stop, err = f.onQueue(ctx, s, &o); err != nil || o.Evaluate == nil {
			return err
		}
		defer stop()
	case f.RunTime < 0:
		return term.Usagef("--timeout %s: a timeout cannot be negative; write one such as 2m", f.RunTime)
	default:
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find kbnode's own program: %w", err)
		}
		o.Evaluate = arena.Local(f.atOnce(), self)
	}
	p.Say("honest submission: %s", text.Line(name, 200))
	report, err := arena.Run(ctx, o)
	p.End("")
	if errors.Is(err, arena.ErrHonest) {
		again := []string{"evaluate", "--problem", f.problem, "--mode", arena.Mode}
		if o.OnQueue {
			again = []string{"submit", "--queue", f.Queue, "--problem", f.problem, "--mode", arena.Mode}
		}
		return term.Usagef("%w; to see all of it: %s", err, s.Line(append(again, args...)))
	}
	if err != nil {
		return err
	}
	return term.ExitUnless(report.OK, cheatsDoc.Print(s, f.asJSON, report, func() { PrintCheats(s, report) }))
}

// atOnce returns how many evaluations run at once. Those that share a GPU would disturb each other.
func (f *cheatFlags) atOnce() int {
	if f.jobs > 0 {
		return f.jobs
	}
	if files, _ := os.ReadDir("/dev/dri"); len(files) > 0 {
		return 1
	}
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		return 1
	}
	return max(1, runtime.GOMAXPROCS(0)/coresPerEvaluation)
}

// attacks returns the corpus with what --corpus adds, and what --only leaves.
func (f *cheatFlags) attacks() (*arena.Corpus, error) {
	c, err := arena.Embedded()
	if err == nil && f.corpus != "" {
		err = c.Add(f.corpus)
	}
	if err != nil || len(f.only) == 0 {
		return c, err
	}
	for _, word := range f.only {
		if !slices.ContainsFunc(c.Attacks, func(a arena.Attack) bool { return a.Name == word || a.Kind == word }) {
			return nil, fmt.Errorf("--only: there is no attack or kind %.60q; see kbnode e2e cheats --list", word)
		}
	}
	c.Attacks = slices.DeleteFunc(c.Attacks, func(a arena.Attack) bool { return !slices.Contains(f.only, a.Name) && !slices.Contains(f.only, a.Kind) })
	return c, nil
}

// onlyValues offers the kinds and the attacks of the embedded corpus.
func onlyValues(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var all []string
	if c, err := arena.Embedded(); err == nil {
		for _, a := range c.Attacks {
			all = append(all, cobra.CompletionWithDesc(a.Name, a.Tries))
			if !slices.Contains(all, a.Kind) {
				all = append(all, a.Kind)
			}
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func printCorpus(s term.Streams, c *arena.Corpus) {
	t := term.NewList(s.Out, "Kind", "Attack", "Needs", "Source", "Tries")
	t.Spare = []string{"Source", "Needs"}
	for _, a := range c.Attacks {
		needs := string(a.Needs)
		if needs == "" {
			needs = "-"
		}
		t.Row(text.Line(a.Kind, 40), text.Line(a.Name, 60), needs, text.Line(a.Source, 100), text.Line(a.Tries, 200))
	}
	t.Print()
}

// PrintCheats prints how the attacks fared, and what they leave out.
func PrintCheats(s term.Streams, r *arena.Report) {
	header := []string{"", "Kind", "Attack", "Claimed", "Honest", "Ratio", "Tries", "Verdict"}
	witness := slices.ContainsFunc(r.Attacks, func(row arena.Row) bool { return row.Witness != "" })
	if witness {
		header = slices.Insert(header, len(header)-1, "Witness")
	}
	t := term.NewList(s.Out, header...)
	t.Spare = []string{"Tries", "Honest", "Kind"}
	for _, row := range r.Attacks {
		claimed, honest, ratio := "-", "-", "-"
		if row.Honest > 0 {
			claimed, honest, ratio = nanoseconds(row.Claimed), nanoseconds(row.Honest), strconv.FormatFloat(row.Ratio, 'f', 3, 64)
		}
		cells := []any{term.PaintWord(s.Out, string(row.Outcome)), text.Line(row.Kind, 40), text.Line(row.Attack, 60), claimed, honest, ratio, text.Line(row.Tries, 200), row.Verdict}
		if witness {
			cells = slices.Insert(cells, len(cells)-1, any(text.Line(row.Witness, 160)))
		}
		t.Row(cells...)
	}
	t.Print()
	if len(r.Cures) > 0 {
		term.Printf(s.Out, "\nWhat would stop the kinds of attacks that won:\n\n")
		cures := term.NewList(s.Out, "Kind", "What would stop it")
		for _, group := range term.Grouped(r.Attacks, func(row arena.Row) string { return row.Kind }) {
			if cure := r.Cures[group[0].Kind]; cure != "" {
				cures.Row(text.Line(group[0].Kind, 40), text.Line(cure, 300))
			}
		}
		cures.Print()
	}
	term.Printf(s.Out, "\nProblem %s: of %s, %d won, %d were stopped, %d are broken, %d were skipped, %d were not tried.\n", text.Line(r.Problem, 60),
		text.Count(len(r.Attacks), "attack"), r.Counts[arena.Won], r.Counts[arena.Stopped], r.Counts[arena.Broken], r.Counts[arena.Skipped], r.Counts[arena.Untried])
	for i, share := range r.Handover {
		if share > arena.MaxHandover {
			term.Printf(s.Out, "Benchmark %d: the hand-over of data takes %.0f %% of an honest call, so a faster kernel looks less fast than it is.\n"+
				"Make calls longer, or data smaller, until it is 5 %% (docs/problems.md, Choose sizes).\n", i, 100*share)
		}
	}
}

// nanoseconds returns a time with three digits, such as 383 µs.
func nanoseconds(ns float64) string {
	unit := "ns"
	for _, next := range []string{"µs", "ms", "s"} {
		if ns < 999.5 {
			break
		}
		ns, unit = ns/1000, next
	}
	return strconv.FormatFloat(ns, 'g', 3, 64) + " " + unit
}
