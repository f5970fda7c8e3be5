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

// Discard kills and removes a container. It is not an error if the container is already gone, or has ended
// and can never start again: one that is being removed, perhaps forever, and one that is dead, because the
// engine could not remove all of its files. The engine keeps the name of either.
func (e *Engine) Discard(ctx context.Context, id string) error {
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{RemoveVolumes: true, Force: true})
	switch {
	case err == nil || errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err): // it is being removed, which may begin before it has ended
		if err = e.await(ctx, id); errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	}
	if left, err := e.Inspect(ctx, id); err == nil && left.State != nil && left.State.Dead {
		return nil
	}
	return e.wrap("remove container "+id, err)
}
