package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// maxOutput bounds how much of a container's output is kept, in bytes.
const maxOutput = 1 << 20

// Import makes an image of this name from an archive of its files.
func (e *Engine) Import(ctx context.Context, ref string, archive io.Reader) error {
	answer, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: archive, SourceName: "-"}, ref, client.ImageImportOptions{})
	if err != nil {
		return e.wrap("import image "+ref, err)
	}
	// The engine is done when its answer ends.
	_, err = io.Copy(io.Discard, answer)
	if err = errors.Join(err, answer.Close()); err != nil {
		return e.wrap("import image "+ref, err)
	}
	return nil
}

// Run describes a container to make.
type Run struct {
	Name, Image string
	Cmd         []string
	Entrypoint  []string // nil keeps the image's
	Env         []string // NAME=value
	Network     string   // "" lets the engine choose
	Binds       []string // source:target
}

// Create makes a container but does not start it.
func (e *Engine) Create(ctx context.Context, r Run) (id string, err error) {
	host := &container.HostConfig{Binds: r.Binds, NetworkMode: container.NetworkMode(r.Network)}
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: r.Image, Cmd: r.Cmd, Entrypoint: r.Entrypoint, Env: r.Env}, HostConfig: host, Name: r.Name,
	})
	if err != nil {
		return "", e.wrap("create container "+r.Name, err)
	}
	return made.ID, nil
}

// Start starts a container.
func (e *Engine) Start(ctx context.Context, id string) error {
	if _, err := e.api.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return e.wrap("start container "+id, err)
	}
	return nil
}

// Ended is the result of a container.
type Ended struct {
	ExitCode  int64
	OOMKilled bool
	Stdout    []byte
	Stderr    []byte
}

// Wait waits until a container ends and reads up to 1 MiB of its output.
func (e *Engine) Wait(ctx context.Context, id string) (Ended, error) {
	if err := e.AwaitEnd(ctx, id); err != nil {
		return Ended{}, err
	}
	in, err := e.Inspect(ctx, id)
	if err != nil {
		return Ended{}, err
	}
	var out, errs bytes.Buffer
	logs, err := e.api.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	if err == nil {
		_, err = stdcopy.StdCopy(&out, &errs, io.LimitReader(logs, maxOutput))
		err = errors.Join(err, logs.Close())
	}
	if err != nil {
		return Ended{}, e.wrap("read output of container "+id, err)
	}
	ended := Ended{Stdout: out.Bytes(), Stderr: errs.Bytes()}
	if in.State != nil {
		ended.ExitCode, ended.OOMKilled = int64(in.State.ExitCode), in.State.OOMKilled
	}
	return ended, nil
}

// Inspect returns all that the engine knows about a container.
func (e *Engine) Inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	res, err := e.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return container.InspectResponse{}, e.wrap("inspect container "+id, err)
	}
	return res.Container, nil
}

// Discard kills and removes a container. It is not an error if the container is gone.
func (e *Engine) Discard(ctx context.Context, id string) error {
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{RemoveVolumes: true, Force: true})
	switch {
	case err == nil, errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		return e.gone(ctx, id)
	}
	return e.wrap("remove container "+id, err)
}

// Trace is an object of the engine that has a name.
type Trace struct {
	Kind string // "container", "image", "network", "volume"
	ID   string // the ID or name to remove it by
	Name string
}

// Traces lists everything whose name contains text, containers first.
func (e *Engine) Traces(ctx context.Context, text string) ([]Trace, error) {
	var found []Trace
	add := func(kind, id, name string) {
		if strings.Contains(name, text) {
			found = append(found, Trace{kind, id, strings.TrimPrefix(name, "/")})
		}
	}
	containers, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, e.wrap("list containers", err)
	}
	for _, c := range containers.Items {
		for _, name := range c.Names {
			add("container", c.ID, name)
		}
	}
	images, err := e.api.ImageList(ctx, client.ImageListOptions{All: true})
	if err != nil {
		return nil, e.wrap("list images", err)
	}
	for _, i := range images.Items {
		for _, tag := range i.RepoTags {
			add("image", tag, tag)
		}
	}
	networks, err := e.api.NetworkList(ctx, client.NetworkListOptions{})
	if err != nil {
		return nil, e.wrap("list networks", err)
	}
	for _, n := range networks.Items {
		add("network", n.ID, n.Name)
	}
	volumes, err := e.api.VolumeList(ctx, client.VolumeListOptions{})
	if err != nil {
		return nil, e.wrap("list volumes", err)
	}
	for _, v := range volumes.Items {
		add("volume", v.Name, v.Name)
	}
	return found, nil
}

// Erase removes what Traces found.
func (e *Engine) Erase(ctx context.Context, t Trace) error {
	var err error
	switch t.Kind {
	case "container":
		return e.Discard(ctx, t.ID)
	case "image":
		_, err = e.api.ImageRemove(ctx, t.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	case "network":
		_, err = e.api.NetworkRemove(ctx, t.ID, client.NetworkRemoveOptions{})
	case "volume":
		_, err = e.api.VolumeRemove(ctx, t.ID, client.VolumeRemoveOptions{Force: true})
	default:
		err = fmt.Errorf("%q is not a kind of trace", t.Kind)
	}
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return e.wrap("remove "+t.Kind+" "+t.Name, err)
}
