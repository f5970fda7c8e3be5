package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/node/support"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// doctorFlags are the flags of kbnode doctor.
type doctorFlags struct {
	doctor.Options
	asJSON, quiet, verbose, list, fix, yes, acceptance bool
	bundle, root                                       string
	explain                                            []string
}

func newDoctor(s term.Streams) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine is fit, and say what to type if not",
		Long: `Check whether this machine is fit to be a node, and say what to type if not.

It changes nothing without --fix, and disturbs no running job. Exit code 0 if the
machine is fit, 1 if not. Warnings alone do not make it unfit.`,
		Example: `  sudo kbnode doctor
  sudo kbnode doctor --preflight
  sudo kbnode doctor --only docker,gpu --fix
  sudo kbnode doctor --bundle /root/kbnode-doctor.tar.gz
  kbnode doctor --root node.txtar     of a recorded machine`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return f.run(cmd, s)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *doctorFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.Bare, "preflight", false, "say what the machine lacks for kbnode install, in the order in which to fix it")
	fl.StringSliceVar(&f.Only, "only", nil, "run only these checks or groups")
	fl.StringSliceVar(&f.Skip, "skip", nil, "skip these checks or groups")
	fl.BoolVar(&f.Fast, "fast", false, "start no containers")
	fl.DurationVar(&f.Limit, "timeout", 0, "time limit for all checks, such as 10m (default: 55s)")
	fl.StringSliceVar(&f.explain, "explain", nil, "explain these checks or groups, and run nothing")
	fl.BoolVar(&f.list, "list", false, "list the checks, and run nothing")
	term.JSONFlag(fl, &f.asJSON, "print JSON", doctorDoc, acceptanceDoc)
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only problems")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "list every check that passed or was skipped")
	fl.BoolVar(&f.fix, "fix", false, "run the fixes that end no job, after asking")
	fl.BoolVar(&f.yes, "yes", false, "with --fix: do not ask")
	fl.StringVar(&f.bundle, "bundle", "", "write a support archive, without secrets, to this file")
	recordedFlag(fl, &f.root)
	fl.BoolVar(&f.acceptance, "acceptance", false, "run the list to pass before a node goes live")
}

// check returns what is wrong with the flags. With --explain and --list, values are not looked at.
func (f *doctorFlags) check(cmd *cobra.Command) error {
	if err := oneOf(cmd, "json", "quiet", "verbose", "list"); err != nil {
		return err
	}
	for _, other := range []string{"preflight", "only", "skip", "fast", "list", "quiet", "verbose", "fix", "bundle"} {
		if err := oneOf(cmd, "acceptance", other); err != nil {
			return err
		}
	}
	for _, other := range []string{"fix", "bundle", "acceptance"} { // they change or read this machine
		if err := oneOf(cmd, "root", other); err != nil {
			return err
		}
	}
	for _, other := range []string{"acceptance", "json", "fix", "bundle", "root"} {
		if err := errors.Join(oneOf(cmd, "list", other), oneOf(cmd, "explain", other)); err != nil {
			return err
		}
	}
	for _, c := range doctor.All() {
		if c.Group == "acceptance" && (slices.Contains(f.Only, c.Group) || slices.Contains(f.Only, c.ID)) {
			return term.Usagef("the checks of group acceptance end an agent and run evaluations; type sudo kbnode doctor --acceptance")
		}
	}
	switch {
	case f.list, cmd.Flags().Changed("explain"):
		return nil
	case f.Limit < 0:
		return term.Usagef("--timeout cannot be negative; write how long doctor may take, such as 10m")
	case f.yes && !f.fix:
		return term.Usagef("--yes needs --fix")
	}
	return term.CheckNew("--bundle", f.bundle)
}

func (f *doctorFlags) run(cmd *cobra.Command, s term.Streams) error {
	switch {
	case cmd.Flags().Changed("explain"):
		return explainChecks(s, f.explain)
	case f.list:
		listChecks(s.Out)
		return nil
	case f.acceptance:
		return accept(cmd.Context(), s, f.Limit, f.asJSON)
	}
	n, closeRoot, err := recordedAt(s, f.root)
	if err != nil {
		return err
	}
	defer closeRoot()
	d := &doctorRun{s: s, o: f.Options, n: n}
	report, err := d.ask(cmd.Context())
	if err == nil && f.fix {
		report, err = d.fix(cmd.Context(), report, f.yes)
	}
	if err == nil && f.bundle != "" {
		err = d.bundle(cmd.Context(), f.bundle, report)
	}
	if err != nil {
		return err
	}
	how := normal
	switch {
	case f.quiet:
		how = onlyProblems
	case f.verbose:
		how = everyCheck
	}
	return term.ExitUnless(report.Fit, doctorDoc.Print(s, f.asJSON, report, func() { printDoctor(s.Out, report, how) }))
}

