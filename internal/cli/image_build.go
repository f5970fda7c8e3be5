package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/image"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

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
