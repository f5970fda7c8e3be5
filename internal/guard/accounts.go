package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

const (
	// maxAccounts bounds an image's /etc/passwd and /etc/group, in bytes. To read a line, the
	// engine needs several times its length in memory.
	maxAccounts = 1 << 20
	// maxJudged bounds the number of images whose verdict is remembered.
	maxJudged = 256
	// imageTime bounds the check of one image.
	imageTime = 30 * time.Second
)

// accounts holds verdicts on images by ID: why an image cannot run, or "" if it can. When a
// container starts, the engine reads the image's /etc/passwd and /etc/group as root, whatever
// user was requested: forever if one is a pipe, with the container locked, and a line of any
// length into memory.
type accounts struct {
	mu     sync.Mutex
	judged map[string]string
}

// judge refuses an image whose account files could harm the engine. It looks at them in a
// container that never starts: in the job's own, mounts could hide what the engine reads.
func (g *guard) judge(ctx context.Context, image string) error {
	if image == "" {
		return errors.New("the Docker engine does not report the container's image")
	}
	a := &g.accounts
	a.mu.Lock()
	defer a.mu.Unlock()
	why, known := a.judged[image]
	if !known {
		var err error
		if why, err = g.checkAccounts(ctx, image); err != nil {
			return fmt.Errorf("check the image's accounts: %w", err)
		}
		if a.judged == nil || len(a.judged) >= maxJudged {
			a.judged = map[string]string{}
		}
		a.judged[image] = why
	}
	if why != "" {
		return forbid("%s, and Docker reads it as root; use an image where it is a regular file of at most 1 MiB", why)
	}
	return nil
}

func (g *guard) checkAccounts(ctx context.Context, image string) (why string, err error) {
	config, err := g.api.ImageConfig(ctx, image)
	if err != nil {
		return "", err
	}
	wanted := &container.CreateRequest{
		Config:     &container.Config{Image: image, Entrypoint: []string{}, Cmd: []string{"-"}},
		HostConfig: &container.HostConfig{NetworkMode: networkNone, ReadonlyRootfs: true, CapDrop: []string{"ALL"}},
	}
	wanted.HostConfig.CgroupParent = g.policy.Slice
	for path := range config.Volumes { // otherwise the engine would copy their contents
		wanted.HostConfig.Mounts = append(wanted.HostConfig.Mounts, mount.Mount{Type: mount.TypeTmpfs, Target: path})
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), imageTime)
	defer cancel()
	name := "kbnode-" + g.policy.Name + ".image"
	if err := g.api.Discard(ctx, name); err != nil { // left by a guard that was killed
		return "", err
	}
	id, err := g.api.CreateContainer(ctx, name, wanted)
	if err != nil {
		return "", err
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
			return "", err
		case !f.Mode.IsRegular():
			return fmt.Sprintf("the image's %s is not a regular file", path), nil
		case f.Size > maxAccounts:
			return fmt.Sprintf("the image's %s has %d bytes", path, f.Size), nil
		}
	}
	_, err = g.api.StatPath(ctx, id, "/") // a container that someone removed has no files either
	return "", err
}
