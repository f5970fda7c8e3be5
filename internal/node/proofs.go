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

// Evaluate implements daemon.Node with an image by its ID: an update may move the name.
func (l *live) Evaluate(ctx context.Context, k int) (passed bool, says string, err error) {
	policy, err := slot.ReadPolicy("/", k)
	if err != nil {
		return false, "", err
	}
	engine, err := docker.New(policy.DockerSocket)
	if err != nil {
		return false, "", err
	}
	id, err := imageToProve(ctx, engine.Image, policy.NodeImage, plan.ImageDir)
	_ = engine.Close()
	if err != nil {
		return false, "", err
	}
	if id == "" {
		return withoutImage(policy.NodeImage, plan.ImageDir)
	}
	return (&image.Machine{}).Prove(ctx, policy, id)
}

// imageToProve returns the ID of the image that the node's pipelines name, or, until an update has brought that, as after a
// change of image.name, of the one that jobs had before, if its canary passed. "" means that the engine has neither.
func imageToProve(ctx context.Context, find func(context.Context, string) (docker.Image, error), name, dir string) (id string, err error) {
	have, err := find(ctx, name)
	if !errors.Is(err, docker.ErrNotFound) {
		return have.ID, err
	}
	kept, err := image.Read(dir)
	if err != nil {
		return "", err
	}
	for _, id := range kept.Proven() {
		have, err := find(ctx, id)
		if !errors.Is(err, docker.ErrNotFound) {
			return have.ID, err
		}
	}
	return "", nil
}

// withoutImage is Evaluate on a node that has no image to prove with. One that kbnode image update never fetched would
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
