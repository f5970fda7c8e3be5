package cli

import (
	"fmt"
	"io"
	"strings"

	pretty "github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/text"
)

func newDoctor(s Streams) *cobra.Command {
	var o doctor.Options
	var asJSON, quiet, verbose, list, fix, yes, accepts bool
	var bundle string
	var explain []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine is fit, and say what to type if not",
		Long: `Check whether this machine is fit to be a node, and say what to type if not.

Before kbnode install, --preflight says what the machine still lacks, in the order
in which to fix it. Nothing is changed without --fix, and no running job is
disturbed.

Exit code 0 if the machine is fit, 1 if it is not. Warnings alone do not make it
unfit.`,
		Example: `  sudo kbnode doctor
  sudo kbnode doctor --preflight
  sudo kbnode doctor --only docker,gpu
  sudo kbnode doctor --fix
  sudo kbnode doctor --quiet --skip noise
  sudo kbnode doctor --bundle /root/kbnode-doctor.tar.gz
  sudo kbnode doctor --acceptance`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf(cmd, "json", "quiet", "verbose", "list"); err != nil {
				return err
			}
			for _, other := range []string{"preflight", "only", "skip", "fast", "list", "quiet", "verbose", "fix", "bundle"} {
				if err := oneOf(cmd, "acceptance", other); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("explain") {
				return explainChecks(s, explain)
			}
			if list {
				listChecks(s.Out)
				return nil
			}
			if o.Limit < 0 {
				return usagef("--timeout cannot be negative; write how long doctor may take, such as 10m")
			}
			if yes && !fix {
				return usagef("--yes needs --fix")
			}
			if err := checkNew("--bundle", bundle); err != nil {
				return err
			}
			if accepts {
				return accept(cmd.Context(), s, asJSON)
			}
			d := &doctorRun{s: s, o: o}
			report, err := d.ask(cmd.Context())
			if err == nil && fix {
				report, err = d.fix(cmd.Context(), report, yes)
			}
			if err == nil && bundle != "" {
				err = d.bundle(cmd.Context(), bundle, report)
			}
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(s.Out, report)
			} else {
				how := plainly
				if quiet {
					how = quietly
				} else if verbose {
					how = verbosely
				}
				printDoctor(s.Out, report, how)
			}
			if err == nil && !report.Fit {
				return &exitError{code: exitNo}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Bare, "preflight", false, "run only checks that apply before kbnode install")
	f.StringSliceVar(&o.Only, "only", nil, "run only these checks or groups")
	f.StringSliceVar(&o.Skip, "skip", nil, "skip these checks or groups")
	f.BoolVar(&o.Fast, "fast", false, "start no containers")
	f.DurationVar(&o.Limit, "timeout", 0, "time limit for all checks together, such as 10m on a slow machine (default: 55s)")
	f.StringSliceVar(&explain, "explain", nil, "explain these checks or groups and their fixes, and run nothing")
	f.BoolVar(&list, "list", false, "list the checks, and run nothing")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVarP(&quiet, "quiet", "q", false, "print only problems, and nothing if there are none")
	f.BoolVarP(&verbose, "verbose", "v", false, "list every skipped check")
	f.BoolVar(&fix, "fix", false, "run the commands that fix something and end no job, after asking")
	f.BoolVar(&yes, "yes", false, "with --fix: do not ask")
	f.StringVar(&bundle, "bundle", "", "write a support archive, without secrets, to this file")
	f.BoolVar(&accepts, "acceptance", false, "run the acceptance list, which a node must pass before it goes live")
	return cmd
}

func explainChecks(s Streams, names []string) error {
	if len(names) == 0 {
		return usagef("--explain needs the name of a check or a group; kbnode doctor --list shows them")
	}
	var chapters []string
	for _, name := range names {
		chapter, err := doctor.Explain(name)
		if err != nil {
			return usage(err)
		}
		chapters = append(chapters, chapter)
	}
	verbatim(s.Out, strings.Join(chapters, "\n"))
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
		return usagef("%s cannot be combined; leave one out", strings.Join(given, " and "))
	}
	return nil
}

