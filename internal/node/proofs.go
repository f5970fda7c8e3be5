package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Evaluate implements daemon.Node with the image that the node's pipelines name, by its ID: an update may move the name.
func (l *live) Evaluate(ctx context.Context, k int) (passed bool, says string, err error) {
	policy, err := slot.ReadPolicy("/", k)
	if err != nil {
		return false, "", err
	}
	engine, err := docker.New(policy.DockerSocket)
	if err != nil {
		return false, "", err
	}
	have, err := engine.Image(ctx, policy.NodeImage)
	_ = engine.Close()
	if errors.Is(err, docker.ErrNotFound) {
		return withoutImage(policy.NodeImage, plan.ImageDir)
	}
	if err != nil {
		return false, "", err
	}
	return (&image.Machine{}).Prove(ctx, policy, have.ID)
}

// withoutImage is Evaluate on a node that does not have the image now. One that kbnode image update never fetched would
// keep the GPU out of service forever; another one is missed.
func withoutImage(name, dir string) (passed bool, says string, err error) {
	kept, err := image.Read(dir)
	if err != nil {
		return false, "", err
	}
	if kept.Current == nil || kept.Name != name {
		return true, fmt.Sprintf("nothing was tried, because this node has no image %s; sudo kbnode image update fetches it", name), nil
	}
	return false, "", fmt.Errorf("the image %s is missing; type sudo kbnode image update", name)
}
