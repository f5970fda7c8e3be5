package bundle_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/test/bundletest"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	evalImage  = "ghcr.io/gpu-mode/kernelbot:latest"
	evalDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// engine is a Docker engine with one image.
type engine struct {
	t     *testing.T
	arch  string
	store docker.Info
	saves func() io.Reader // what it saves
	names map[string]bool  // of kbnode
	named string           // ID of the image with them
	saved int
}

func (e *engine) Info(context.Context) (docker.Info, error) { return e.store, nil }

func (e *engine) Image(_ context.Context, ref string) (docker.Image, error) {
	if ref == bundle.ImageName && e.names[ref] {
		return docker.Image{ID: e.named}, nil
	}
	if ref != evalImage {
		return docker.Image{}, fmt.Errorf("look up image %s: %w", ref, docker.ErrNotFound)
	}
	return docker.Image{ID: bundletest.ID, Arch: e.arch, Names: []string{evalImage}, Digests: []string{"other.example/x@" + bundletest.ID, "ghcr.io/gpu-mode/kernelbot@" + evalDigest}}, nil
}

func (e *engine) Tag(_ context.Context, source, name string) error {
	must.Equal(e.t, bundletest.ID, source)
	e.names[name], e.named = true, source
	return nil
}

func (e *engine) Untag(ctx context.Context, name string) error {
	delete(e.names, name)
	return ctx.Err() // of a command that was interrupted, the engine would do nothing
}

func (e *engine) Save(_ context.Context, ref, arch string) (io.ReadCloser, error) {
	if !e.names[ref] || ref != bundle.ImageName {
		e.t.Errorf("saved as %s, with the names %v", ref, e.names)
	}
	e.saved++
	return io.NopCloser(e.saves()), nil
}

// agentOf writes a program that answers like a buildkite-agent.
func agentOf(t *testing.T, version string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "buildkite-agent")
	must.Program(t, name, "#!/bin/sh\necho buildkite-agent version "+version+", build 1\n")
	return name
}

