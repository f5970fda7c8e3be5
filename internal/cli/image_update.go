package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/image"
)

// autoWait is how long an unattended update waits for idle slots.
const autoWait = time.Hour

func newImageUpdate(s Streams) *cobra.Command {
	var o image.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "update [IMAGE]",
		Short: "Fetch the newest image, test it in an idle slot, and let jobs run it",
		Long: `Fetch the newest image, test it in an idle slot, and let jobs run it.

The image is image.name of the configuration, or IMAGE, which then stays until an
update without IMAGE. It is fetched while no slot runs a job. Running jobs keep theirs.

Exit code 0 if jobs run the newest image or nothing could be done now, and 1 if it
was refused, or if --check finds a newer one.`,
		Example: `  sudo kbnode image update
  sudo kbnode image update ghcr.io/gpu-mode/kernelbot:v2`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Auto && len(args) > 0 {
				return usagef("--auto fetches image.name of the configuration; leave out %s", args[0])
			}
			if len(args) > 0 {
				name, err := image.ParseName(args[0])
				if err != nil {
					return usage(err)
				}
				o.From = name
			}
			if o.Auto {
				o.Wait = autoWait
			}
			return changeImages(cmd.Context(), s, "update", o.Auto, asJSON, func(ctx context.Context, u *image.Updater) (image.Result, error) {
				return u.Update(ctx, o)
			})
		},
	}
	cmd.Flags().BoolVar(&o.Auto, "auto", false, "for cron: say nothing without a change, give up after an hour of busy slots, respect decisions made by hand")
	cmd.Flags().BoolVar(&o.Check, "check", false, "only check for a newer one")
	cmd.Flags().BoolVar(&o.Beside, "now", false, "fetch it while jobs run, which disturbs their timings")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