func explainChecks(s term.Streams, names []string) error {
	if len(names) == 0 {
		return term.Usagef("--explain needs the name of a check or a group; kbnode doctor --list shows them")
	}
	var chapters []string
	for _, name := range names {
		chapter, err := doctor.Explain(name)
		if err != nil {
			return term.Usage(err)
		}
		chapters = append(chapters, chapter)
	}
	term.Printf(s.Out, "%s", strings.Join(chapters, "\n"))
	return nil
}

// oneOf refuses flags that exclude each other.
func oneOf(cmd *cobra.Command, names ...string) error {
	var given []string
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if len(given) > 1 {
		return term.Usagef("%s cannot be combined; leave one out", strings.Join(given, " and "))
	}
	return nil
}

func listChecks(w io.Writer) {
	t := term.NewList(w, "Group", "Check", "Passes if")
	for _, c := range doctor.All() {
		t.Row(c.Group, c.ID, c.About)
	}
	t.Print()
}

func paintStatus(w io.Writer, s doctor.Status) string {
	switch s {
	case doctor.Skip:
		return s.String()
	case doctor.OK:
		return term.PaintWord(w, s.String())
	}
	return term.PaintWord(w, strings.ToUpper(s.String()))
}

type doctorRun struct {
	s term.Streams
	o doctor.Options
	n *node.Node
	m *doctor.Machine // as last read
}

func (d *doctorRun) ask(ctx context.Context) (*doctor.Report, error) {
	all := d.o
	all.Checks = doctor.All()
	if _, err := all.Choose(); err != nil { // before anything is asked of the machine
		return nil, term.Usage(err)
	}
	if d.n.Live() {
		if err := toRead(d.s, "doctor"); err != nil {
			return nil, err
		}
		d.n = here(d.s)
	}
	report, m, err := d.n.Doctor(ctx, d.o, buildkiteAPI())
	d.m = m
	return report, err
}

// buildkiteAPI returns what the environment says of Buildkite's REST API.
func buildkiteAPI() doctor.API {
	return doctor.API{Token: os.Getenv("BUILDKITE_API_TOKEN"), URL: os.Getenv("BUILDKITE_API_URL")}
}

// fix runs the repairs that end no job, and runs all checks again.
func (d *doctorRun) fix(ctx context.Context, report *doctor.Report, yes bool) (*doctor.Report, error) {
	repairs := report.Repairs()
	if len(repairs) == 0 {
		d.s.Progress("there is nothing that --fix can repair")
		return report, nil
	}
	for _, m := range repairs {
		d.s.Progress("to run: %s   (%s)", m.Command, strings.Join(m.Checks, ", "))
	}
	if !yes {
		if err := d.s.Confirm(ctx, "Run them?", "nothing was changed; add --yes to run these commands"); err != nil {
			return nil, err
		}
	}
	for _, m := range repairs {
		busy, err := d.busy(ctx, m.Slots)
		if err == nil && len(busy) > 0 {
			err = fmt.Errorf("skipped: a job runs in %s %s; type %s when it has ended", text.Plural(len(busy), "slot", "slots"), cpuset.Of(busy...), d.s.Again())
		}
		if err == nil {
			d.s.Progress("running: %s", m.Command)
			err = m.Run(ctx, d.s.Err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			d.s.Warn("%v", err) // the next report shows what is not repaired
		}
	}
	return d.ask(ctx)
}

func (d *doctorRun) busy(ctx context.Context, slots []int) ([]int, error) {
	if len(slots) == 0 {
		return nil, nil
	}
	if d.m.Plan == nil {
		return nil, errors.New("skipped: without a plan, kbnode cannot tell whether a job runs there; see sudo kbnode doctor --only plan, and leave out --only")
	}
	return here(d.s).Busy(ctx, d.m.Plan, slots)
}

// bundle writes the support archive. It deletes a truncated file, which is of no use.
func (d *doctorRun) bundle(ctx context.Context, name string, report *doctor.Report) error {
	f, err := support.Create(name)
	if err != nil {
		return fmt.Errorf("write support archive: %w", err)
	}
	err = support.Write(ctx, f, d.m, report, support.Value("version.json", func() any { return readVersion() }))
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	d.s.Progress("wrote %s; review it before you send it", name)
	return nil
}
