package operator

import (
	"flag"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
)

// NewRunner returns kbnode runner.
func NewRunner(s term.Streams) *cobra.Command {
	var o runner.Options
	var l localFlags
	cmd := &cobra.Command{
		Use:   "runner",
		Short: "Evaluate a job's payload in its container",
		Long: `Evaluate a job's payload in its container. For a file, there is kbnode evaluate.

The payload is read from KERNELBOT_PAYLOAD or SUBMISSION_PAYLOAD, from
KERNELBOT_PAYLOAD_0, _1, … if it is too large for one variable, or from --payload.
With --config, it is plain JSON text.

The payload's files replace those of their names in --workdir, and are removed.

Exit code 0 if the evaluation was done, whatever the tests found, and 1 otherwise;
result.json is written in both cases. Exit code 3 if it could not be written.`,
		Example: `  kbnode runner                               as a job's command
  kbnode payload decode | kbnode runner --config - --workdir /tmp/job`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.Check(cmd.Flags().Changed); err != nil {
				return term.Usage(err)
			}
			if err := l.checkJob(s, cmd, args); err != nil {
				return err
			}
			if cmd.Flags().Changed("problem") {
				return l.run(cmd.Context(), s, o, args)
			}
			if (o.Payload == "-" || o.Config == "-") && term.IsTerminal(s.In) {
				term.Printf(s.Err, "reading the payload from the terminal; end it with Ctrl-D\n")
			}
			// The answer is result.json, so errors in writing the summary do not count.
			o.Stdout, o.Stderr, o.Stdin = s.Raw, s.Err, s.In
			if code := runner.Main(cmd.Context(), o); code != term.ExitDone {
				return &term.ExitError{Code: code}
			}
			return nil
		},
	}
	fl := flag.NewFlagSet("runner", flag.ContinueOnError)
	o.Flags(fl)
	cmd.Flags().AddGoFlagSet(fl)
	// As kbnode evaluate, which once was this command.
	l.add(cmd)
	for _, name := range []string{"problem", "mode", "json"} {
		_ = cmd.Flags().MarkHidden(name)
	}
	return cmd
}

// checkJob refuses what an evaluation of a file takes and one of a payload does not.
func (l *localFlags) checkJob(s term.Streams, cmd *cobra.Command, args []string) error {
	given := cmd.Flags().Changed
	switch {
	case given("problem") && (given("payload") || given("config")):
		return term.Usagef("--payload and --config are for jobs, and --problem for this machine; give one of them")
	case given("problem"):
		return l.check(s, cmd, args)
	case len(args) > 0 && (given("payload") || given("config")):
		return term.Usagef("kbnode runner takes a payload, and no file beside it; kbnode evaluate takes a file")
	case len(args) > 0:
		i := slices.Index(s.Typed, "runner")
		if i < 0 {
			return term.Usagef("kbnode runner takes no file; kbnode evaluate does")
		}
		s.Typed = s.With(i, "evaluate")
		if err := l.check(s, cmd, args); err != nil {
			return err
		}
		return s.Advise("kbnode runner takes no file", s.Typed)
	case given("mode") || given("json"):
		return term.Usagef("--mode and --json are flags of kbnode evaluate; in a job, the payload says what to do")
	}
	return nil
}
