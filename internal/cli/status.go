package cli

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
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

Exit code 0 if every slot is as planned, 1 if something differs or this machine is
not a node.`,
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
			if n.Live() {
				if err := toRead(s, "status"); err != nil {
					return err
				}
			}
			for {
				if n.Live() {
					n = here(s)
				}
				st, err := n.ReadStatus(cmd.Context())
				if err != nil {
					return err
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
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", statusDoc)
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every two seconds, until interrupted")
	return cmd
}

func printStatus(w io.Writer, st node.Status, now time.Time) {
	printRecorded(w, st.Recorded)
	t := term.NewList(w, "Slot", "GPU", "Queue", "CPUs", "Memory", "Agent", "Job", "Since", "Problem")
	t.Spare = []string{"Memory", "CPUs", "GPU", "Queue"}
	for _, s := range st.Slots {
		job := "-"
		if s.Job != nil {
			job = cmp.Or(s.Job.Pipeline, s.Job.ID)
			if s.Job.Build != "" {
				job += "#" + s.Job.Build
			}
		}
		problem := "-"
		if len(s.Problems) > 0 {
			problem = s.Problems[0]
			if n := len(s.Problems) - 1; n > 0 {
				problem += fmt.Sprintf(" (and %d more)", n)
			}
		} else if len(s.Drains) > 0 {
			problem = s.Drains[0].String()
		}
		t.Row(s.Slot, cmp.Or(s.GPU, "-"), s.Queue, s.CPUs, text.Bytes(s.MemoryBytes), term.PaintWord(w, s.Agent), job, term.Ago(s.Since, now), problem)
	}
	t.Print()
	term.PrintWarnings(w, st.Warnings)
}
