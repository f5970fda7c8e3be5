package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

// sameImage reports whether two names are those of one image. "" is the name of none.
func sameImage(a, b string) bool {
	a, err1 := docker.ParseRef(a)
	b, err2 := docker.ParseRef(b)
	return err1 == nil && err2 == nil && a == b // the engine says what is wrong with a name
}

// errDiskFull ends or refuses a pull: all slots share Docker's disk.
var errDiskFull = errors.New("kbnode: Docker's disk is nearly full, so jobs cannot pull images; tell the node's operator (" + docker.RoomAdvice + ")")

// provide pulls the job's image if the node lacks it, or the job wants the newest. It pulls without the node's
// credentials: a pipeline chooses the image, and must not read what only the node may.
func (g *guard) provide(ctx context.Context, spec *job.Spec, image string, frames *slot.Frames) error {
	config := func(ctx context.Context) (docker.ImageConfig, error) { return g.api.ImageConfig(ctx, image) }
	before, err := withTimeout(ctx, g.engineTime, config)
	has := err == nil
	if err != nil && !errors.Is(err, docker.ErrNotFound) {
		return err
	}
	if has && (spec.Pull != job.PullAlways || sameImage(image, g.policy.KeptImage)) {
		return nil
	}
	err = g.registries.mayPull(ctx, image)
	if lost, is := errors.AsType[*unresolvedError](err); is && !lost.absent {
		return err
	}
	if err != nil {
		return forbid("%s", err)
	}
	_ = frames.Note("pulls %s", image) // the reader may be gone
	engine, err := g.engineInfo(ctx)
	if err != nil {
		return err
	}
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
		for !full() && limit.Sleep(pulling, roomPoll) == nil {
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
	case refused && has: // an operator gave it to the node, with a login
		_ = frames.Note("uses the image that the node has: %v", err)
		return nil
	case refused:
		return fmt.Errorf("%w; jobs pull without a login, so an image that needs one must be on the node before: "+
			"ask the node's operator for sudo kbnode image update if it is image.name, or else sudo docker pull", err)
	default:
		return err
	}
	// It may have filled the disk before it could be stopped. That the job is canceled is no reason to leave it.
	ctx = context.WithoutCancel(ctx)
	if after, lost := withTimeout(ctx, g.engineTime, config); lost == nil && after.ID != before.ID {
		err = errDiskFull
		if before.ID != "" {
			err = errors.Join(err, g.api.Tag(ctx, before.ID, image))
			image = after.ID
		}
		err = errors.Join(err, g.api.Untag(ctx, image))
	}
	return err
}

// roomPoll is the time between two looks at the engine's disk during a pull.
const roomPoll = time.Second

const (
	// maxAccounts bounds an image's /etc/passwd and /etc/group, in bytes. To read a line, the
	// engine needs several times its length in memory.
	maxAccounts = 1 << 20
	// imageTime bounds the check of one image.
	imageTime = 30 * time.Second
)

// imageSuffix ends the names of containers that are made only to look at their image.
const imageSuffix = ".image"

// checkAccounts refuses an image, by its ID, whose account files could harm the engine. When a container
// starts, the engine reads the image's /etc/passwd and /etc/group as root, whatever user was requested:
// forever if one is a pipe, with the container locked, and a line of any length into memory. This looks at
// them in a container that never starts: in the job's own, mounts could hide what the engine reads. A link to
// nothing, or to a file in /dev, may lead to a device when a container runs.
func (g *guard) checkAccounts(ctx context.Context, image string) (err error) {
	if _, fine := g.judged.Load(image); fine {
		return nil
	}
	config, err := g.api.ImageConfig(ctx, image)
	if err != nil {
		return err
	}
	wanted := &container.CreateRequest{
		Config:     &container.Config{Image: image, Entrypoint: []string{}, Cmd: []string{"-"}},
		HostConfig: &container.HostConfig{NetworkMode: job.NetworkNone, ReadonlyRootfs: true, CapDrop: []string{"ALL"}},
	}
	wanted.HostConfig.CgroupParent = g.policy.Slice
	for path := range config.Volumes { // otherwise the engine would copy their contents
		wanted.HostConfig.Mounts = append(wanted.HostConfig.Mounts, mount.Mount{Type: mount.TypeTmpfs, Target: path})
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), imageTime)
	defer cancel()
	id, err := g.api.CreateContainer(ctx, g.newName()+imageSuffix, wanted)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.api.Discard(ctx, id)) }()
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		link := ""
		f, err := g.api.StatPath(ctx, id, file)
		if err == nil && f.Mode&fs.ModeSymlink != 0 {
			link = f.LinkTarget
			f, err = g.api.StatPath(ctx, id, link)
		}
		absent := errors.Is(err, fs.ErrNotExist)
		switch {
		case absent && link == "":
		case err != nil && !absent:
			return err
		case absent || job.KernelDir(path.Clean("/"+link)) != "" || !f.Mode.IsRegular() || f.Size > maxAccounts:
			return forbid("the image's %s is not a regular file of at most 1 MiB, and Docker reads it as root; use an image where it is", file)
		}
	}
	if _, err = g.api.StatPath(ctx, id, "/"); err == nil { // a container that someone removed has no files either
		g.judged.Store(image, true)
	}
	return err
}
