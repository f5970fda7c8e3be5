package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// sameImage reports whether two names are those of one image. "" is the name of none.
func sameImage(a, b string) bool {
	a, err1 := docker.ParseRef(a)
	b, err2 := docker.ParseRef(b)
	return err1 == nil && err2 == nil && a == b // the engine says what is wrong with a name
}

// errDiskFull ends or refuses a pull: all slots share Docker's disk.
var errDiskFull = errors.New("Docker's disk is nearly full, so jobs cannot pull images; tell the node's operator (" + docker.RoomAdvice + ")") //nolint:staticcheck // Docker is a name

// engineName returns an image's name in the one form that the engine takes for nothing else: 1d and sha256:1d could
// also begin the ID of an image that the job may not run. Only the node's root may name an image by its ID.
func engineName(image string, root bool) (string, error) {
	if root && docker.IsID(image) {
		return image, nil
	}
	full, err := docker.ParseRef(image)
	if err != nil {
		return "", forbid("%s", err)
	}
	return full, nil
}

// provide returns the job's image, which it pulls if the node lacks it, or the job wants the newest. It pulls without
// the node's credentials: a pipeline chooses the image, and must not read what only the node may.
func (g *guard) provide(ctx context.Context, engine docker.Info, spec *job.Spec, image string, frames *slot.Frames) (docker.ImageConfig, error) {
	find := func(ctx context.Context) (docker.ImageConfig, error) {
		return withTimeout(ctx, g.engineTime, func(ctx context.Context) (docker.ImageConfig, error) {
			return g.imageConfig(ctx, engine.Store(), image)
		})
	}
	before, err := find(ctx)
	has := err == nil
	always := spec.Pull == job.PullAlways
	if always && sameImage(image, g.policy.KeptImage) {
		always = false
		if has {
			_ = frames.Note("kbnode keeps %s up to date, so it is not pulled", image) // the reader may be gone
		}
	}
	pulls := errors.Is(err, docker.ErrNotFound) || always && (has || errors.Is(err, docker.ErrTooLarge))
	if !pulls {
		return before, err
	}
	err = g.registries.mayPull(ctx, image)
	if lost, is := errors.AsType[*unresolvedError](err); is && !lost.absent || errors.Is(err, errOwnAddresses) {
		return before, err
	}
	if err != nil {
		return before, forbid("%s", err)
	}
	_ = frames.Note("pulls %s", image) // the reader may be gone

	disks := []string{engine.RootDir, engine.ContainerdDir()} // which may be one
	full := func() bool {
		return slices.ContainsFunc(disks, func(dir string) bool {
			room, err := g.room(dir)
			return err == nil && room < 0 // else it is no disk of this machine
		})
	}
	pulling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // the engine reports nothing while it writes the zeros of a sparse file
		for !full() && limit.Sleep(pulling, docker.RoomPoll) == nil {
		}
		cancel(errDiskFull)
	}()
	if err = g.api.PullAnonymously(pulling, image, func(docker.Progress) {}); err != nil {
		if p, is := errors.AsType[*docker.PullError](err); is {
			g.log.Warn("image not pulled", "image", image, "err", text.Line(p.Whole.Error(), 2000))
		}
		err = cmp.Or(context.Cause(pulling), err)
	}
	switch refused := errors.Is(err, docker.ErrRefused); {
	case full():
		err = errDiskFull // maybe before the pull could be stopped
	case errors.Is(err, docker.ErrMissing):
		return before, forbid("%s; push it to the registry, or name another image", text.Line(err.Error(), 500))
	case refused && has: // an operator gave it to the node, with a login
		_ = frames.Note("uses the image that the node has: %v", err)
		return before, nil
	case refused:
		return before, fmt.Errorf("%w; jobs pull without a login, so an image that needs one must be on the node before: "+
			"ask the node's operator for sudo kbnode image update if it is image.name, or else sudo docker pull", err)
	}
	// That the job is canceled is no reason to leave an image that no job may bring.
	ctx = context.WithoutCancel(ctx)
	after, lost := find(ctx)
	large, many := errors.Is(lost, docker.ErrTooLarge), after.Names > maxImageNames && !sameImage(image, g.policy.KeptImage)
	if (large || many || errors.Is(err, errDiskFull)) && after.ID != before.ID && after.ID != "" {
		g.unpull(ctx, image, before.ID, after.ID, many)
	}
	if large && after.ID != before.ID {
		if err := g.api.ForgetEvents(ctx); err != nil {
			g.log.Warn("events not forgotten", "err", err)
		}
	}
	return after, cmp.Or(err, lost)
}

// maxImageNames is how many names an image keeps after a pull: the engine tells all of them with each answer. The job
// has the image all the same: others may have chosen the names.
const maxImageNames = 256

// imageConfig returns what an image sets for its containers. It asks the engine only if the image is not too large.
func (g *guard) imageConfig(ctx context.Context, at docker.Store, image string) (docker.ImageConfig, error) {
	id, err := at.Check(image)
	if err != nil {
		return docker.ImageConfig{ID: id}, err
	}
	config, err := g.api.ImageConfig(ctx, cmp.Or(id, image))
	if err == nil && id == "" {
		_, err = at.Check(config.ID)
	}
	return config, err
}

// unpull removes what a pull brought, and gives the name back to the image that had it. keep leaves an image that has
// other names.
func (g *guard) unpull(ctx context.Context, image, before, after string, keep bool) {
	var err error
	if before != "" {
		err = g.api.Tag(ctx, before, image)
		image = after
	}
	if before == "" || !keep {
		err = errors.Join(err, g.api.Untag(ctx, image))
	}
	if err != nil {
		g.log.Warn("image left behind", "image", image, "err", err)
	}
}