// TestCreate makes a bundle that a node takes, or leaves nothing behind.
func TestCreate(t *testing.T) {
	t.Parallel()
	good := bundletest.Image(bundletest.Saved(runtime.GOARCH, bundle.ImageName)...)
	agent := agentOf(t, "3.139.0")
	for _, tt := range []struct {
		name   string
		change func(o *bundle.Options, e *engine)
		says   string // "" is made
	}{
		{name: "good"},
		{name: "of an engine that does not say for what an image is", change: func(_ *bundle.Options, e *engine) { e.arch = "" }},
		{name: "of a store that has images for several machines", change: func(_ *bundle.Options, e *engine) { e.arch, e.store.Snapshotter = other(), true }},
		{name: "with the agent's version", change: func(o *bundle.Options, _ *engine) { o.AgentVersion = "3.139.0" }},
		{name: "an image that is not there", change: func(o *bundle.Options, _ *engine) { o.Image = "python:3" },
			says: "look up image docker.io/library/python:3: not found; type docker pull --platform linux/" + runtime.GOARCH + " docker.io/library/python:3 first"},
		{name: "an ID", change: func(o *bundle.Options, _ *engine) { o.Image = bundletest.ID }, says: "is the ID of an image; give it a name"},
		{name: "an image for another machine", change: func(_ *bundle.Options, e *engine) { e.arch = other() }, says: "is for " + other() + " here"},
		{name: "an image that is for another machine after all", change: func(_ *bundle.Options, e *engine) {
			e.saves = func() io.Reader {
				return strings.NewReader(bundletest.Image(bundletest.Saved(other(), bundle.ImageName)...))
			}
		}, says: `its image is for "linux/` + other()},
		{name: "an image that is saved with its own name", change: func(_ *bundle.Options, e *engine) {
			e.saves = func() io.Reader {
				return strings.NewReader(bundletest.Image(bundletest.Saved(runtime.GOARCH, evalImage)...))
			}
		}, says: `its image is named "` + evalImage},
		{name: "an engine that goes away", change: func(_ *bundle.Options, e *engine) {
			e.saves = func() io.Reader {
				return io.MultiReader(strings.NewReader(good[:700]), iotest.ErrReader(io.ErrUnexpectedEOF))
			}
		}, says: "write bundle: image.tar: unexpected EOF"},
		{name: "another program in place of kbnode", change: func(o *bundle.Options, _ *engine) { o.Kbnode = agent }, says: "is not kbnode; name its program for " + runtime.GOARCH},
		{name: "a name that another kbnode gave to another image", change: func(_ *bundle.Options, e *engine) {
			e.saves = func() io.Reader { e.named = evalDigest; return strings.NewReader(good) }
		}, says: "another kbnode of this machine used " + bundle.ImageName},
		{name: "a name that another kbnode took back", change: func(_ *bundle.Options, e *engine) {
			e.saves = func() io.Reader { delete(e.names, bundle.ImageName); return strings.NewReader(good) }
		}, says: "another kbnode of this machine used " + bundle.ImageName},
		{name: "no agent", change: func(o *bundle.Options, _ *engine) { o.AgentBinary = "/bin/false" }, says: "/bin/false is not a buildkite-agent"},
		{name: "another agent's version", change: func(o *bundle.Options, _ *engine) { o.AgentVersion = "3.138.3" }, says: "is buildkite-agent 3.139.0; leave out --agent-version 3.138.3"},
		{name: "a directory that is not there", change: func(o *bundle.Options, _ *engine) { o.Path += "/x/b.tar" }, says: "write bundle: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			e := &engine{t: t, arch: runtime.GOARCH, names: map[string]bool{}, saves: func() io.Reader { return iotest.HalfReader(strings.NewReader(good)) }}
			o := bundle.Options{
				Path: filepath.Join(dir, "b.tar"), Arch: runtime.GOARCH, Version: "1.2.3", AgentBinary: agent, Image: evalImage,
				Say: t.Logf, Progress: func(int64) {},
			}
			if tt.change != nil {
				tt.change(&o, e)
			}
			made, err := bundle.Create(t.Context(), e, o)
			must.Err(t, err, tt.says)
			must.Equal(t, 0, len(e.names))
			if tt.says != "" {
				left, err := os.ReadDir(dir)
				must.Do(t, err)
				must.Equal(t, 0, len(left))
				return
			}
			b, err := bundle.Open(o.Path)
			must.Do(t, err)
			defer b.Close() //nolint:errcheck // opened for reading
			must.Do(t, b.Check(t.Context(), true, func(int64, int64) {}))
			must.Equal(t, made.Manifest, b.Manifest)
			must.Equal(t, made.Fingerprint, b.Fingerprint)
			must.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte(must.Read(t, o.Path)))), made.SHA256)
			image, err := io.ReadAll(b.OpenImage())
			must.Do(t, err)
			if string(image) != good || b.Kbnode.Version != "1.2.3" || b.Agent.Version != "3.139.0" || b.Image.Name != evalImage || b.Image.Digest != evalDigest {
				t.Errorf("%+v, with an image of %d bytes", b.Manifest, len(image))
			}
		})
	}
}

// TestCreateInterrupted leaves neither a file nor a name in the engine.
func TestCreateInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, interrupt := context.WithCancel(t.Context())
	e := &engine{t: t, arch: runtime.GOARCH, names: map[string]bool{}, saves: func() io.Reader { interrupt(); return strings.NewReader("x") }}
	_, err := bundle.Create(ctx, e, bundle.Options{
		Path: filepath.Join(dir, "b.tar"), Arch: runtime.GOARCH, AgentBinary: agentOf(t, "3.139.0"), Image: evalImage, Say: t.Logf, Progress: func(int64) {},
	})
	if !errors.Is(err, context.Canceled) || len(e.names) > 0 {
		t.Errorf("%v; the image has the names %v", err, e.names)
	}
	left, err := os.ReadDir(dir)
	must.Do(t, err)
	must.Equal(t, 0, len(left))
}
