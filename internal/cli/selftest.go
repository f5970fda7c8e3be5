package cli

import (
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/node/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

func newSelftest(s term.Streams) *cobra.Command {
	var slots []int
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try to break out of the slots, and report what did not hold",
		Long: `Try to break out of the slots in containers, and report what did not hold.

It can run on a live node: it skips slots that are busy or parked, and a job that
arrives goes first.

Exit code 1 also means that no slot could be tried.`,
		Example: `  sudo kbnode selftest --slot 0 --slot 3`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if i := slices.IndexFunc(slots, func(k int) bool { return k < 0 }); i >= 0 {
				return term.Usagef("--slot %d: slots are numbered from 0", slots[i])
			}
			if err := toRead(s, "selftest"); err != nil {
				return err
			}
			report, m, err := here(s).Doctor(cmd.Context(), doctor.Options{Only: []string{"selftest"}}, buildkiteAPI(), slots...)
			if err != nil {
				return err
			}
			for _, k := range slots {
				if m.Plan != nil && !slices.ContainsFunc(m.Plan.Slots, func(sl plan.Slot) bool { return sl.Index == k }) {
					return term.Usagef("--slot %d: this node has no such slot; sudo kbnode status lists them", k)
				}
			}
			how := normal
			if verbose {
				how = everyCheck
			}
			return term.ExitUnless(escaped(report) == doctor.OK, doctorDoc.Print(s, asJSON, report, func() { printSelftest(s.Out, report, how) }))
		},
	}
	cmd.Flags().IntSliceVar(&slots, "slot", nil, "number of a slot to try; may be repeated (default: all)")
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON, as kbnode doctor does", doctorDoc)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "list each slot")
	return cmd
}

// escaped returns what the attempts to escape say. The group has another check besides.
func escaped(r *doctor.Report) doctor.Status {
	for _, c := range r.Checks {
		if c.ID == "escape" {
			return c.Status
		}
	}
	return doctor.Skip
}

func printSelftest(w io.Writer, r *doctor.Report, how verbosity) {
	printFindings(w, r, how)
	for _, c := range r.Checks {
		for _, f := range c.Findings {
			if len(f.Slots) > 0 && (f.Status == doctor.Skip && c.Status != doctor.Skip || f.Status == doctor.OK && how == everyCheck) {
				term.Printf(w, "%s  %s %s: %s\n", paintStatus(w, f.Status), text.Plural(len(f.Slots), "slot", "slots"), cpuset.Of(f.Slots...), f.Detail)
			}
		}
	}
	says := "Everything held in the slots that were tried."
	switch {
	case slices.ContainsFunc(r.Checks, func(c doctor.Result) bool { return c.Group == "selftest" && c.Status == doctor.Fail }):
		says = term.PaintWord(w, "NOT HELD") + "."
	case escaped(r) != doctor.OK:
		says = "No slot could be tried; try again when one is idle."
	}
	term.Printf(w, "\n%s\n", says)
}

// newProbe returns the command that selftest starts in containers and slices.
func newProbe(s term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "probe JSON",
		Short:  "Try what no job may do, and report the result (started by selftest)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return probe.Run(cmd.Context(), args[0], s.Out)
		},
	}
}