func listChecks(w io.Writer) {
	t := newList(w, "Group", "Check", "Passes if")
	for _, c := range doctor.All() {
		t.row(c.Group, c.ID, c.About)
	}
	t.print()
}

// verbosity is how much of a report is shown.
type verbosity int

const (
	plainly   verbosity = iota
	quietly             // only what is wrong
	verbosely           // also each check that was skipped
)

// printDoctor shows what is OK as a table. Below it is everything that is not, the worst last,
// because that stays on the screen.
func printDoctor(w io.Writer, r *doctor.Report, how verbosity) {
	if how != quietly {
		printChecks(w, r, how == verbosely)
	}
	for _, status := range []doctor.Status{doctor.Warn, doctor.Fail} {
		for _, c := range r.Checks {
			for _, f := range c.Findings {
				if f.Status == status {
					printFinding(w, c, f)
				}
			}
		}
	}
	if how == quietly && r.Count(doctor.Warn)+r.Count(doctor.Fail) == 0 {
		return
	}
	verdict := paint(w, pretty.FgGreen, "FIT")
	if !r.Fit {
		verdict = paint(w, pretty.FgRed, "NOT FIT")
	}
	printf(w, "\n%s: %d failed, %d %s, %d ok, %d skipped.\n", verdict, r.Count(doctor.Fail),
		r.Count(doctor.Warn), text.Plural(r.Count(doctor.Warn), "warning", "warnings"), r.Count(doctor.OK), r.Count(doctor.Skip))
}

// printChecks shows each check in its group. Checks that were skipped for the same reason are
// one line.
func printChecks(w io.Writer, r *doctor.Report, all bool) {
	t := newList(w, "Group", "Check", "", "Found")
	brief := 60
	if width, ok := terminal(w); ok {
		brief = max(roomy, min(brief, width-42)) // one line
	}
	for _, group := range doctor.Groups {
		shown := group
		row := func(check string, status doctor.Status, saw string) {
			t.row(shown, check, paintStatus(w, status), saw)
			shown = ""
		}
		var reasons []string
		skipped := map[string][]string{}
		for _, c := range r.Checks {
			switch saw := c.Summary(); {
			case c.Group != group:
			case c.Status == doctor.Skip && !all:
				if skipped[saw] == nil {
					reasons = append(reasons, saw)
				}
				skipped[saw] = append(skipped[saw], c.ID)
			case c.Status > doctor.Skip:
				first, _, cut := strings.Cut(fold(saw, "", brief-1, 0), "\n")
				if cut {
					first += "…" // below it is complete
				}
				row(c.ID, c.Status, first)
			default:
				row(c.ID, c.Status, saw)
			}
		}
		for _, why := range reasons {
			name := skipped[why][0]
			if n := len(skipped[why]); n > 1 {
				name = fmt.Sprintf("%d checks", n)
			}
			row(name, doctor.Skip, why)
		}
	}
	t.print()
}

func printFinding(w io.Writer, c doctor.Result, f doctor.Finding) {
	where := ""
	if len(f.Slots) > 0 {
		where = fmt.Sprintf("%s %s: ", text.Plural(len(f.Slots), "slot", "slots"), cpuset.Of(f.Slots...))
	}
	printf(w, "\n%s  %s: %s%s\n", paintStatus(w, f.Status), c.ID, where, f.Detail)
	if f.Fix != "" {
		printCommand(w, "      type  "+f.Fix)
	}
	if f.Advice != "" {
		printf(w, "      do    %s\n", f.Advice)
	}
}

func paintStatus(w io.Writer, s doctor.Status) string {
	switch s {
	case doctor.OK:
		return paint(w, pretty.FgGreen, "ok")
	case doctor.Warn:
		return paint(w, pretty.FgYellow, "WARN")
	case doctor.Fail:
		return paint(w, pretty.FgRed, "FAIL")
	default:
		return s.String()
	}
}
