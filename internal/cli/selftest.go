package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
)

// selftestOutput is the JSON of kbnode selftest; docs/security.md describes it.
type selftestOutput struct {
	Node  string                `json:"node"`
	Held  bool                  `json:"held"`
	Slots []selftest.SlotReport `json:"slots"` // the node itself first
}

func newSelftest(s Streams) *cobra.Command {
	var slots []int
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try to break out of the slots, and report what did not hold",
		Long: `Try to break out of the slots, and report what did not hold.

It sends hostile requests to each slot's Docker socket. Containers and commands on
the host try to reach other GPUs, CPUs, files and the network. What they see is
compared with a newly computed plan. It can run on a live node: it skips slots that
are busy or parked, and a job that arrives meanwhile goes first.

Exit code 0 if everything that was tried held, 1 if something did not or no slot
could be tried.`,
		Example: `  sudo kbnode selftest
  sudo kbnode selftest --slot 0 --slot 3 --verbose`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if i := slices.IndexFunc(slots, func(k int) bool { return k < 0 }); i >= 0 {
				return usagef("--slot %d: slots are numbered from 0", slots[i])
			}
			out, err := runSelftest(cmd.Context(), s, slots)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(s.Out, out)
			} else {
				printSelftest(s.Out, out, verbose)
			}
			if err == nil && !out.Held {
				return &exitError{code: exitNo}
			}
			return err
		},
	}
	cmd.Flags().IntSliceVar(&slots, "slot", nil, "number of a slot to try; may be repeated (default: all)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show everything that was tried")
	return cmd
}

func runSelftest(ctx context.Context, s Streams, slots []int) (*selftestOutput, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("selftest must run as root; type sudo kbnode selftest")
	}
	if _, err := os.Stat(plan.BindingsPath); errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("this machine is not set up as a node; type sudo kbnode install --queue NAME")
	}
	host, closeHost, err := openHost(ctx, s)
	if err != nil {
		return nil, err
	}
	defer closeHost()
	m, state, err := lookLocked(ctx, s, host)
	if err != nil {
		return nil, err
	}
	for _, k := range slots {
		if !slices.ContainsFunc(m.plan.Slots, func(s plan.Slot) bool { return s.Index == k }) {
			return nil, usagef("--slot %d: this node has no such slot; kbnode status lists them", k)
		}
	}
	bus, ok := host.Systemd.(*reconcile.Bus)
	if !ok {
		return nil, errors.New("selftest needs systemd")
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find kbnode's own path: %w", err)
	}
	slices.Sort(slots)
	reports, err := selftest.Run(ctx, selftest.Options{
		Plan: m.plan, State: state, Changes: reconcile.Diff(m.plan, state), Slots: slices.Compact(slots),
		Binary: exe, Program: bus.RunProgram, Log: s.logger(),
		Progress: func(slot, doing string) { s.progress("%s", strings.TrimPrefix(slot+": "+doing, ": ")) },
	})
	if err != nil {
		return nil, err
	}
	out := &selftestOutput{Node: m.plan.Node, Slots: reports, Held: true}
	tried := false
	for _, r := range reports {
		out.Held = out.Held && r.Held()
		tried = tried || r.Index >= 0 && r.Skipped == ""
	}
	if !tried {
		out.Held = false
	}
	return out, nil
}

// lookLocked reads the machine while no other kbnode changes it.
func lookLocked(ctx context.Context, s Streams, host *reconcile.Host) (*machine, *reconcile.State, error) {
	release, err := lock(ctx, s, host)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	m := &machine{root: "/"}
	if err := m.loadConfig(&wishes{}, func(string) string { return "" }); err != nil {
		return nil, nil, err
	}
	if err := m.read(ctx, s.logger()); err != nil {
		return nil, nil, err
	}
	if err := m.think(); err != nil {
		return nil, nil, err
	}
	state, err := host.Observe(ctx, m.plan)
	return m, state, err
}

