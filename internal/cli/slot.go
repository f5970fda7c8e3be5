package cli

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/guard"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Units and hooks start the commands of this file, not people.

func slotFlag(cmd *cobra.Command, k *int) {
	cmd.Flags().IntVar(k, "slot", -1, "number of the slot")
	_ = cmd.MarkFlagRequired("slot")
}

func newAgentExec(s Streams) *cobra.Command {
	var k int
	var binary string
	cmd := &cobra.Command{
		Use:    "agent-exec",
		Short:  "Become the agent of a slot (started by its unit)",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pol, err := slot.ReadPolicy("/", k)
			if err != nil {
				return err
			}
			// A slice without its unit limits nothing, so an agent that started outside of its
			// plan must not take a job.
			if err := slot.CheckLimits(slot.CgroupRoot, pol); err != nil {
				return err
			}
			if err := agent.Ready(cmd.Context(), k, s.logger()); cmd.Context().Err() != nil {
				return nil // it was asked to stop
			} else if err != nil {
				return err
			}
			return agent.Exec(k, binary)
		},
	}
	slotFlag(cmd, &k)
	cmd.Flags().StringVar(&binary, "agent", plan.AgentCopy, "the buildkite-agent to run")
	return cmd
}

func newGuard(s Streams) *cobra.Command {
	var k int
	cmd := &cobra.Command{
		Use:    "guard",
		Short:  "Run the jobs of a slot (started by its unit)",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pol, err := slot.ReadPolicy("/", k)
			if err != nil {
				return err
			}
			saveMemory()
			return guard.Serve(cmd.Context(), pol, s.logger())
		},
	}
	slotFlag(cmd, &k)
	return cmd
}

func newHook(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "hook NAME",
		Short:  "Run a Buildkite hook of a slot (started by the hook's script)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := strconv.Atoi(os.Getenv("KBNODE_SLOT"))
			if err != nil || k < 0 {
				return usagef("KBNODE_SLOT is not set; run this only in a hook of an agent that kbnode started")
			}
			return agent.Hook(cmd.Context(), args[0], k, s.logger())
		},
	}
}

func newDisk(s Streams) *cobra.Command {
	var k int
	cmd := &cobra.Command{
		Use:    "disk",
		Short:  "Make and mount the disk of a slot (started by its guard's unit)",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pol, err := slot.ReadPolicy("/", k)
			if err != nil || pol.DiskBytes == 0 {
				return err
			}
			_, gid, err := slot.LookupUser(pol.User)
			if err != nil {
				return err
			}
			d := disk.Disk{Dir: plan.DiskDir(k), Home: plan.WorkDir(k), Bytes: pol.DiskBytes, GID: gid, Log: s.logger()}
			return disk.OnHost(func() error { return d.Ensure(cmd.Context()) })
		},
	}
	slotFlag(cmd, &k)
	return cmd
}
