package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/std/text"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

func newImage(s term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Update the image that jobs run, or roll it back",
	}
	cmd.AddCommand(newImageUpdate(s), newImageBuild(s), newImageList(s), newImageRollback(s))
	return cmd
}

// changeImages runs a command that changes the node's images, and prints the result.
func changeImages(ctx context.Context, s term.Streams, command string, auto, asJSON bool, do func(context.Context, *image.Updater) (image.Result, error)) error {
	if err := needRoot(s, "image "+command); err != nil {
		return err
	}
	wrong := func(err error) error { return err } // which image is wanted, the configuration says
	if command == "rollback" {
		wrong = warned(s)
	}
	u, closeUpdater, err := node.Images(wrong)
	if err != nil {
		return err
	}
	defer closeUpdater()
	p := &layerProgress{Progress: term.NewProgress(s)}
	if !auto {
		u.Say = func(text string) { p.update(image.Progress{Status: text}) }
		u.Progress = p.update
	}
	r, err := do(ctx, u)
	p.End("")
	if locked, ok := errors.AsType[*reconcile.LockedError](err); ok && auto {
		r, err = image.Result{Name: u.Name, Action: image.ActionLater, Reason: locked.Error()}, nil
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("interrupted; jobs keep the image that they had, and %s continues from here: %w", s.Again(), err)
	}
	if err != nil {
		return err
	}
	err = imageChangeDoc.Print(s, asJSON, r, func() {
		if text := imageResult(r, auto); text != "" {
			term.Printf(s.Out, "%s\n", text)
		}
	})
	warnHeld(s, "/", r)
	return term.ExitUnless(r.Action != image.ActionRefused && r.Action != image.ActionNewer && r.Action != image.ActionMoved, err)
}

// warnHeld says that slots still wait for kbnode install --bundle, although jobs have an image now.
func warnHeld(s term.Streams, root string, r image.Result) {
	held := node.HeldSlots(root)
	if len(held) > 0 && (r.Action == image.ActionUpdated || r.Action == image.ActionNone || r.Action == image.ActionBack) {
		s.Warn("kbnode install --bundle did not finish, so %s still %s no jobs; type sudo kbnode resume %s", strings.Join(held, ", "), text.Plural(len(held), "takes", "take"), strings.Join(held, " "))
	}
}

