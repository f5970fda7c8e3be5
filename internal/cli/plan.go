package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// exitChanges is the exit code of --detailed-exit-code if changes are pending.
const exitChanges = 3

// planOutput is the JSON of kbnode plan; docs/plan.md describes it.
type planOutput struct {
	Recorded string `json:"recorded,omitempty"` // the file, if it is a recorded machine's
	*plan.Plan
	Changes []reconcile.Change `json:"changes"` // none of a recorded node: its files are not recorded
	unknown bool               // what would change is not recorded
}

// failure is the JSON of kbnode plan if no plan is possible, and of kbnode status if there is none.
type failure struct {
	Error string `json:"error"`
}

// printFailure prints an error as JSON. One of what was typed or configured stays, for its exit code.
func printFailure(s term.Streams, err error) error {
	printed := failureDoc.Print(s, true, failure{err.Error()}, nil)
	if _, ok := errors.AsType[*term.ExitError](err); ok && printed == nil {
		return err
	}
	return term.ExitUnless(false, printed)
}

func newPlan(s term.Streams) *cobra.Command {
	var root, file string
	var asJSON, detailed bool
	var w configFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show the slots this machine should have, and what would change",
		Long: `Show the slots this machine should have, and what would change.

Nothing is written. With flags that contradict a configuration file of yours, it shows
what they would give, and warns: kbnode install refuses them.

Exit code 0 if a plan could be made, 1 if not, and 2 if the configuration or a flag is
wrong.`,
		Example: `  kbnode plan --queue b200
  kbnode plan --config node.yaml --detailed-exit-code`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := makePlan(cmd.Context(), s, root, file, &w, func(err error) error {
				s.Warn("%v: kbnode install would refuse it", err)
				return nil
			})
			if err == nil && detailed && out.unknown {
				err = term.Usagef("what would change on %s is not recorded; leave out --detailed-exit-code, or type kbnode plan on the machine", out.Recorded)
			}
			if err != nil && asJSON {
				return printFailure(s, err)
			}
			if err != nil {
				return err
			}
			return showPlan(s, out, asJSON, detailed)
		},
	}
	rootFlag(cmd, &root)
	w.register(cmd)
	cmd.Flags().StringVar(&file, "config", "", "plan with this configuration file instead of the machine's; - is standard input")
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", planDoc, failureDoc)
	cmd.Flags().BoolVar(&detailed, "detailed-exit-code", false, "exit with code 3 if changes are pending")
	return cmd
}

func showPlan(s term.Streams, out planOutput, asJSON, detailed bool) error {
	out.Changes = append([]reconcile.Change{}, out.Changes...) // a list, even if empty
	err := planDoc.Print(s, asJSON, out, func() { printPlan(s.Out, out) })
	if err == nil && detailed && len(out.Changes) > 0 {
		return &term.ExitError{Code: exitChanges}
	}
	return err
}

// makePlan plans a machine. What flags contradict in a file that was written by hand, byHand answers for.
func makePlan(ctx context.Context, s term.Streams, root, file string, w *configFlags, byHand func(error) error) (out planOutput, err error) {
	if _, err := w.config(); err != nil {
		return out, err
	}
	n, closeRoot, err := machineAt(s, root)
	if err != nil {
		return out, err
	}
	defer closeRoot()
	if file != "" {
		text, err := configText(ctx, s, file)
		if err != nil {
			return out, err
		}
		n.Asked = &node.ConfigText{Name: configName(file), Text: text}
	}
	err = w.load(n, environment(n))
	if errors.Is(err, node.ErrByHand) {
		err = byHand(err)
	}
	if err != nil {
		return out, err
	}
	if err := n.Read(ctx); err != nil {
		return out, err
	}
	n.Reshape = true // as install will
	if err := n.MakePlan(); err != nil {
		return out, err
	}
	out.Plan = n.Plan
	if n.Recorded {
		out.Recorded = n.Name
		if _, err := n.ReadFile(plan.BindingsPath); err == nil {
			out.unknown = true
			return out, nil
		}
	}
	out.Changes, err = n.Preview(ctx)
	return out, err
}

func printPlan(w io.Writer, out planOutput) {
	printRecorded(w, out.Recorded)
	printSlots(w, out.Plan)
	term.PrintWarnings(w, out.Warnings)
	switch {
	case out.unknown:
		term.Printf(w, "\nWhat would change is not recorded: kbnode plan, on the machine, shows it.\n")
	case len(out.Changes) == 0:
		term.Printf(w, "\nNothing to change.\n")
	default:
		printSlotsAffected(w, out.Plan, out.Changes)
		term.Printf(w, "\n%s:\n", changeCount(len(out.Changes)))
		printChanges(w, out.Changes)
	}
}

func printSlots(w io.Writer, p *plan.Plan) {
	t := term.NewList(w, "Slot", "GPU", "PCI", "NUMA", "Queue", "CPUs", "Memory nodes", "Memory")
	t.Spare = []string{"Memory nodes", "PCI", "NUMA", "GPU"}
	t.Most = map[string]int{"CPUs": 28} // of the system, they are many on machines with many GPUs
	for _, s := range p.Slots {
		t.Row(s.Name, cmp.Or(s.Model(), "-"), gpuText(s.Each(pciOf)), gpuText(s.Each(numaOf)), s.Queue, s.CPUs, s.MemoryNodes, text.Bytes(s.MemoryBytes))
	}
	t.Row("system", "", "", "", "", cmp.Or(p.Reserved.CPUs, "-"), "", text.Bytes(p.Reserved.MemoryBytes))
	t.Print()
	if used := p.UsedGPUs(); used < p.GPUs {
		term.Printf(w, "%d of %d GPUs used\n", used, p.GPUs)
	}
	if !p.LoanUntil.IsZero() {
		term.Printf(w, "lent until %s: slots then take no more jobs\n", p.LoanUntil.Format(plan.Dates))
	}
}

func pciOf(g plan.SlotGPU) string  { return g.PCI }
func numaOf(g plan.SlotGPU) string { return nodeText(g.NUMANode) }

// gpuText fits values of a slot's GPUs into a column: the distinct ones, or if there are more
// than two, the first and how many more there are.
func gpuText(list []string) string {
	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) > 2 {
		return fmt.Sprintf("%s +%d", list[0], len(list)-1)
	}
	return cmp.Or(strings.Join(list, ","), "-")
}

// tryInstall is a dry run without root: the plan, compared with what the user may read.
func tryInstall(ctx context.Context, s term.Streams, f *installFlags) error {
	out, err := makePlan(ctx, s, "/", "", &f.configFlags, func(err error) error { return err })
	if err != nil {
		return err
	}
	if err := showPlan(s, out, false, false); err != nil {
		return err
	}
	s.Warn("without root, the token, units and limits were not read; %s compares everything", s.Again())
	return nil
}
