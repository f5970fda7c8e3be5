package cli

import (
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newEvents(s Streams) *cobra.Command {
	var asJSON, follow bool
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened on this node: drains, health, changes, images",
		Long: `Show what happened on this node, the oldest first: what was drained and by whom,
what was found about its GPUs' health, what drifted and was mended. The node
keeps some ten thousand events.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from := time.Time{}
			if since > 0 {
				from = time.Now().Add(-since)
			}
			log := events.Log{File: events.Path}
			show := func(e events.Event) {
				if e.Time.Before(from) {
					return
				}
				if asJSON {
					_ = json.NewEncoder(data(s.Out)).Encode(e) // s.Out keeps the error
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
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events, until interrupted")
	cmd.Flags().DurationVar(&since, "since", 0, "only the last 2h, 30m, …")
	return cmd
}
