package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// isJobImage reports whether a name is that of the image that kbnode itself updates.
func (g *guard) isJobImage(name string) bool {
	if g.policy.KeptImage == "" {
		return false
	}
	want, err1 := docker.ParseRef(g.policy.KeptImage)
	got, err2 := docker.ParseRef(name)
	return err1 == nil && err2 == nil && want == got // the engine says what is wrong with a name
}

// All slots share Docker's disk: a pull that would leave less of it free than a tenth or minFree
// bytes, whichever is less, is refused or given up.
const (
	minFree  = 10 << 30
	pullPoll = time.Second
)

var errDiskFull = errors.New("kbnode: Docker's disk is nearly full, so jobs cannot pull images; tell the node's operator (docker image prune frees space)")

// lowOn reports whether too little is free on the disk of a directory.
func lowOn(dir string) bool {
	var st unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &st) != nil {
		return false // not a disk of this machine
	}
	return st.Bavail < min(st.Blocks/10, minFree/uint64(st.Frsize))
}

// pullStall is how long a pull may go on without progress: the engine says nothing while it checks a
// large layer.
const pullStall = 10 * time.Minute

var errPullStalled = fmt.Errorf("the Docker engine pulled nothing for %s", pullStall)

// provide pulls the job's image if the node lacks it, or the job wants the newest.
func (g *guard) provide(ctx context.Context, spec *job.Spec, image string, frames *slot.Frames) error {
	_, err := withTimeout(ctx, g.engineTime, func(ctx context.Context) (docker.ImageConfig, error) { return g.api.ImageConfig(ctx, image) })
	has := err == nil
	if err != nil && !errors.Is(err, docker.ErrNotFound) {
		return engineSays(err)
	}
	if has && (spec.Pull != job.PullAlways || g.isJobImage(image)) {
		return nil
	}
	if err := g.registries.mayPull(ctx, image); err != nil {
		return forbid("%s", err)
	}
	if err := g.pulled.used(image, !has); err != nil {
		return err
	}
	_ = frames.Note("pulls %s", image) // the reader may be gone
	engine, err := withTimeout(ctx, g.engineTime, func(ctx context.Context) (docker.Info, error) { return g.engine.ok(ctx, time.Now()) })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(pullStall, func() { cancel(errPullStalled) })
	defer stalled.Stop()
	if err := g.api.Pull(ctx, image, func(docker.Progress) {
		stalled.Reset(pullStall)
		if lowOn(engine.RootDir) {
			cancel(errDiskFull)
		}
	}); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if errors.Is(err, docker.ErrNotFound) {
			return forbid("%s", err)
		}
		return err
	}
	return nil
}
