package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
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
	engine, err := g.engineInfo(ctx)
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

const (
	// collectEvery is the time between two checks for images that no job needs any more.
	collectEvery = time.Hour
	// idleImage is how long an image that a job pulled is kept after its last use.
	idleImage = 24 * time.Hour
)

// pulledImages records the images that jobs pulled. Images belong to the node, so the guards
// share the record: one empty file per image, named for it, that was modified at its last use. A reboot
// clears the record.
type pulledImages struct {
	dir   string
	named func(image string) bool             // by the operator, and so kept
	untag func(context.Context, string) error // fails for an image that a container uses
}

func newPulledImages(p plan.JobPolicy, engine *docker.Engine) pulledImages {
	node, _ := docker.ParseRef(p.NodeImage)
	return pulledImages{
		dir: filepath.Join(filepath.Dir(filepath.Dir(p.Socket)), "pulled"), untag: engine.Untag,
		named: func(image string) bool {
			full, err := docker.ParseRef(image)
			return err != nil || full == node || len(p.Images) > 0 && allowImage(p, image) == nil
		},
	}
}

// file returns the path of an image's record, the same for each of the image's names.
func (l pulledImages) file(image string) string {
	if full, err := docker.ParseRef(image); err == nil {
		image = full
	}
	return filepath.Join(l.dir, url.QueryEscape(image))
}

// used records that a job used an image or, if fresh, pulled one that was not there. Only the
// latter begins a record: other images are the operator's.
func (l pulledImages) used(image string, fresh bool) error {
	if !fresh || l.named(image) {
		now := time.Now()
		return ignoreAbsent(os.Chtimes(l.file(image), now, now))
	}
	err := os.MkdirAll(l.dir, 0o700)
	if err == nil {
		err = os.WriteFile(l.file(image), nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record the use of image %.120q: %w", image, err)
	}
	return nil
}

// collect removes images that no job has used for a day.
func (l pulledImages) collect(ctx context.Context, now time.Time) (removed []string, err error) {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		path := filepath.Join(l.dir, e.Name())
		info, infoErr := e.Info()
		if infoErr != nil || now.Sub(info.ModTime()) < idleImage {
			continue // gone, or in use
		}
		image, _ := url.QueryUnescape(e.Name())
		if untagErr := l.untag(ctx, image); untagErr != nil {
			err = errors.Join(err, untagErr) // a container uses it; the next check tries again
			continue
		}
		removed = append(removed, image)
		err = errors.Join(err, ignoreAbsent(os.Remove(path)))
	}
	slices.Sort(removed)
	return removed, err
}

// collectImages collects images until ctx is done.
func (g *guard) collectImages(ctx context.Context) {
	for limit.Sleep(ctx, collectEvery) == nil {
		removed, err := g.pulled.collect(ctx, time.Now())
		if len(removed) > 0 {
			g.log.Info("job images removed", "images", removed)
		}
		if err != nil && ctx.Err() == nil {
			g.log.Info("job images not removed", "err", err)
		}
	}
}

const (
	// maxAccounts bounds an image's /etc/passwd and /etc/group, in bytes. To read a line, the
	// engine needs several times its length in memory.
	maxAccounts = 1 << 20
	// imageTime bounds the check of one image.
	imageTime = 30 * time.Second
)

// checkAccounts refuses an image, by its ID, whose account files could harm the engine. When a container
// starts, the engine reads the image's /etc/passwd and /etc/group as root, whatever user was requested:
// forever if one is a pipe, with the container locked, and a line of any length into memory. This looks at
// them in a container that never starts: in the job's own, mounts could hide what the engine reads.
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
	name := g.containerName() + ".image"
	if err := g.api.Discard(ctx, name); err != nil { // left by a guard that was killed
		return err
	}
	id, err := g.api.CreateContainer(ctx, name, wanted)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.api.Discard(ctx, id)) }()
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		f, err := g.api.StatPath(ctx, id, path)
		if err == nil && f.Mode&fs.ModeSymlink != 0 {
			f, err = g.api.StatPath(ctx, id, f.LinkTarget)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case !f.Mode.IsRegular() || f.Size > maxAccounts:
			return forbid("the image's %s is not a regular file of at most 1 MiB, and Docker reads it as root; use an image where it is", path)
		}
	}
	if _, err = g.api.StatPath(ctx, id, "/"); err == nil { // a container that someone removed has no files either
		g.judged.Store(image, true)
	}
	return err
}
