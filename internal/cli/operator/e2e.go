package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/e2e"
	"github.com/gpu-mode/kbnode/internal/operate/results"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type e2eFlags struct {
	targetFlags

	o           e2e.Options
	problem, db string
}

// NewE2E returns kbnode e2e.
func NewE2E(s term.Streams) *cobra.Command {
	var f e2eFlags
	cmd := &cobra.Command{
		Use:   "e2e [artifact|evaluation|concurrency]...",
		Short: "Test a queue of nodes end to end",
		Long: `Test a queue of nodes end to end.

  artifact     a job's result.json comes back intact. Needs no GPU and no image
  evaluation   a problem's right submission passes; its wrong and cheating ones do not
  concurrency  as many jobs at once as the queue has agents: each runs, returns its own
               result, and has its own agent and GPU while it runs

Without an argument, all three run. A problem's directory has submission.*, wrong*.*
and cheat*.* beside its task.yml. Ctrl-C cancels every build, as does closing the terminal.

The API token needs the scopes write_builds, read_builds, read_artifacts, read_agents
and, to see that the queue's steps have time, read_pipelines.`,
		Example: `  kbnode e2e --org gpu-mode --queue b200
  kbnode e2e evaluation --org gpu-mode --gpu B200_BK --problem vectoradd_triton --mode benchmark
  kbnode e2e evaluation --org gpu-mode --queue b200 --db env --cleanup`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 && nearPart(args[0]) == "cheats" {
				return fmt.Errorf("%.60q is not a part to test", args[0]) // nor an argument: a mistyped command
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), s, args) },
	}
	f.add(cmd, e2eDoc)
	fl := cmd.Flags()
	fl.StringVar(&f.o.Mode, "mode", "leaderboard", "mode of evaluation: "+strings.Join(e2e.Modes, ", "))
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(e2e.Modes, cobra.ShellCompDirectiveNoFileComp))
	addProblem(fl, &f.problem, e2e.DefaultProblem)
	fl.IntVar(&f.o.Jobs, "jobs", 0, "jobs at once (default: one per agent that takes jobs)")
	fl.DurationVar(&f.o.Hold, "hold", 0, "minimum run time of each job, such as 1m (default: depends on their number)")
	fl.StringVar(&f.db, "db", "", "store the right submission in kernelbot's database, and compare: its `DSN` without a password, or env to use KBNODE_DB")
	fl.BoolVar(&f.o.Cleanup, "cleanup", false, "remove what was stored from the database")
	cmd.AddCommand(newCheats(s))
	return cmd
}

func (f *e2eFlags) run(ctx context.Context, s term.Streams, args []string) error {
	o, err := f.options(args)
	if err != nil {
		return term.Usage(err)
	}
	if f.dryRun {
		f.warnShort(s, o.EvalTime, submit.Limits{})
		return f.show(s, o)
	}
	client, err := f.api.Client(s, nil)
	if err != nil {
		return err
	}
	o.Org = f.api.Org // perhaps of the environment
	// Before any build, so that nothing is evaluated for a database that is not there.
	if o.Store, err = f.store(ctx); err != nil {
		return err
	}
	ctx, stop := untilHangup(ctx)
	defer stop()
	f.Org = f.api.Org
	if err := f.check(ctx, s, client, o.EvalTime); err != nil {
		return err
	}
	o.On = e2eProgress(s)
	o.Log = func(why string) { s.Progress("%s", text.Line(why, 300)) }
	report := e2e.Run(ctx, client, o)
	return term.ExitUnless(report.OK, e2eDoc.Print(s, f.asJSON, report, func() { printE2E(s, report) }))
}

// options returns what the flags ask for. Its error says everything that is wrong with them.
func (f *e2eFlags) options(args []string) (e2e.Options, error) {
	errs := []error{f.resolve()}
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	o := f.o
	o.Target, o.RunID, o.Parts = f.Target, e2e.NewRunID(), args
	if len(args) == 0 {
		o.Parts = e2e.Parts
	}
	for _, part := range args {
		if !slices.Contains(e2e.Parts, part) {
			says := fmt.Sprintf("%.60q is not a part to test; write %s", part, strings.Join(e2e.Parts, ", "))
			switch {
			case part == "all":
				return o, errors.New(`"all" is not a part to test; leave it out: all run without an argument`)
			case task.LangOf(part) != "":
				return o, fmt.Errorf("%.60q is a submission, and a test sends the problem's own; write kbnode submit --problem PROBLEM %s", part, text.ShellWord(text.Line(part, 60)))
			}
			if near := nearPart(part); near != "" {
				return o, fmt.Errorf("%.60q is not a part to test; write %s", part, near)
			}
			if o.Queue == "" && o.GPU == "" {
				return o, fmt.Errorf("%s; if it is the queue, write --queue %s", says, text.ShellWord(text.Line(part, 60)))
			}
			bad("%s", says)
		}
	}
	if !slices.Contains(e2e.Modes, o.Mode) {
		bad("--mode %.60q: write %s", o.Mode, strings.Join(e2e.Modes, ", "))
	}
	if o.Jobs < 0 || o.Jobs > e2e.MaxJobs {
		bad("--jobs %d: write 1 to %d", o.Jobs, e2e.MaxJobs)
	}
	if o.Hold < 0 || o.Hold > time.Hour {
		bad("--hold %s: write up to 1h", o.Hold)
	}
	switch {
	case f.db == "" && o.Cleanup:
		bad("--cleanup needs --db DSN")
	case f.db != "" && !slices.Contains(o.Parts, e2e.Evaluation):
		bad("--db stores the result of evaluation; add evaluation")
	case f.db == "env" && os.Getenv("KBNODE_DB") == "":
		bad("--db env: KBNODE_DB is not set; set it to the database's DSN")
	case results.HasPassword(f.db):
		bad("every user of this machine can see a password on the command line; leave it out of --db, and set PGPASSWORD, write it to ~/.pgpass, or set KBNODE_DB to the whole DSN and write --db env")
	}
	if errors.Join(errs...) == nil {
		var err error
		if o.Problem, err = e2e.Load(f.problem); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, o.UseProblem(o.Problem.Task))
		}
		if errors.Join(errs...) == nil && slices.Contains(o.Parts, e2e.Evaluation) {
			doc, err := o.Problem.Task.Config("", o.Arch, o.Mode)
			errs, o.EvalTime = append(errs, err), jobTime(doc)
		}
	}
	return o, errors.Join(errs...)
}