// groups says what each group of checks is about, in the order in which they are shown.
var groups = []struct{ name, about string }{
	{"plan", "files, units and limits, against the plan"},
	{"files", "owners and modes"},
	{"agent", "how the kernel confines the agent"},
	{"host", "commands on the host, as the slot's user"},
	{"devices", "devices, as root in the slot's slice"},
	{"requests", "hostile requests to the Docker socket"},
	{"container", "containers that try to escape"},
	{"left behind", "what containers leave behind"},
	{"selftest", "the test itself"},
}

// shownFailures is how many failures of a group are shown in full.
const shownFailures = 8

func printSelftest(w io.Writer, out *selftestOutput, verbose bool) {
	t := newList(w, "Slot", "Group", "Tried", "Found")
	for _, r := range out.Slots {
		for _, g := range groups {
			checks := slices.DeleteFunc(slices.Clone(r.Checks), func(c selftest.Check) bool { return c.Group != g.name })
			if len(checks) == 0 {
				continue
			}
			bad := failures(checks)
			saw := paint(w, text.FgGreen, fmt.Sprintf("%d held", len(checks)))
			if len(bad) > 0 {
				saw = paint(w, text.FgRed, fmt.Sprintf("%d of %d did not hold", len(bad), len(checks)))
			}
			t.row(r.Slot, g.name, g.about, saw)
			for _, c := range checks {
				if verbose {
					t.row("", "", "  "+c.Tried, map[bool]string{true: "held", false: "NOT HELD"}[c.Held]+": "+c.Saw)
				}
			}
		}
		if r.Skipped != "" {
			t.row(r.Slot, "-", "-", paint(w, text.FgYellow, "skipped: "+r.Skipped))
		}
	}
	t.print()
	for _, r := range out.Slots {
		for _, g := range groups {
			bad := failures(slices.DeleteFunc(slices.Clone(r.Checks), func(c selftest.Check) bool { return c.Group != g.name }))
			for i, c := range bad {
				if i == shownFailures && len(bad) > shownFailures+1 {
					printf(w, "\n%s  %s: %d more of %q; kbnode selftest --verbose shows them\n", paint(w, text.FgRed, "NOT HELD"), r.Slot, len(bad)-i, g.name)
					break
				}
				printf(w, "\n%s  %s, %s: %s\n  found %s\n", paint(w, text.FgRed, "NOT HELD"), r.Slot, c.Group, c.Tried, c.Saw)
				if c.Do != "" {
					printCommand(w, "  type  "+c.Do)
				}
			}
		}
	}
	printf(w, "\n%s\n", verdict(out))
}

func failures(checks []selftest.Check) []selftest.Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c selftest.Check) bool { return c.Held })
}

// verdict returns the last line.
func verdict(out *selftestOutput) string {
	tried, skipped, bad := 0, 0, []string{}
	for _, r := range out.Slots {
		switch {
		case !r.Held():
			bad = append(bad, r.Slot)
		case r.Index >= 0 && r.Skipped == "":
			tried++
		}
		if r.Skipped != "" {
			skipped++
		}
	}
	left := ""
	if skipped > 0 {
		left = fmt.Sprintf("; %d %s skipped", skipped, plural(skipped, "slot was", "slots were"))
	}
	switch {
	case len(bad) > 0:
		return "NOT HELD: " + strings.Join(bad, ", ") + left + "."
	case tried == 0:
		return "No slot could be tried, all are busy or parked; try again when one is idle."
	}
	return fmt.Sprintf("Everything held in %d %s%s.", tried, plural(tried, "slot", "slots"), left)
}

// newProbe returns the command that selftest starts in containers and slices.
func newProbe(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "probe JSON",
		Short:  "Try what no job may do, and report the result (started by selftest)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ask probe.Ask
			if err := json.Unmarshal([]byte(args[0]), &ask); err != nil {
				return usagef("the argument is not a request of selftest: %w", err)
			}
			facts, err := probe.Run(cmd.Context(), ask)
			if err != nil {
				return err
			}
			return json.NewEncoder(data(s.Out)).Encode(facts)
		},
	}
}
