package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newLogs(s Streams) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs [SLOT]",
		Short: "Show the journal of a slot's agent, service and jobs",
		Long: `Show the last lines in the journal of a slot: of its agent, its service kbnode-guard,
and its jobs. What containers print is in Buildkite, not in the journal. Write a slot
as gpu3 or 3. Without SLOT, show those of all slots, and of kbnode's own service.`,
		Example: `  sudo kbnode logs gpu3 -f`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := (node.Selection{All: len(args) == 0, Names: args}).Check(); err != nil {
				return err
			}
			if err := s.toRead("logs"); err != nil {
				return err
			}
			units, err := logUnits(slots(plan.UnitDir, plan.SlotName), args)
			if err != nil {
				return err
			}
			some := false
			err = agent.Log(cmd.Context(), units, follow, func(line string) {
				some = true
				printf(s.Out, "%s\n", line)
			})
			if err == nil && !some && !follow {
				s.progress("the journal has no line of these units: %s", strings.Join(units, ", "))
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
			return nil, usagef("this node has no slot %q; it has %s", args[0], strings.Join(has, ", "))
		}
		has, units = []string{plan.SlotName(k)}, nil
	}
	for _, name := range has {
		k, _ := node.SlotNumber(name)
		units = append(units, plan.AgentUnit(k), plan.GuardUnit(k), plan.SliceName(k))
	}
	return units, nil
}