// nearPart returns what was probably meant by a word that is no part, or "".
func nearPart(word string) string {
	if parts := strings.Split(word, ","); len(parts) > 1 && !slices.ContainsFunc(parts, func(p string) bool { return !slices.Contains(e2e.Parts, p) }) {
		return strings.Join(parts, " ")
	}
	for _, part := range append(slices.Clone(e2e.Parts), "cheats") {
		if text.Edits(part, word) < 3 || len(word) > 3 && strings.HasPrefix(part, word[:min(len(word), 6)]) {
			return part
		}
	}
	return ""
}

func (f *e2eFlags) store(ctx context.Context) (*results.Store, error) {
	dsn := f.db
	switch dsn {
	case "":
		return nil, nil
	case "env":
		dsn = os.Getenv("KBNODE_DB")
	}
	store, err := results.Open(ctx, dsn)
	if errors.Is(err, results.ErrDSN) {
		err = term.Usage(err)
	}
	return store, err
}

// show prints the requests that would be sent. It does not ask how many agents there are.
func (f *e2eFlags) show(s term.Streams, o e2e.Options) error {
	var all []request
	for _, part := range e2e.Parts {
		if !slices.Contains(o.Parts, part) {
			continue
		}
		jobs, err := o.Builds(part, max(o.Jobs, 1))
		if err != nil {
			return term.Usage(err)
		}
		if part == e2e.Concurrency && o.Jobs == 0 {
			s.Progress("concurrency: one of these for each agent of the queue")
		}
		all = append(all, f.requests(jobs...)...)
	}
	return requestsDoc.Print(s, f.asJSON, requestList{all}, func() { printRequests(s.Out, all) })
}

// e2eProgress returns a function that writes a line whenever a job changes.
func e2eProgress(s term.Streams) func(part, name string, st submit.Status) {
	return func(part, name string, st submit.Status) {
		if st.State == "creating" || st.State == "fetching" {
			return
		}
		line := fmt.Sprintf("%s, %s: %s", part, text.Line(name, 60), st.State)
		if st.Agent != "" && st.State == "running" {
			line += " on " + text.Line(st.Agent, 60)
		}
		if st.Build != 0 {
			line += fmt.Sprintf(", build %d", st.Build)
		}
		s.Progress("%s", line)
	}
}

func printE2E(s term.Streams, r *e2e.Report) {
	seconds := func(c e2e.Check, v float64) string {
		if c.Run == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f s", v)
	}
	count := map[e2e.Verdict]int{}
	t := term.NewList(s.Out, "", "Part", "Check", "Queued", "Ran", "Agent", "Build", "Found")
	t.Spare = []string{"Build", "Queued", "Agent", "Ran"}
	for _, c := range r.Checks {
		count[c.Verdict]++
		verdict := string(c.Verdict)
		if c.Verdict == e2e.Failed {
			verdict = "FAIL"
		}
		t.Row(
			term.PaintWord(s.Out, verdict), c.Part, text.Line(c.Name, 60), seconds(c, c.Queue), seconds(c, c.Run),
			cmp.Or(text.Line(c.Agent, 60), "-"), cmp.Or(text.Line(c.URL, 300), "-"), text.Line(c.Saw, 500),
		)
	}
	t.Print()
	for _, c := range r.Checks {
		printImplausible(s, text.Line(c.Name, 60)+": ", c.Implausible)
	}
	if r.Stored != nil {
		term.Printf(s.Out, "\nLeaderboard %s remains in the database.\n", r.Stored.Name)
	}
	if r.OK {
		term.Printf(s.Out, "\nQueue %s: %s, all OK.\n", r.Queue, text.Count(len(r.Checks), "check"))
		return
	}
	term.Printf(s.Out, "\nQueue %s: %d of %d checks failed, %d were not tried.\n", r.Queue, count[e2e.Failed], len(r.Checks), count[e2e.Untried])
}
