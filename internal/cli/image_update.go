package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/image"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

const (
	// autoWait is how long an update that nobody looks at waits for idle slots.
	autoWait = time.Hour
	// maxContext bounds what a build is sent, in bytes.
	maxContext = 1 << 30
)

func newImageUpdate(s Streams) *cobra.Command {
	var o image.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "update [IMAGE]",
		Short: "Fetch the newest image, try it in an idle slot, and let jobs run it",
		Long: `Fetch the newest image, try it in an idle slot, and let jobs run it.

The image is the one that image.name of the configuration says, or IMAGE, which
then stays until an update without IMAGE. It is fetched while no slot runs a
job, and jobs run it only after it has evaluated a small submission well; else
they go on with the image that they had. Running jobs keep theirs.

Exit code 0 when jobs run the newest image or nothing could be done now, and 1
when it was not taken, or when --check finds a newer one.`,
		Example: `  sudo kbnode image update
  sudo kbnode image update ghcr.io/gpu-mode/kernelbot:v2
  sudo kbnode image update --check`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Auto && len(args) > 0 {
				return usagef("--auto fetches what image.name of the configuration says; leave %s out", args[0])
			}
			if len(args) > 0 {
				name, err := docker.ParseRef(args[0])
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
	cmd.Flags().BoolVar(&o.Auto, "auto", false, "for cron: say nothing when nothing changed, give up after an hour of busy slots, leave what was decided by hand")
	cmd.Flags().BoolVar(&o.Check, "check", false, "only say whether there is a newer one")
	cmd.Flags().BoolVar(&o.Beside, "now", false, "fetch it beside running jobs, whose timings that disturbs")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newImageBuild(s Streams) *cobra.Command {
	var o image.Options
	var dockerfile string
	var push, asJSON bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the image on this node, try it in an idle slot, and let jobs run it",
		Long: `Build the image on this node, try it in an idle slot, and let jobs run it.

Without --dockerfile it is an image with Python, CUDA's compiler and torch. With
it, everything in the Dockerfile's directory can be copied from, 1 GiB at most.
Docker's own builder is used, without BuildKit. The build needs the registries
and package mirrors that the Dockerfile names. kbnode image update --auto leaves
what was built here alone, unless it was pushed.`,
		Example: `  sudo kbnode image build
  sudo kbnode image build --dockerfile eval/Dockerfile --push`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			src := image.Source{Dockerfile: "Dockerfile", Archive: func() (io.ReadCloser, error) { return oneFile("Dockerfile", evaluation.Dockerfile), nil }}
			if dockerfile != "" {
				name, err := dockerfileOf(dockerfile)
				if err != nil {
					return err
				}
				src = image.Source{Dockerfile: filepath.Base(name), Archive: func() (io.ReadCloser, error) { return directory(filepath.Dir(name)) }}
			}
			return changeImages(cmd.Context(), s, "build", false, asJSON, func(ctx context.Context, u *image.Updater) (image.Result, error) {
				return u.Build(ctx, src, push, o)
			})
		},
	}
	cmd.Flags().StringVar(&dockerfile, "dockerfile", "", "the Dockerfile to build (default: kbnode's own)")
	cmd.Flags().BoolVar(&push, "push", false, "send it to its registry when it was tried, with root's docker login")
	cmd.Flags().BoolVar(&o.Beside, "now", false, "build beside running jobs, whose timings that disturbs")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// oneFile is an archive of one file.
func oneFile(name, content string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(t, content)
		}
		_ = w.CloseWithError(errors.Join(err, t.Close()))
	}()
	return r
}

// directory is an archive of a directory: its files, directories and links, but
// for git's.
func directory(dir string) (io.ReadCloser, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the build's files: %w", err)
	}
	r, w := io.Pipe()
	go func() {
		defer func() { _ = root.Close() }()
		t := tar.NewWriter(w)
		left := int64(maxContext)
		err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == ".git":
				return fs.SkipDir
			case name == ".":
				return nil
			}
			return pack(root, t, name, d, &left)
		})
		if err = errors.Join(err, t.Close()); err != nil {
			err = fmt.Errorf("read the build's files: %w", err)
		}
		_ = w.CloseWithError(err)
	}()
	return r, nil
}

func pack(root *os.Root, t *tar.Writer, name string, d fs.DirEntry, left *int64) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if info.Mode().Type() == fs.ModeSymlink {
		if link, err = root.Readlink(name); err != nil {
			return err
		}
	} else if !info.Mode().IsRegular() && !info.IsDir() {
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if *left -= h.Size + 1024; *left < 0 {
		return fmt.Errorf("%s holds more than 1 GiB; put the Dockerfile into a directory of its own", root.Name())
	}
	if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(t, io.LimitReader(f, h.Size))
	return err
}
