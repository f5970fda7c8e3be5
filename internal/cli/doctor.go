package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/doctor"
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

It changes nothing without --fix, and disturbs no running job. Exit code 0 if the
machine is fit, 1 if not. Warnings alone do not make it unfit.`,
		Example: `  sudo kbnode doctor
  sudo kbnode doctor --preflight
  sudo kbnode doctor --only docker,gpu --fix
  sudo kbnode doctor --bundle /root/kbnode-doctor.tar.gz`,
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
			how := normal
			if quiet {
				how = onlyProblems
			} else if verbose {
				how = everyCheck
			}
			return exitUnless(report.Fit, s.print(asJSON, report, func() { printDoctor(s.Out, report, how) }))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Bare, "preflight", false, "say what the machine lacks for kbnode install, in the order in which to fix it")
	f.StringSliceVar(&o.Only, "only", nil, "run only these checks or groups")
	f.StringSliceVar(&o.Skip, "skip", nil, "skip these checks or groups")
	f.BoolVar(&o.Fast, "fast", false, "start no containers")
	f.DurationVar(&o.Limit, "timeout", 0, "time limit for all checks, such as 10m (default: 55s)")
	f.StringSliceVar(&explain, "explain", nil, "explain these checks or groups, and run nothing")
	f.BoolVar(&list, "list", false, "list the checks, and run nothing")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVarP(&quiet, "quiet", "q", false, "print only problems")
	f.BoolVarP(&verbose, "verbose", "v", false, "list every check that passed or was skipped")
	f.BoolVar(&fix, "fix", false, "run the fixes that end no job, after asking")
	f.BoolVar(&yes, "yes", false, "with --fix: do not ask")
	f.StringVar(&bundle, "bundle", "", "write a support archive, without secrets, to this file")
	f.BoolVar(&accepts, "acceptance", false, "run the list to pass before a node goes live")
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
	all := strings.Join(chapters, "\n")
	if width, ok := terminal(s.Out); ok {
		all = reflow(all, min(width, proseWidth))
	}
	verbatim(s.Out, all)
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

func paintStatus(w io.Writer, s doctor.Status) string {
	switch s {
	case doctor.Skip:
		return s.String()
	case doctor.OK:
		return paintWord(w, s.String())
	}
	return paintWord(w, strings.ToUpper(s.String()))
}
