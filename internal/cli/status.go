package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// watchPeriod is how often --watch looks.
const watchPeriod = 2 * time.Second

func newStatus(s term.Streams) *cobra.Command {
	var root string
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each slot, its agent and job, and what differs from the plan",
		Long: `Show each slot, its agent and job, and what differs from the plan.

Exit code 0 if every slot is as planned, also if an operator or the end of a loan
drained it. 1 if something differs, a slot is parked, or a health verdict drained it.
1 also if there is nothing to show, as without root or on a machine that is not a node:
with --json, the object then has only an error.`,
		Example: `  sudo kbnode status
  kbnode status --root node.txtar     of a recorded machine`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf(cmd, "root", "watch"); err != nil {
				return err
			}
			n, closeRoot, err := recordedAt(s, root)
			if err != nil {
				return err
			}
			defer closeRoot()
			fails := func(err error) error {
				if asJSON {
					return printFailure(s, err)
				}
				return err
			}
			if n.Live() {
				if err := toRead(s, "status"); err != nil {
					return fails(err)
				}
			}
			for {
				if n.Live() {
					n = here(s)
				}
				st, err := n.ReadStatus(cmd.Context())
				if err != nil {
					return fails(err)
				}
				err = statusDoc.Print(s, asJSON, st, func() {
					switch {
					case watch && term.Cursor(s.Out) > 0:
						term.Printf(s.Out, term.ClearScreen)
					case watch:
						term.Printf(s.Out, "\n")
					}
					printStatus(s.Out, st, time.Now())
				})
				if err != nil || !watch {
					return term.ExitUnless(!st.Disagrees(), err)
				}
				if limit.Sleep(cmd.Context(), watchPeriod) != nil {
					return nil
				}
			}
		},
	}
	recordedFlag(cmd.Flags(), &root)
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", statusDoc, failureDoc)
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every two seconds, until interrupted")
	return cmd
}

// printStatus writes the slots, why some take no jobs or differ from their plan, and the sums last: on a small terminal, the end
// is what people see.
func printStatus(w io.Writer, st node.Status, now time.Time) {
	printRecorded(w, st.Recorded)
	statusList(w, st, now).Print()
	for _, line := range slotProblems(w, st.Slots) {
		term.Printf(w, "%s\n", line)
	}
	for _, warning := range st.Warnings {
		term.Printf(w, "%s %s\n", term.PaintWord(w, "warning:"), warning)
	}
	if st.Recorded != "" { // what agents do is not recorded
		term.Printf(w, "kbnode doctor --root shows the faults that are recorded.\n")
		return
	}
	term.Printf(w, "%s\n", statusSums(st))
}

func statusList(w io.Writer, st node.Status, now time.Time) *term.List {
	t := term.NewList(w, "Slot", "GPU", "Queue", "CPUs", "Memory", "Agent", "Job", "Since")
	t.Spare = []string{"Memory", "CPUs", "GPU", "Queue"}
	t.Most = map[string]int{"Queue": 24, "Job": 24}
	for _, s := range st.Slots {
		job := "-"
		if s.Job != nil {
			job = cmp.Or(s.Job.Pipeline, s.Job.ID)
			if s.Job.Build != "" {
				job += "#" + s.Job.Build
			}
		}
		agent := s.Agent
		if st.Recorded == "" || len(s.Problems) > 0 { // an agent that is not recorded is not red
			agent = term.PaintWord(w, agent)
		}
		t.Row(s.Slot, cmp.Or(s.GPU, "-"), s.Queue, s.CPUs, text.Bytes(s.MemoryBytes), agent, job, term.Ago(s.Since, now))
	}
	return t
}

// slotProblems returns a line for each problem, with the slots that have it.
func slotProblems(w io.Writer, slots []node.SlotStatus) (lines []string) {
	problem := func(s node.SlotStatus) string {
		switch n := len(s.Problems); {
		case n > 1:
			return fmt.Sprintf("%s (and %d more)", s.Problems[0], n-1)
		case n == 1:
			return s.Problems[0]
		case len(s.Drains) > 0:
			return s.Drains[0].String()
		}
		return ""
	}
	for _, group := range term.Grouped(slots, func(s node.SlotStatus) [2]string { return [2]string{s.Agent, problem(s)} }) {
		why := problem(group[0])
		if why == "" {
			continue
		}
		var names []string
		for _, s := range group {
			names = append(names, s.Slot)
		}
		who := strings.Join(names, " ")
		if len(group) == len(slots) && len(group) > 1 {
			who = "all"
		}
		why = strings.TrimPrefix(strings.TrimPrefix(why, "drained "), "drained: ") // which the state says
		lines = append(lines, fmt.Sprintf("%s %s: %s", who, term.PaintWord(w, group[0].Agent), why))
	}
	return lines
}

// statusSums says how many slots are in which state.
func statusSums(st node.Status) string {
	var sums []string
	for _, word := range slot.Words {
		n := 0
		for _, s := range st.Slots {
			if s.Agent == word {
				n++
			}
		}
		if n > 0 {
			sums = append(sums, fmt.Sprintf("%d %s", n, word))
		}
	}
	all := text.Count(len(st.Slots), "slot")
	if st.Node != "" {
		all = st.Node + ": " + all
	}
	if len(sums) > 0 {
		all += ": " + strings.Join(sums, ", ")
	}
	return all
}
