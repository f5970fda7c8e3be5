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
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/image"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

const (
	maxContext    = 1 << 30 // bytes sent to a build
	maxDockerfile = 1 << 20
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

Without --dockerfile, it builds kbnode's own image for the node's GPUs: cuda for
NVIDIA, rocm for AMD, both with torch and Triton, or cpu, with numpy and g++. With
--dockerfile, the build can copy from the Dockerfile's directory, at most 1 GiB.
--build-arg sets an ARG of the Dockerfile, such as the base and versions. Its value
stays readable in the image, so do not use it for secrets.

The build uses Docker's own builder, without BuildKit, and needs the registries and
package mirrors that the Dockerfile names. kbnode image update --auto leaves an
image that was built here alone, unless it was pushed.`,
		Example: `  sudo kbnode image build
  sudo kbnode image build --build-arg EXTRA_PIP=nvidia-cutlass-dsl==4.3.5
  sudo kbnode image build --dockerfile eval/Dockerfile --push
  kbnode image build --variant rocm --print`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			src, text, err := f.source()
			if err != nil {
				return err
			}
			if f.print {
				_, err := io.WriteString(s.Out, text)
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

// source returns what the flags ask for, and the text of its Dockerfile.
func (f *buildFlags) source() (src image.Source, text string, err error) {
	switch {
	case f.dockerfile == "":
		src, text, err = f.ownSource()
	case f.variant != "" || f.print:
		return src, "", usagef("--variant and --print are for kbnode's own Dockerfiles; leave them out, or --dockerfile")
	default:
		src, text, err = fileSource(f.dockerfile)
	}
	if err == nil {
		src.Args, err = f.buildArgs(src.Name, text)
	}
	return src, text, err
}

func (f *buildFlags) ownSource() (image.Source, string, error) {
	if f.variant == "" {
		node, err := image.OpenMachine(nil)
		if err == nil {
			f.variant, err = image.Variant(node.Policies)
		}
		if err != nil {
			return image.Source{}, "", fmt.Errorf("choose an image: %w; or choose one with --variant %s", err, strings.Join(evaluation.Variants, ", "))
		}
	}
	text := evaluation.Dockerfile(f.variant)
	if text == "" {
		return image.Source{}, "", usagef("--variant %q: write one of %s", f.variant, strings.Join(evaluation.Variants, ", "))
	}
	return image.Source{
		Name: "kbnode's " + f.variant + ".Dockerfile", Dockerfile: "Dockerfile",
		Archive: func() (io.ReadCloser, error) { return oneFile("Dockerfile", text), nil },
	}, text, nil
}

// fileSource returns a Dockerfile with its directory.
func fileSource(name string) (src image.Source, text string, err error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return src, "", fmt.Errorf("read Dockerfile: %w", err)
	case info.Mode().Type() == fs.ModeSymlink:
		return src, "", usagef("--dockerfile %s is a symlink; name its target, whose directory the build uses", name)
	case !info.Mode().IsRegular():
		return src, "", usagef("--dockerfile %s is not a file; name the Dockerfile itself", name)
	case info.Size() > maxDockerfile:
		return src, "", usagef("--dockerfile %s has %s, too much for a Dockerfile; name the Dockerfile itself", name, bytesText(info.Size()))
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return src, "", fmt.Errorf("read Dockerfile: %w", err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return src, "", fmt.Errorf("read Dockerfile: %w", err)
	}
	return image.Source{
		Name: name, Dockerfile: filepath.Base(path),
		Archive: func() (io.ReadCloser, error) { return directory(filepath.Dir(path)) },
	}, string(content), nil
}

// buildArgs returns the build arguments by name. It refuses one that the Dockerfile does not
// know: Docker only warns, and builds something else.
func (f *buildFlags) buildArgs(name, dockerfile string) (map[string]string, error) {
	known, err := docker.BuildArgs(dockerfile)
	if err != nil {
		return nil, usagef("read %s: %w", name, err)
	}
	args := map[string]string{}
	var errs []error
	for _, arg := range f.args {
		key, value, ok := strings.Cut(arg, "=")
		switch old, twice := args[key]; {
		case !ok:
			errs = append(errs, fmt.Errorf("--build-arg %q: write NAME=VALUE", arg))
		case twice && old != value:
			errs = append(errs, fmt.Errorf("--build-arg %s is both %q and %q; give one of them", key, old, value))
		case !docker.TakesArg(known, key):
			errs = append(errs, fmt.Errorf("--build-arg %q: %s has no ARG of that name; %s", key, name, itHas(known)))
		}
		args[key] = value
	}
	return args, usage(errors.Join(errs...))
}

func itHas(args []string) string {
	if len(args) == 0 {
		return "it has none"
	}
	return "it has " + strings.Join(slices.Sorted(slices.Values(args)), ", ")
}

// oneFile returns an archive of one file.
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

// directory returns an archive of a directory: its files, directories and links, except those of
// git.
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
		return fmt.Errorf("%s has more than 1 GiB; put the Dockerfile into its own directory", root.Name())
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
