package guard

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// create makes a container from the policy and the few options that a job may choose.
func (g *guard) create(c *call) error {
	rc := http.NewResponseController(c.w)
	if err := rc.SetReadDeadline(time.Now().Add(bodyDeadline)); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(c.r.Body, maxBody+1))
	if err != nil {
		return refusal{http.StatusBadRequest, "kbnode: the body did not arrive: " + err.Error()}
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	wanted, err := rebuild(g.policyFor(c.r.Context()), g.facts, body)
	if err != nil {
		return forbid("%s", err)
	}
	resp, answerBody, _, err := g.build(c, wanted)
	if err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(answerBody))
	relay(c.w, resp)
	return nil
}

// build makes a container. It returns the engine's answer with the whole body, and the container's
// ID, which is "" if the engine refused.
func (g *guard) build(c *call, wanted *container.CreateRequest) (resp *http.Response, answerBody []byte, id string, err error) {
	if err := g.ready(c); err != nil {
		return nil, nil, "", err
	}
	giveBack, err := g.own.reserve(c.r.Context())
	if err != nil {
		return nil, nil, "", err
	}
	defer giveBack()
	if wanted.HostConfig.NetworkMode != networkNone {
		if err := g.network.ready(c.r.Context()); err != nil {
			return nil, nil, "", err
		}
	}
	if err := g.confiner.confine(c.r.Context(), wanted.HostConfig); err != nil {
		return nil, nil, "", err
	}
	name := c.query.Get("name")
	if name != "" {
		c.query.Set("name", g.own.engineName(name))
	}
	image, err := g.configOf(c, wanted.Image)
	if err != nil {
		return nil, nil, "", err
	}
	if err := g.suits(wanted, image); err != nil {
		return nil, nil, "", forbid("%s", err)
	}
	if err := g.disk.sweep(c.r.Context(), &g.own); err != nil {
		return nil, nil, "", err
	}
	binds, err := g.hold(wanted)
	made := false
	defer func() {
		if !made {
			g.release(binds)
		}
	}()
	if err != nil {
		return nil, nil, "", err
	}
	scratch, err := g.disk.prepare(wanted, slices.Sorted(maps.Keys(image.Volumes)))
	defer func() { g.disk.done(scratch, made) }()
	if err != nil {
		return nil, nil, "", err
	}
	for _, gpu := range g.policy.GPUs {
		if err := linkNodes("/dev/char", gpu.Nodes); err != nil {
			g.log.Warn("device not linked", "err", err)
		}
	}
	resp, answerBody, err = g.make(c, wanted)
	if err == nil && unavailable(resp.StatusCode, answerBody) {
		// The engine was restarted after the slots' CPUs became a partition, and believes that
		// the machine has only the other CPUs. The container's slice, checked just now, keeps it
		// on the slot's CPUs.
		g.log.Info("engine does not know the slot's cpus", "err", strings.TrimSpace(string(answerBody)))
		wanted.HostConfig.CpusetCpus, wanted.HostConfig.CpusetMems = "", ""
		resp, answerBody, err = g.make(c, wanted)
	}
	if err != nil {
		return nil, nil, "", err
	}
	if resp.StatusCode == http.StatusCreated {
		var created struct {
			ID string `json:"Id"`
		}
		if err := json.Unmarshal(answerBody, &created); err != nil || created.ID == "" {
			return nil, nil, "", errors.New("the Docker engine did not report the new container's ID")
		}
		made, id = true, created.ID
		g.own.add(created.ID, owned{name: name, binds: binds, disk: scratch})
		g.keeper.Made(wanted.Labels[profileLabel])
		if err := g.pulled.used(wanted.Image, false); err != nil {
			g.log.Warn("use of the image not recorded", "err", err)
		}
		g.log.Info("container created", "id", created.ID, "image", wanted.Image)
	}
	return resp, answerBody, id, nil
}

// suits checks the user and directory that the image sets if the request does not, and checks
// both against the node: who owns an ID, and links in the checkout.
func (g *guard) suits(wanted *container.CreateRequest, image imageConfig) error {
	b := &builder{policy: g.policy, facts: g.facts}
	user, dir := cmp.Or(wanted.User, image.User), path.Clean("/"+cmp.Or(wanted.WorkingDir, image.WorkingDir))
	if wanted.User == "" {
		if err := b.mayBe(user); err != nil {
			return fmt.Errorf("image %.120q: %w", wanted.Image, err)
		}
	}
	if err := errors.Join(workingDir(dir), b.othersIDs("/", user, wanted.HostConfig.GroupAdd)); err != nil {
		return err
	}
	for _, m := range wanted.HostConfig.Mounts {
		if m.Type != mount.TypeBind || below(dir, m.Target) == "" {
			continue
		}
		at := m.Source
		for step := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(dir, m.Target), "/"), "/") {
			at = filepath.Join(at, step)
			if info, err := os.Lstat(at); err == nil && info.Mode().Type() == fs.ModeSymlink {
				return fmt.Errorf("WorkingDir: %.80q goes through a symbolic link in the checkout; write its target", dir)
			}
		}
	}
	return nil
}

