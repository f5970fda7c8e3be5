package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node/notify"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newNotify(s term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "notify",
		Short: "Send a test notification to those whom the configuration names",
		Long: `Send a test notification to notify.command and notify.url of the configuration, as the
daemon notifies them when a verdict begins or ends, a slot is parked, or an update
fails. What the command prints is shown only here.

Exit code 1 if it could not be sent.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := toRead(s, "notify"); err != nil {
				return err
			}
			n := here(s)
			if err := n.LoadStored(); err != nil {
				return err
			}
			if len(n.Config.Notify.Command) == 0 && n.Config.Notify.URL == "" {
				return errors.New("no one is notified; set notify.command or notify.url in " + plan.ConfigPath + " on the node")
			}
			host, _ := os.Hostname()
			var failed []error
			notify.Test(cmd.Context(), cmp.Or(n.Config.Node, host), n.Config.Notify, s.Err, func(to string, err error) {
				if err != nil {
					failed = append(failed, fmt.Errorf("notify %s: %w", to, err))
					return
				}
				term.Printf(s.Out, "Sent to %s\n", to)
			})
			return errors.Join(failed...)
		},
	}
}
