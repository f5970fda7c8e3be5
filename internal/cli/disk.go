package cli

import (
	"fmt"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

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
			u, err := user.Lookup(pol.User)
			if err != nil {
				return fmt.Errorf("look up the slot's user: %w; run sudo kbnode reconcile", err)
			}
			d := disk.Disk{Dir: plan.DiskDir(k), Home: plan.WorkDir(k), Bytes: pol.DiskBytes, Log: s.logger()}
			if d.GID, err = strconv.Atoi(u.Gid); err != nil {
				return fmt.Errorf("look up the slot's user %s: %w", pol.User, err)
			}
			return disk.OnHost(func() error { return d.Ensure(cmd.Context()) })
		},
	}
	slotFlag(cmd, &k)
	return cmd
}
