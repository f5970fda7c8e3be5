package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// NewCancel returns kbnode cancel.
func NewCancel(s term.Streams) *cobra.Command {
	var api APIFlags
	var target submit.Target
	cmd := &cobra.Command{
		Use:   "cancel RUN...",
		Short: "Cancel submissions by their run IDs",
		Long: `Cancel the builds of submissions by their run IDs, which kbnode submit prints, or a build
as kbnode queue --agents names it: PIPELINE#NUMBER, or the address of its page. Their
runners still upload what they have.

Exit code 1 if a run has no build or one could not be canceled. A build that has ended
stays as it is. The API token needs the scopes read_builds and write_builds.`,
		Example: `  kbnode cancel --org gpu-mode kbnode-q3xs5e7yzkw2a1bc
  kbnode cancel --org gpu-mode kernelbot#1234`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return term.Usagef("no run is named; write kbnode cancel RUN, with the run ID that kbnode submit printed")
			}
			return checkRuns(submit.Target{Pipeline: defaultPipeline}, true, args...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			target.Pipeline = pipelineOf(target.Pipeline)
			if err := checkRuns(target, true, args...); err != nil {
				return err
			}
			client, err := api.Client(s, nil)
			if err != nil {
				return err
			}
			target.Org = api.Org
			var errs []error
			for _, run := range args {
				errs = append(errs, cancelRun(cmd.Context(), s, client, target, run))
			}
			return errors.Join(errs...)
		},
	}
	api.add(cmd)
	cmd.Flags().StringVar(&target.Pipeline, "pipeline", "", "pipeline, as in its URL (default: BUILDKITE_PIPELINE, or "+defaultPipeline+")")
	return cmd
}

var (
	// buildNumber matches the number of a build, and buildName one with its pipeline.
	buildNumber = lazy.Regexp(`^#?\d+$`)
	buildName   = lazy.Regexp(`^([A-Za-z0-9][A-Za-z0-9-]*)#(\d{1,9})$`)
	// slotName matches a slot of a node.
	slotName = lazy.Regexp(`^gpu-?\d+$`)
)

// isRunID reports whether cancel and --follow take a run ID: one that looks like another thing is probably that.
func isRunID(run string) bool {
	return run != "" && len(run) <= 100 && text.Plain(run) && !strings.Contains(run, "://") &&
		!buildNumber().MatchString(run) && !slotName().MatchString(run)
}

// buildNamed returns the pipeline and the number of a build whose name or address was typed, 0 of another text.
func buildNamed(run string) (pipeline string, number int) {
	if at := buildName().FindStringSubmatch(run); at != nil {
		number, _ = strconv.Atoi(at[2])
		return at[1], number
	}
	if !strings.HasPrefix(run, "https://") {
		return "", 0
	}
	return buildkite.BuildOf(run)
}

// checkRuns returns what is wrong with a pipeline and run IDs that were typed, or names of builds, if they may be.
func checkRuns(t submit.Target, builds bool, runs ...string) error {
	for _, run := range runs {
		if builds {
			if _, number := buildNamed(run); number > 0 {
				continue
			}
		}
		if slotName().MatchString(run) {
			return term.Usagef("%.40q is a slot of a node, and no run ID; %s", run, strings.ReplaceAll(term.EndJob, "gpu3", strings.ReplaceAll(run, "-", "")))
		}
		if !isRunID(run) {
			if builds && buildNumber().MatchString(run) {
				return term.Usagef("%.40q names no pipeline; write kbnode cancel PIPELINE#%.40s, such as kernelbot#1234", run, strings.TrimPrefix(run, "#"))
			}
			return term.Usagef("%.40q is not a run ID; kbnode submit prints them, such as kbnode-q3xs5e7yzkw2a1bc, and a build's environment has its own as KERNELBOT_RUN_ID", run)
		}
	}
	return term.Usage(buildkite.CheckSlug("a pipeline", t.Pipeline))
}

func cancelRun(ctx context.Context, s term.Streams, c *buildkite.Client, t submit.Target, run string) error {
	var builds []buildkite.Build
	var err error
	if pipeline, number := buildNamed(run); number > 0 {
		t.Pipeline = pipeline
		builds = make([]buildkite.Build, 1)
		builds[0], err = c.Build(ctx, t.Org, pipeline, number)
	} else {
		builds, err = submit.FindRun(ctx, c, t, run)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range builds {
		if b.Ended() {
			term.Printf(s.Out, "%s: build %d has ended: %s\n", run, b.Number, text.Line(b.State, 100))
			continue
		}
		if err := c.Cancel(ctx, t.Org, t.Pipeline, b.Number); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", run, err))
			continue
		}
		term.Printf(s.Out, "%s: build %d is being canceled\n", run, b.Number)
	}
	return errors.Join(errs...)
}
