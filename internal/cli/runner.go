package cli

import (
	"flag"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/runner"
)

func newRunner(s Streams) *cobra.Command {
	var o runner.Options
	cmd := &cobra.Command{
		Use:   "runner",
		Short: "Evaluate a submission in a job's container, and write result.json",
		Long: `Evaluate a submission in a job's container, and write result.json.

The payload is read from KERNELBOT_PAYLOAD or SUBMISSION_PAYLOAD, from
KERNELBOT_PAYLOAD_0, _1, … if it is too large for one variable, or from --payload.
With --config, it is plain JSON text.

Exit code 0 if the evaluation was done, whatever the tests found, and 1 otherwise;
result.json is written in both cases. Exit code 3 if it could not be written.`,
		Example: `  kbnode runner                               as a job's command
  kbnode runner --config task.json            on the command line
  kbnode payload decode | kbnode runner --config - --workdir /tmp/job`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(cmd.Flags().Changed); err != nil {
				return usage(err)
			}
			if (o.Payload == "-" || o.Config == "-") && isTerminal(s.In) {
				printf(s.Err, "reading the payload from the terminal; end it with Ctrl-D\n")
			}
			o.Stdout, o.Stderr = s.Out, s.Err
			if a, ok := s.Out.(*answer); ok {
				o.Stdout = a.to // the answer is result.json, so errors in writing the summary do not count
			}
			o.Stdin = s.In
			if code := runner.Main(cmd.Context(), o); code != exitDone {
				return &exitError{code: code}
			}
			return nil
		},
	}
	fl := flag.NewFlagSet("runner", flag.ContinueOnError)
	o.Flags(fl)
	cmd.Flags().AddGoFlagSet(fl)
	return cmd
}
