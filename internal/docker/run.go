package docker

import (
	"context"
	"errors"
	"io"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// Import makes an image of this name from an archive of its files.
func (e *Engine) Import(ctx context.Context, ref string, archive io.Reader) error {
	answer, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: archive, SourceName: "-"}, ref, client.ImageImportOptions{})
	if err != nil {
		return e.wrap("import image "+ref, err)
	}
	// The engine is done when its answer ends.
	_, err = io.Copy(io.Discard, answer)
	return e.wrap("import image "+ref, errors.Join(err, answer.Close()))
}

// Inspect returns all that the engine knows about a container.
func (e *Engine) Inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	res, err := e.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return container.InspectResponse{}, e.wrap("inspect container "+id, err)
	}
	return res.Container, nil
}

// Discard kills and removes a container. It is not an error if the container is already
// gone, or is being removed because it was run with --rm.
func (e *Engine) Discard(ctx context.Context, id string) error {
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{RemoveVolumes: true, Force: true})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		if err = e.await(ctx, id, container.WaitConditionRemoved); errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	}
	return e.wrap("remove container "+id, err)
}
