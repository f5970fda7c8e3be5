package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// pull fetches one image. The registry's credentials are the only client header that the engine
// sees.
func (g *guard) pull(c *call) error {
	image, tag := c.query.Get("fromImage"), c.query.Get("tag")
	switch {
	case image == "":
		return forbid("POST /images/create: a job can pull images but not import them; set fromImage")
	case tag == "" && !strings.Contains(image, "@") && !strings.Contains(filepath.Base(image), ":"):
		return forbid("POST /images/create: set the tag of %s; a job cannot pull all tags", image)
	}
	if err := allowImage(g.policy, reference(image, tag)); err != nil {
		return forbid("%s", err)
	}
	if kept, err := g.kept(c, reference(image, tag)); err != nil || kept {
		return err
	}
	if err := g.registries.mayPull(c.r.Context(), reference(image, tag)); err != nil {
		return forbid("%s", err)
	}
	if c.auth = c.r.Header.Get("X-Registry-Auth"); len(c.auth) > maxAuth {
		return forbid("X-Registry-Auth is larger than %d bytes; use shorter credentials", maxAuth)
	}
	has, err := g.image(c, reference(image, tag), &struct{}{})
	if err != nil {
		return err
	}
	// Before the pull, so that an image that is given up halfway is recorded, too.
	if err := g.pulled.used(reference(image, tag), !has); err != nil {
		return err
	}
	return g.fetch(c)
}

// kept answers a pull of the image that kbnode itself updates: jobs get what a canary ran. It
// reports false if the image is absent, which is then pulled.
func (g *guard) kept(c *call, name string) (bool, error) {
	if !g.keeps(name) {
		return false, nil
	}
	if has, err := g.image(c, name, &struct{}{}); err != nil || !has {
		return false, err
	}
	return true, answer(c.w, map[string]string{"status": "kbnode keeps " + name + " up to date on this node; it is not pulled (image.auto_update)"})
}

// keeps reports whether a name is that of the image that kbnode itself updates.
func (g *guard) keeps(name string) bool {
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

// fetch relays a pull as long as there is room for it.
func (g *guard) fetch(c *call) error {
	low, err := g.engine.low(c.r.Context())
	if err != nil {
		return err
	}
	if low() {
		return refusal{http.StatusInsufficientStorage, errDiskFull.Error()}
	}
	ctx, cancel := context.WithCancelCause(c.r.Context())
	defer cancel(nil)
	go func() {
		for tick := time.NewTicker(pullPoll); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				if low() {
					cancel(errDiskFull)
				}
			}
		}
	}()
	req := *c
	req.r = c.r.WithContext(ctx)
	resp, err := g.up.ask(&req, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	out, err := relayHead(c.w, resp)
	if err == nil {
		_, err = io.Copy(out, resp.Body)
	}
	if err != nil && errors.Is(context.Cause(ctx), errDiskFull) {
		// This is how the engine reports an error in the middle of a pull.
		err = json.NewEncoder(out).Encode(map[string]any{"error": errDiskFull.Error(), "errorDetail": map[string]string{"message": errDiskFull.Error()}})
	}
	if err != nil {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
	return nil
}

// lowOn reports whether too little is free on the disk of a directory.
func lowOn(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
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
	var has bool
	var low func() bool
	err := g.within(ctx, func(ctx context.Context) (err error) {
		has, err = g.image(&call{r: internal(ctx)}, image, &struct{}{})
		return err
	})
	if err != nil || has && (spec.Pull != job.PullAlways || g.keeps(image)) {
		return err
	}
	if err := g.registries.mayPull(ctx, image); err != nil {
		return forbid("%s", err)
	}
	if err := g.pulled.used(image, !has); err != nil {
		return err
	}
	_ = frames.Note("pulls %s", image) // the reader may be gone
	err = g.within(ctx, func(ctx context.Context) (err error) {
		low, err = g.engine.low(ctx)
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(pullStall, func() { cancel(errPullStalled) })
	defer stalled.Stop()
	if err := g.api.Pull(ctx, image, func(docker.Progress) {
		stalled.Reset(pullStall)
		if low() {
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