// make asks the engine for a container and returns its answer with the whole body.
func (g *guard) make(c *call, wanted *container.CreateRequest) (*http.Response, []byte, error) {
	data, err := json.Marshal(wanted)
	if err != nil {
		return nil, nil, fmt.Errorf("write the request: %w", err)
	}
	resp, err := g.up.ask(c, bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	defer hangUp(resp.Body)
	body, err := readAll(resp)
	return resp, body, err
}

// unavailable reports whether the engine refused a container for its CPUs or memory nodes, by
// the engine's own words.
func unavailable(status int, answer []byte) bool {
	text := string(answer)
	return status == http.StatusBadRequest && strings.Contains(text, "not available") &&
		(strings.Contains(text, "Requested CPUs") || strings.Contains(text, "Requested memory nodes"))
}

// hold replaces the slot user's paths in a request with paths out of that user's reach.
func (g *guard) hold(wanted *container.CreateRequest) ([]bound, error) {
	var binds []bound
	mounts := wanted.HostConfig.Mounts
	for i, m := range mounts {
		if m.Type != mount.TypeBind || m.Source == g.policy.Program() || strings.HasPrefix(m.Source, cacheSource) {
			continue
		}
		b, err := g.binder.hold(m.Source)
		if err != nil {
			return binds, err
		}
		binds = append(binds, b)
		mounts[i].Source = b.held
	}
	return binds, nil
}

func (g *guard) release(binds []bound) {
	if err := g.binder.release(binds...); err != nil {
		g.log.Warn("mount left behind", "err", err)
	}
}

// start checks again what may have changed since the container was made: the slot's limits, and
// links on the way to what is mounted. It starts a container only once: the engine, which is
// root, reads /etc/passwd and /etc/group of what it starts, and after the first start these may
// be pipes, or larger than its memory.
func (g *guard) start(c *call) error {
	resp, err := g.launch(c)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	relay(c.w, resp)
	return nil
}

// launch starts a container and returns the engine's answer.
func (g *guard) launch(c *call) (*http.Response, error) {
	binds, first := g.own.take(c.id)
	if !first {
		return nil, forbid("container %.12s has already run; a container runs only once here; create another one (docker run)", c.id)
	}
	defer g.release(binds)
	if err := g.mayStart(c, binds); err != nil {
		// The engine removes a container that cannot start if it is to be removed when it ends,
		// and `docker run --rm` waits for that.
		g.discard(c)
		return nil, err
	}
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNoContent {
		if err := endTogether(g.cgroupRoot, g.policy.Slice, c.id); err != nil {
			g.log.Warn("container may outlive its memory limit", "id", c.id, "err", err)
		}
		g.keeper.Started(c.id)
		if err := limitPtys(g.cgroupRoot, g.policy.Slice, c.id); err != nil {
			g.log.Warn("container may open many terminals", "id", c.id, "err", err)
		}
	}
	return resp, nil
}

func (g *guard) mayStart(c *call, binds []bound) error {
	if err := g.ready(c); err != nil {
		return err
	}
	if g.policy.Network != config.NetworkNone {
		if err := g.network.apart(); err != nil {
			return err
		}
	}
	for _, b := range binds {
		if err := g.binder.mount(b.source, b.held); err != nil {
			g.log.Warn("mount refused", "id", c.id, "err", err)
			return forbid("%.80q changed after the container was created; create the container again", b.source)
		}
	}
	in, err := g.inspect(c)
	if err != nil {
		return err
	}
	if err := g.confiner.check(c.r.Context(), in); err != nil {
		return err
	}
	if err := g.judge(c, in.Image); err != nil {
		return err
	}
	return g.onDisk(in)
}

// discard removes a container that is not started.
func (g *guard) discard(c *call) {
	req := *c
	req.method, req.path, req.query = http.MethodDelete, "containers/"+c.id, url.Values{"v": {"1"}}
	resp, err := g.up.ask(&req, nil)
	if err != nil {
		g.log.Warn("container left behind", "id", c.id, "err", err)
		return
	}
	hangUp(resp.Body)
	if resp.StatusCode == http.StatusNoContent {
		g.own.forget(c.id)
	}
}

// ready returns why no container of the slot may run now.
func (g *guard) ready(c *call) error {
	if err := slot.CheckLimits(g.cgroupRoot, g.policy); err != nil {
		return refusal{http.StatusServiceUnavailable, "kbnode: " + strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	if g.disk.mounted != nil {
		if err := g.disk.mounted(); err != nil {
			return refusal{http.StatusServiceUnavailable, "kbnode: " + strings.ReplaceAll(err.Error(), "\n", "; ")}
		}
	}
	if err := g.engine.ok(c.r.Context(), time.Now()); err != nil {
		return refusal{http.StatusServiceUnavailable, "kbnode: " + err.Error()}
	}
	return nil
}
