package cli

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newEvents(s Streams) *cobra.Command {
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
				return usagef("--since cannot be negative; write how long ago, such as 2h")
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
				return errors.New("this machine is not a node, so it has no events; run kbnode events on a node, or sudo kbnode install here")
			}
			log := events.Log{File: events.Path}
			show := func(e events.Event) {
				if e.Time.Before(from) || len(shown) > 0 && !slices.Contains(shown, e.Slot) {
					return
				}
				if asJSON {
					_ = json.NewEncoder(s.Out).Encode(e) // s.Out keeps the error
					return
				}
				slot := "node"
				if e.Slot >= 0 {
					slot = plan.SlotName(e.Slot)
				}
				printf(s.Out, "%s  %-5s  %-8s  %s\n", e.Time.Local().Format(time.DateTime), slot, e.Kind, e.Text)
			}
			if follow {
				return log.Follow(cmd.Context(), show)
			}
			return log.Read(show)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one event per line")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new events as they happen, until interrupted")
	cmd.Flags().StringSliceVar(&only, "slot", nil, "only events of this slot, such as gpu3, or of node; may be repeated")
	cmd.Flags().DurationVar(&since, "since", 0, "only events of the last 2h, 30m, …")
	return cmd
}

// eventSlots converts names or numbers of slots to slots of events: -1 is the node.
func eventSlots(names []string) ([]int, error) {
	var all []int
	for _, name := range names {
		if name == "node" {
			all = append(all, -1)
			continue
		}
		k, ok := node.SlotNumber(name)
		if !ok {
			return nil, usagef("%.60q is not a slot; write gpu3, or node for events of the node itself", name)
		}
		all = append(all, k)
	}
	return all, nil
}
