package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/image"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
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

// buildFlags say what to build.
type buildFlags struct {
	variant, dockerfile string
	args                []string
	print               bool
}

func newImageBuild(s Streams) *cobra.Command {
	var o image.Options
	var f buildFlags
	var push, asJSON bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the image on this node, test it in an idle slot, and let jobs run it",
		Long: `Build the image on this node, test it in an idle slot, and let jobs run it.

A --dockerfile can copy from its directory, at most 1 GiB. The value of a --build-arg
stays readable in the image: it is not for secrets. The build uses Docker's own builder,
without BuildKit. kbnode image update --auto leaves an image that was built here alone,
unless it was pushed.`,
		Example: `  sudo kbnode image build
  sudo kbnode image build --build-arg EXTRA_PIP=nvidia-cutlass-dsl==4.3.5
  sudo kbnode image build --dockerfile eval/Dockerfile --push`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.dockerfile != "" && (f.variant != "" || f.print) {
				return usagef("--variant and --print are for kbnode's own Dockerfiles; leave them out, or --dockerfile")
			}
			var src image.Source
			var err error
			if f.dockerfile == "" {
				src, err = image.OwnSource(f.variant, f.args)
			} else {
				src, err = image.FileSource(f.dockerfile, f.args)
			}
			if err != nil {
				return err
			}
			if f.print {
				_, err := io.WriteString(s.Out, src.Text)
				return err
			}
			return changeImages(cmd.Context(), s, "build", false, asJSON, func(ctx context.Context, u *image.Updater) (image.Result, error) {
				return u.Build(ctx, src, push, o)
			})
		},
	}
	cmd.Flags().StringVar(&f.variant, "variant", "", strings.Join(evaluation.Variants, ", ")+" (default: the one for the node's GPUs)")
	cmd.Flags().StringVar(&f.dockerfile, "dockerfile", "", "the Dockerfile to build (default: kbnode's own)")
	cmd.Flags().StringArrayVar(&f.args, "build-arg", nil, "set an ARG of the Dockerfile, `NAME=VALUE`; may be repeated")
	cmd.Flags().BoolVar(&f.print, "print", false, "only print kbnode's own Dockerfile")
	cmd.Flags().BoolVar(&push, "push", false, "push it to its registry once it passes, with root's docker login")
	cmd.Flags().BoolVar(&o.Beside, "now", false, "build while jobs run, which disturbs their timings")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("variant", values(evaluation.Variants...))
	return cmd
}
