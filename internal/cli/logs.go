package cli

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newLogs(s term.Streams) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs [SLOT]",
		Short: "Show the journal of a slot's agent and jobs",
		Long: `Show the last lines in the journal of a slot: of its agent, and of the processes that
run its jobs. What containers print is in Buildkite, not in the journal. Write a slot
as gpu3 or 3. Without SLOT, show those of all slots, and of kbnode's own service.`,
		Example: `  sudo kbnode logs gpu3 -f`,
		Args:    cobra.MatchAll(cobra.MaximumNArgs(1), hints{s}.slotArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := toRead(s, "logs"); err != nil {
				return err
			}
			units, err := logUnits(slots(plan.UnitDir, plan.SlotName), args)
			if err != nil {
				return err
			}
			some := false
			err = agent.Log(cmd.Context(), units, follow, func(line string) {
				some = true
				term.Printf(s.Out, "%s\n", line)
			})
			if err == nil && !some && !follow {
				s.Progress("the journal has no line of these units: %s", strings.Join(units, ", "))
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new lines as they come, until interrupted")
	return cmd
}

// logUnits returns the units whose logs to show: those of one slot or, if none is named, of all
// that the node has, by name, and of kbnode itself.
func logUnits(has, args []string) ([]string, error) {
	if len(has) == 0 {
		return nil, node.ErrNone
	}
	units := []string{plan.NodeService}
	if len(args) > 0 {
		k, _ := node.SlotNumber(args[0])
		if !slices.Contains(has, plan.SlotName(k)) {
			return nil, term.Usagef("this node has no slot %q; it has %s", args[0], strings.Join(has, ", "))
		}
		has, units = []string{plan.SlotName(k)}, nil
	}
	for _, name := range has {
		k, _ := node.SlotNumber(name)
		// The slice has the lines of jobs to come, and the pattern what systemd says of those that ended.
		units = append(units, plan.AgentUnit(k), plan.JobSocket(k), strings.Replace(plan.JobService(k), "@", "@*", 1), plan.JobSlice(k), plan.SliceName(k))
	}
	return units, nil
}

func newEvents(s term.Streams) *cobra.Command {
	var asJSON, follow bool
	var since time.Duration
	var only []string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened on this node: drains, health, changes, images",
		Long: `Show what happened on this node, oldest first: drains, health verdicts, repairs. The
node keeps about ten thousand events.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if since < 0 {
				return term.Usagef("--since cannot be negative; write how long ago, such as 2h")
			}
			from := time.Time{}
			if since > 0 {
				from = time.Now().Add(-since)
			}
			shown, err := eventSlots(only)
			if err != nil {
				return err
			}
			if _, err := os.Stat(events.Path); errors.Is(err, fs.ErrNotExist) && len(slots(plan.UnitDir, plan.SlotName)) == 0 {
				return errors.New("this machine is not a node, so it has no events; run kbnode events on a node, sudo kbnode install here, or kbnode queue --node NAME to see another machine")
			}
			log := events.Log{File: events.Path}
			show := func(e events.Event) {
				if e.Time.Before(from) || len(shown) > 0 && !slices.Contains(shown, e.Slot) {
					return
				}
				if asJSON {
					_ = eventDoc.Line(s.Out, e) // s.Out keeps the error
					return
				}
				slot := "node"
				if e.Slot >= 0 {
					slot = plan.SlotName(e.Slot)
				}
				term.Printf(s.Out, "%s  %-5s  %-8s  %s\n", e.Time.Local().Format(time.DateTime), slot, e.Kind, e.Text)
			}
			if follow {
				return log.Follow(cmd.Context(), show)
			}
			return log.Read(show)
		},
	}
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON, one event per line", eventDoc)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new events as they happen, until interrupted")
	cmd.Flags().StringSliceVar(&only, "slot", nil, "only events of this slot, such as gpu3, or of node; may be repeated")
	cmd.Flags().DurationVar(&since, "since", 0, "only events of the last 2h, 30m, …")
	return cmd
}

func eventSlots(names []string) ([]int, error) {
	var all []int
	for _, name := range names {
		if name == "node" {
			all = append(all, -1)
			continue
		}
		k, ok := node.SlotNumber(name)
		if !ok {
			likely := "gpu3"
			if names := node.LikelySlots(name); names != nil {
				likely = "--slot " + strings.Join(names, ",")
			}
			return nil, term.Usagef("%.60q is not a slot; write %s, or node for events of the node itself", name, likely)
		}
		all = append(all, k)
	}
	return all, nil
}