// warned goes on with a warning in place of an error.
func warned(s term.Streams) func(error) error {
	return func(err error) error {
		s.Warn("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return nil
	}
}

// layerProgress shows a pull or build: its lines and, on a terminal, what comes of the current layer.
type layerProgress struct{ *term.Progress }

func (p *layerProgress) update(now image.Progress) {
	switch {
	case now.Layer == "" && now.Status != "" && !strings.HasPrefix(now.Status, "Digest:") && !strings.HasPrefix(now.Status, "Status:"):
		p.End("")
		p.Say("%s", strings.TrimSpace(now.Status))
	case now.Layer != "" && now.Total > 0:
		p.Show(fmt.Sprintf("%s: %s %s of %s", now.Layer, now.Status, text.Bytes(now.Current), text.Bytes(now.Total)), "")
	}
}

// imageResult describes the result of a command. With auto no one watches, so it returns "" if
// there was nothing to do.
func imageResult(r image.Result, auto bool) string {
	if auto && (r.Action == image.ActionNone || r.Action == image.ActionSkipped) {
		return ""
	}
	reason := ""
	if r.Reason != "" {
		reason = ": " + r.Reason
	}
	switch r.Action {
	case image.ActionNone:
		return fmt.Sprintf("Up to date: %s is %s%s.", r.Name, imageLabel(r.Current), reason)
	case image.ActionNewer:
		return fmt.Sprintf("Newer: %s is %s in its registry, and %s here. Type sudo kbnode image update.", r.Name, r.Newer, imageLabel(r.Current))
	case image.ActionMoved:
		return fmt.Sprintf("Moved: %s is not %s%s. Type sudo kbnode image update.", r.Name, imageLabel(r.Current), reason)
	case image.ActionLater:
		return "Not now" + reason + "; the next run tries again, and sudo kbnode image update waits for it."
	case image.ActionSkipped:
		return fmt.Sprintf("%s stays %s%s.", r.Name, imageLabel(r.Current), reason)
	case image.ActionRefused:
		return fmt.Sprintf("Refused: %s stays %s%s.", r.Name, imageLabel(r.Current), reason)
	case image.ActionBack:
		return fmt.Sprintf("Rolled back: %s is %s again%s. sudo kbnode image update fetches the newest.", r.Name, imageLabel(r.Current), reason)
	}
	text := fmt.Sprintf("%s is now %s%s", r.Name, imageLabel(r.Current), reason)
	if r.Current != nil && r.Current.Canary != nil {
		text += ", which " + canaryText(*r.Current.Canary)
	}
	text += "."
	if r.Previous != nil {
		text += "\nsudo kbnode image rollback returns to " + imageLabel(r.Previous) + "."
	}
	return text
}

func imageLabel(i *image.Image) string {
	if i == nil {
		return "not known yet"
	}
	return cmp.Or(i.Digest, i.ID)
}

// canaryText returns a verb and its details.
func canaryText(c image.Canary) string {
	if !c.Passed {
		return fmt.Sprintf("failed in %s: %s", c.Slot, c.Reason)
	}
	parts := []string{fmt.Sprintf("passed in %s", c.Slot), fmt.Sprintf("%.1f s", c.Seconds)}
	if c.GPU != "" {
		parts = append(parts, c.GPU)
	}
	if c.Torch != "" {
		parts = append(parts, "torch "+c.Torch)
	}
	if c.NotStrict != "" {
		parts = append(parts, "only in the compatible profile (strict: "+c.NotStrict+"; kbnode pipeline --profile compatible prints steps for it)")
	}
	return strings.Join(parts, ", ")
}

func newImageRollback(s term.Streams) *cobra.Command {
	var reason string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Let jobs run the previous image again",
		Long: `Let jobs run the previous image again. Afterward, kbnode image update --auto refuses
the image that you rolled back.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkReason(reason); err != nil {
				return err
			}
			return changeImages(cmd.Context(), s, "rollback", false, asJSON, func(ctx context.Context, u *image.Updater) (image.Result, error) {
				return u.Rollback(ctx, cmp.Or(reason, "rolled back by an operator"))
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason to show in kbnode image list")
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", imageChangeDoc)
	return cmd
}

func newImageList(s term.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the images that kbnode keeps, and those that it refuses",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := toRead(s, "image list"); err != nil {
				return err
			}
			u, closeUpdater, err := node.Images(warned(s))
			if err != nil {
				return err
			}
			defer closeUpdater()
			list, err := u.List(cmd.Context())
			if err != nil {
				return err
			}
			return imageListDoc.Print(s, asJSON, list, func() { printImages(s.Out, list, time.Now()) })
		},
	}
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", imageListDoc)
	return cmd
}

func printImages(w io.Writer, list image.List, now time.Time) {
	t := term.NewList(w, "Image", "Digest", "ID", "Size", "Here", "Canary")
	t.Spare = []string{"ID", "Size"}
	short := func(sum string) string {
		sum = strings.TrimPrefix(sum, "sha256:")
		return cmp.Or(sum[:min(12, len(sum))], "-")
	}
	known := false
	for _, i := range list.Images {
		known = known || i.Role == "current" && i.ID == list.StandsFor
		verdict := "-"
		if i.Canary != nil {
			verdict = canaryText(*i.Canary)
		}
		t.Row(i.Role, short(i.Digest), short(i.ID), text.Bytes(i.Size), term.Ago(i.Since, now), verdict)
	}
	if len(list.Images) > 0 {
		t.Print()
		if !known || len(list.Refused) > 0 {
			term.Printf(w, "\n")
		}
	}
	switch {
	case list.StandsFor == "":
		term.Printf(w, "%s %s is not on this node; type sudo kbnode image update\n", term.PaintWord(w, "warning:"), list.Name)
	case !known:
		term.Printf(w, "%s %s is %s, which no canary has tested; type sudo kbnode image update\n", term.PaintWord(w, "warning:"), list.Name, short(list.StandsFor))
	}
	for _, r := range list.Refused {
		term.Printf(w, "Refused: %s (%s ago): %s\n", short(r.Digest), term.Ago(r.Time, now), r.Reason)
	}
}

// autoWait is how long an unattended update waits for idle slots.
const autoWait = time.Hour

func newImageUpdate(s term.Streams) *cobra.Command {
	var o image.Options
	var bundle string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "update [IMAGE]",
		Short: "Fetch the newest image, test it in an idle slot, and let jobs run it",
		Long: `Fetch the newest image, test it in an idle slot, and let jobs run it.

The image is image.name of the configuration, or IMAGE, which then stays until an
update without IMAGE, or comes with --bundle. It is fetched while no slot runs a job.

Exit code 0 if jobs run the newest image or nothing could be done now, and 1 if it
was refused, or if --check finds a newer one, or that the name has moved.`,
		Example: `  sudo kbnode image update
  sudo kbnode image update ghcr.io/gpu-mode/kernelbot:v2
  sudo kbnode image update --bundle kbnode-bundle.tar`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case bundle != "" && (o.Auto || o.Check):
				return term.Usagef("--auto and --check ask the image's registry; leave out --bundle, or both of them")
			case bundle != "" && len(args) > 0:
				return term.Usagef("--bundle has one image; leave out %s", args[0])
			case len(args) > 0 && strings.HasSuffix(args[0], ".tar"):
				return s.Advise(args[0]+" is a file", s.With(slices.Index(s.Typed, args[0]), "--bundle", args[0]))
			}
			if err := term.CheckFile("--bundle", bundle); err != nil {
				return err
			}
			if o.Auto && len(args) > 0 {
				return term.Usagef("--auto fetches image.name of the configuration; leave out %s", args[0])
			}
			if len(args) > 0 {
				name, err := image.ParseName(args[0])
				if err != nil {
					return term.Usage(err)
				}
				o.From = name
			}
			if o.Auto {
				o.Wait = autoWait
			}
			return changeImages(cmd.Context(), s, "update", o.Auto, asJSON, func(ctx context.Context, u *image.Updater) (image.Result, error) {
				if bundle != "" {
					return loadImage(ctx, u, bundle, o)
				}
				return u.Update(ctx, o)
			})
		},
	}
	cmd.Flags().StringVar(&bundle, "bundle", "", "file of kbnode bundle create to take the image from")
	cmd.Flags().BoolVar(&o.Auto, "auto", false, "for cron: say nothing if nothing is new, give up after an hour of busy slots, respect decisions made by hand")
	cmd.Flags().BoolVar(&o.Check, "check", false, "only check for a newer one")
	cmd.Flags().BoolVar(&o.Beside, "now", false, "fetch it while jobs run, which disturbs their timings")
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", imageChangeDoc)
	return cmd
}

func loadImage(ctx context.Context, u *image.Updater, path string, o image.Options) (image.Result, error) {
	b, closeBundle, err := openBundle(path)
	if err != nil {
		return image.Result{}, err
	}
	defer closeBundle()
	return u.Load(ctx, node.ImageOf(b), o)
}

type buildFlags struct {
	variant, dockerfile string
	args                []string
	print               bool
}

func newImageBuild(s term.Streams) *cobra.Command {
	var o image.Options
	var f buildFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the image on this node, test it in an idle slot, and let jobs run it",
		Long: `Build the image on this node, test it in an idle slot, and let jobs run it.

A --dockerfile can copy from its directory. The value of a --build-arg
stays readable in the image: it is not for secrets. The build uses Docker's own builder,
without BuildKit. kbnode image update --auto leaves an image that was built here alone.`,
		Example: `  sudo kbnode image build
  sudo kbnode image build --build-arg EXTRA_PIP=einops==0.8.2
  sudo kbnode image build --dockerfile eval/Dockerfile`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.dockerfile != "" && (f.variant != "" || f.print) {
				return term.Usagef("--variant and --print are for kbnode's own Dockerfiles; leave them out, or --dockerfile")
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
				return u.Build(ctx, src, o)
			})
		},
	}
	cmd.Flags().StringVar(&f.variant, "variant", "", strings.Join(evaluation.Variants, ", ")+" (default: the one for the node's GPUs)")
	cmd.Flags().StringVar(&f.dockerfile, "dockerfile", "", "the Dockerfile to build (default: kbnode's own)")
	cmd.Flags().StringArrayVar(&f.args, "build-arg", nil, "set an ARG of the Dockerfile, `NAME=VALUE`; may be repeated")
	cmd.Flags().BoolVar(&f.print, "print", false, "only print kbnode's own Dockerfile")
	cmd.Flags().BoolVar(&o.Beside, "now", false, "build while jobs run, which disturbs their timings")
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", imageChangeDoc)
	_ = cmd.RegisterFlagCompletionFunc("variant", values(evaluation.Variants...))
	return cmd
}
