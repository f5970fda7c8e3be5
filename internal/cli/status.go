package cli

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/text"
)

// watchPeriod is how often --watch looks.
const watchPeriod = 2 * time.Second

const clearScreen = "\x1b[H\x1b[2J"

func newStatus(s Streams) *cobra.Command {
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each slot, its agent and job, and what differs from the plan",
		Long: `Show each slot, its agent and job, and what differs from the plan.

Exit code 0 if every slot is as planned, 1 if something differs or this machine is
not a node.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.toRead("status"); err != nil {
				return err
			}
			for {
				st, err := here(s).ReadStatus(cmd.Context())
				if err != nil {
					return err
				}
				err = s.print(asJSON, st, func() {
					switch {
					case watch && cursor(s.Out) > 0:
						printf(s.Out, clearScreen)
					case watch:
						printf(s.Out, "\n")
					}
					printStatus(s.Out, st, time.Now())
				})
				if err != nil || !watch {
					return exitUnless(!st.Disagrees(), err)
				}
				if limit.Sleep(cmd.Context(), watchPeriod) != nil {
					return nil
				}
			}
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every two seconds, until interrupted")
	return cmd
}

func printStatus(w io.Writer, st node.Status, now time.Time) {
	t := newList(w, "Slot", "GPU", "Queue", "CPUs", "Memory", "Agent", "Job", "Since", "Problem")
	t.spare = []string{"Memory", "CPUs", "GPU", "Queue"}
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
		t.row(s.Slot, cmp.Or(s.GPU, "-"), s.Queue, s.CPUs, text.Bytes(s.MemoryBytes), paintWord(w, s.Agent), job, ago(s.Since, now), problem)
	}
	t.print()
	printWarnings(w, st.Warnings)
}

// ago returns a time as people say it: "3m", "2h10m", "5d".
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := max(0, now.Sub(t)); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
