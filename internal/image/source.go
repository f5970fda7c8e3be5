package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/text"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

// maxDockerfile bounds a Dockerfile, in bytes.
const maxDockerfile = 1 << 20

// Source is what an image is built from.
type Source struct {
	Name       string                        // description, for messages
	Dockerfile string                        // its path in the archive
	Text       string                        // of the Dockerfile
	Args       map[string]string             // build arguments that the Dockerfile declares
	Archive    func() (io.ReadCloser, error) // opens a tar archive at its beginning
}

// OwnSource returns kbnode's own Dockerfile of a variant; "" is the one for the node's GPUs.
func OwnSource(variant string, args []string) (Source, error) {
	names := strings.Join(evaluation.Variants, ", ")
	if variant == "" {
		node, err := OpenMachine()
		if err == nil {
			variant, err = Variant(node.Policies)
		}
		if err != nil {
			return Source{}, fmt.Errorf("choose an image: %w; or choose one with --variant %s", err, names)
		}
	}
	body := evaluation.Dockerfile(variant)
	if body == "" {
		return Source{}, config.BadInput("--variant %q: write one of %s", variant, names)
	}
	return Source{
		Name: "kbnode's " + variant + ".Dockerfile", Dockerfile: "Dockerfile", Text: body,
		Archive: func() (io.ReadCloser, error) { return OneFile("Dockerfile", body) },
	}.with(args)
}

// FileSource returns a Dockerfile with its directory.
func FileSource(name string, args []string) (Source, error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return Source{}, fmt.Errorf("read Dockerfile: %w", err)
	case info.Mode().Type() == fs.ModeSymlink:
		return Source{}, config.BadInput("--dockerfile %s is a symlink; name its target, whose directory the build uses", name)
	case !info.Mode().IsRegular():
		return Source{}, config.BadInput("--dockerfile %s is not a file; name the Dockerfile itself", name)
	case info.Size() > maxDockerfile:
		return Source{}, config.BadInput("--dockerfile %s has %s, too much for a Dockerfile; name the Dockerfile itself", name, text.Bytes(info.Size()))
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return Source{}, fmt.Errorf("read Dockerfile: %w", err)
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return Source{}, fmt.Errorf("read Dockerfile: %w", err)
	}
	return Source{
		Name: name, Dockerfile: filepath.Base(path), Text: string(body),
		Archive: func() (io.ReadCloser, error) { return Directory(filepath.Dir(path)) },
	}.with(args)
}

// with adds build arguments. It refuses one that the Dockerfile does not know: Docker only warns,
// and builds something else.
func (s Source) with(args []string) (Source, error) {
	known, err := docker.BuildArgs(s.Text)
	if err != nil {
		return s, config.BadInput("read %s: %w", s.Name, err)
	}
	s.Args = map[string]string{}
	var errs []error
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		switch old, twice := s.Args[key]; {
		case !ok:
			errs = append(errs, config.BadInput("--build-arg %q: write NAME=VALUE", arg))
		case twice && old != value:
			errs = append(errs, config.BadInput("--build-arg %s is both %q and %q; give one of them", key, old, value))
		case !docker.TakesArg(known, key):
			has := "it has none"
			if len(known) > 0 {
				has = "it has " + strings.Join(slices.Sorted(slices.Values(known)), ", ")
			}
			errs = append(errs, config.BadInput("--build-arg %q: %s has no ARG of that name; %s", key, s.Name, has))
		}
		s.Args[key] = value
	}
	return s, errors.Join(errs...)
}
