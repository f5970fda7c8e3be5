package image

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
)

// ErrNoRegistry means that the image that jobs run was built or loaded on this node.
var ErrNoRegistry = errors.New("it does not come from a registry")

// ErrUnrecorded means that kbnode did not fetch the image. That the engine knows a digest of it proves no registry:
// containerd's store also knows one of what was built or loaded.
var ErrUnrecorded = errors.New("no kbnode image update fetched the image, so it may have been made or loaded here")

// Again pulls the image that jobs run by its digest, as a machine without it would, and
// returns the digest. Layers that are already here are not sent again, and no name moves.
// The error is also ErrUnrecorded if that fails for an image that kbnode did not fetch.
func (u *Updater) Again(ctx context.Context) (digest string, err error) {
	release, err := u.open(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	have, err := u.Engine.Image(ctx, u.Name)
	if err != nil {
		return "", err
	}
	if cur := u.state.Current; cur != nil && cur.ID == have.ID {
		if cur.Digest == "" {
			return "", ErrNoRegistry
		}
		ref, err := docker.WithDigest(cur.From, cur.Digest)
		if err != nil {
			return "", err
		}
		return cur.Digest, u.Engine.Pull(ctx, ref, u.report)
	}
	for _, ref := range have.Digests { // docker pull fetched it, or a job's
		digest := digestOf(ref)
		if own, err := docker.WithDigest(u.Name, digest); err != nil || own != ref {
			continue
		}
		if err := u.Engine.Pull(ctx, ref, u.report); err != nil {
			return "", fmt.Errorf("%w; %w", err, ErrUnrecorded)
		}
		return digest, nil
	}
	return "", ErrNoRegistry
}

// Evaluation is the result of the image in one slot.
type Evaluation struct {
	Canary
	Index  int
	Missed string // why it was not run, or not to its end; "" if it was
}

// Evaluate runs the image that jobs use as a canary in every slot: one after the other, or
// all at once. A canary gives way to a job.
func (u *Updater) Evaluate(ctx context.Context, atOnce bool) ([]Evaluation, error) {
	release, err := u.open(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	have, err := u.Engine.Image(ctx, u.Name)
	if err != nil {
		return nil, err
	}
	slots, err := u.Node.Slots(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Evaluation, len(slots))
	var group sync.WaitGroup
	for i, slot := range slots {
		run := func() { all[i] = u.evaluate(ctx, slot, have.ID) }
		if atOnce {
			group.Go(run)
		} else {
			run()
		}
	}
	group.Wait()
	return all, ctx.Err()
}

func (u *Updater) evaluate(ctx context.Context, slot Slot, id string) Evaluation {
	e := Evaluation{Index: slot.Index}
	switch {
	case slot.Away != "":
		e.Missed = slot.Away
	case slot.Owes != "": // the daemon evaluates it
		e.Missed = slot.Owes
	case slot.Job != "":
		e.Missed = slot.Job + " runs in it"
	default:
		var err error
		switch e.Canary, err = u.Node.Canary(ctx, slot, id); {
		case errors.Is(err, errJob):
			e.Missed = "a job started and went first"
		case err != nil:
			e.Missed = fmt.Sprint(err)
		}
	}
	e.Slot = slot.Name
	return e
}
