package cli

import (
	"fmt"
	"io"
	"slices"

	pretty "github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
)

func newSelftest(s term.Streams) *cobra.Command {
	var slots []int
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try to break out of the slots, and report what did not hold",
		Long: `Try to break out of the slots, and report what did not hold.

It can run on a live node: it skips slots that are busy or parked, and a job that
arrives goes first.

Exit code 1 also means that no slot could be tried.`,
		Example: `  sudo kbnode selftest --slot 0 --slot 3 --verbose`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if i := slices.IndexFunc(slots, func(k int) bool { return k < 0 }); i >= 0 {
				return term.Usagef("--slot %d: slots are numbered from 0", slots[i])
			}
			if err := toRead(s, "selftest"); err != nil {
				return err
			}
			out, err := here(s).Selftest(cmd.Context(), slots)
			if err != nil {
				return err
			}
			return term.ExitUnless(out.Held, s.Print(asJSON, out, func() { printSelftest(s.Out, out, verbose) }))
		},
	}
	cmd.Flags().IntSliceVar(&slots, "slot", nil, "number of a slot to try; may be repeated (default: all)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show everything that was tried")
	return cmd
}

// groups says what each group of checks is about, in the order in which they are shown.
var groups = []struct{ name, about string }{
	{"plan", "files, units and limits, against the plan"},
	{"files", "owners and modes"},
	{"agent", "how the kernel confines the agent"},
	{"devices", "devices, as root in the slot's slice"},
	{"container", "containers that try to escape"},
	{"left behind", "what containers leave behind"},
	{"selftest", "the test itself"},
}

// shownFailures is how many failures of a group are shown in full.
const shownFailures = 8

func printSelftest(w io.Writer, out *node.SelftestReport, verbose bool) {
	t := term.NewList(w, "Slot", "Group", "Tried", "Found")
	for _, r := range out.Slots {
		for _, g := range groups {
			checks, bad := ofGroup(r.Checks, g.name)
			if len(checks) == 0 {
				continue
			}
			saw := term.Paint(w, pretty.FgGreen, fmt.Sprintf("%d held", len(checks)))
			if len(bad) > 0 {
				saw = term.Paint(w, pretty.FgRed, fmt.Sprintf("%d of %d did not hold", len(bad), len(checks)))
			}
			t.Row(r.Slot, g.name, g.about, saw)
			for _, c := range checks {
				if verbose {
					t.Row("", "", "  "+c.Tried, map[bool]string{true: "held", false: "NOT HELD"}[c.Held]+": "+c.Saw)
				}
			}
		}
		if r.Skipped != "" {
			t.Row(r.Slot, "-", "-", term.Paint(w, pretty.FgYellow, "skipped: "+r.Skipped))
		}
	}
	t.Print()
	for _, r := range out.Slots {
		for _, g := range groups {
			_, bad := ofGroup(r.Checks, g.name)
			for i, c := range bad {
				if i == shownFailures && len(bad) > shownFailures+1 {
					term.Printf(w, "\n%s  %s: %d more of %q; sudo kbnode selftest --verbose shows them\n", term.Paint(w, pretty.FgRed, "NOT HELD"), r.Slot, len(bad)-i, g.name)
					break
				}
				term.Printf(w, "\n%s  %s, %s: %s\n  found %s\n", term.Paint(w, pretty.FgRed, "NOT HELD"), r.Slot, c.Group, c.Tried, c.Saw)
				if c.Do != "" {
					term.PrintCommand(w, "  type  "+c.Do)
				}
			}
		}
	}
	term.Printf(w, "\n%s\n", out.Verdict())
}

// ofGroup returns the checks of a group, and those that did not hold.
func ofGroup(checks []selftest.Check, group string) (all, bad []selftest.Check) {
	for _, c := range checks {
		if c.Group == group {
			all = append(all, c)
			if !c.Held {
				bad = append(bad, c)
			}
		}
	}
	return all, bad
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
