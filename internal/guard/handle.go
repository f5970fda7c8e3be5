package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	// bodyDeadline is for a client to send the body of a request.
	bodyDeadline = 30 * time.Second
	// maxAuth bounds a registry's credentials, in bytes.
	maxAuth = 8 << 10
)

// pass asks the engine the same and relays its answer.
func (g *guard) pass(c *call) error {
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	relay(c.w, resp)
	return nil
}

// create makes a container from policy and the few wishes of a job.
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
	if err := g.ready(c); err != nil {
		return err
	}
	if wanted.HostConfig.NetworkMode != networkNone {
		if err := g.network.ready(c.r.Context()); err != nil {
			return err
		}
	}
	name := c.query.Get("name")
	if name != "" {
		c.query.Set("name", g.own.engineName(name))
	}
	volumes, err := g.volumes(c, wanted.Image)
	if err != nil {
		return err
	}
	if err := g.disk.sweep(c.r.Context(), &g.own); err != nil {
		return err
	}
	binds, err := g.hold(wanted)
	made := false
	defer func() {
		if !made {
			g.release(binds)
		}
	}()
	if err != nil {
		return err
	}
	scratch, err := g.disk.prepare(wanted, volumes)
	defer func() { g.disk.done(scratch, made) }()
	if err != nil {
		return err
	}
	resp, answerBody, err := g.make(c, wanted)
	if err == nil && unavailable(resp.StatusCode, answerBody) {
		// The engine was started anew after the slots' CPUs became a partition,
		// and believes that the machine has only the others. The container runs
		// on the slot's by its slice, which was looked at just now.
		g.log.Info("engine does not know the slot's cpus", "err", strings.TrimSpace(string(answerBody)))
		wanted.HostConfig.CpusetCpus, wanted.HostConfig.CpusetMems = "", ""
		resp, answerBody, err = g.make(c, wanted)
	}
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusCreated {
		var created struct {
			ID string `json:"Id"`
		}
		if err := json.Unmarshal(answerBody, &created); err != nil || created.ID == "" {
			return errors.New("the Docker engine did not tell the new container's ID")
		}
		made = true
		g.own.add(created.ID, owned{name: name, binds: binds, disk: scratch})
		g.log.Info("container created", "id", created.ID, "image", wanted.Image)
	}
	resp.Body = io.NopCloser(bytes.NewReader(answerBody))
	relay(c.w, resp)
	return nil
}

// make asks the engine for a container and returns its whole answer.
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

// unavailable says that the engine refused a container for its CPUs or memory
// nodes, in its own words.
func unavailable(status int, answer []byte) bool {
	text := string(answer)
	return status == http.StatusBadRequest && strings.Contains(text, "not available") &&
		(strings.Contains(text, "Requested CPUs") || strings.Contains(text, "Requested memory nodes"))
}

// hold puts the slot user's paths in a request out of that user's reach.
func (g *guard) hold(wanted *container.CreateRequest) ([]bound, error) {
	var binds []bound
	mounts := wanted.HostConfig.Mounts
	for i, m := range mounts {
		if m.Type != mount.TypeBind || m.Source == g.policy.Binary {
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

// start looks again at what may have changed since the container was made: the
// slot's limits, and links on the way to what is mounted.
func (g *guard) start(c *call) error {
	binds := g.own.take(c.id)
	defer g.release(binds)
	if err := g.mayStart(c, binds); err != nil {
		// The engine removes a container that cannot start if it is to be removed
		// at its end, and `docker run --rm` waits for that.
		g.discard(c)
		return err
	}
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	if resp.StatusCode == http.StatusNoContent {
		if err := endTogether(g.cgroupRoot, g.policy.Slice, c.id); err != nil {
			g.log.Warn("container may outlive its memory limit", "id", c.id, "err", err)
		}
	}
	relay(c.w, resp)
	return nil
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
			return forbid("%.80q is not what it was when the container was created; create it again", b.source)
		}
	}
	return g.onDisk(c)
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

// ready says why no container of the slot may run now.
func (g *guard) ready(c *call) error {
	if err := CheckSlice(g.cgroupRoot, g.policy); err != nil {
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

// stop bounds the time that a container may take to end: -1 would be for ever.
func (g *guard) stop(c *call) error {
	if t := c.query.Get("t"); t != "" {
		if n, err := strconv.Atoi(t); err != nil || n < 0 || n > maxStopSeconds {
			c.query.Set("t", strconv.Itoa(maxStopSeconds))
		}
	}
	return g.pass(c)
}

func (g *guard) remove(c *call) error {
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	if resp.StatusCode == http.StatusNoContent {
		g.release(g.own.take(c.id))
		g.own.forget(c.id)
	}
	relay(c.w, resp)
	return nil
}

// listFilters are what a list may be narrowed by. Others, like "before", take a
// container's name and would tell whether somebody else has it.
var listFilters = []string{"label", "status", "name", "id", "ancestor", "exited", "health", "is-task"}

// list shows the slot's containers only: the engine is asked for those with the
// slot's label, and what it says is compared with what is known.
func (g *guard) list(c *call) error {
	filters, err := parseFilters(c.query.Get("filters"), listFilters)
	if err != nil {
		return err
	}
	filters["label"] = append(filters["label"], slotLabel+"="+strconv.Itoa(g.policy.Slot))
	data, err := json.Marshal(filters)
	if err != nil {
		return fmt.Errorf("write the filters: %w", err)
	}
	c.query.Set("filters", string(data))
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	if resp.StatusCode != http.StatusOK {
		relay(c.w, resp)
		return nil
	}
	body, err := readAll(resp)
	if err != nil {
		return err
	}
	var all []json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("read Docker's list of containers: %w", err)
	}
	reloaded := false
	own := []json.RawMessage{}
	for _, raw := range all {
		var item struct {
			ID string `json:"Id"`
		}
		if err := json.Unmarshal(raw, &item); err != nil {
			return fmt.Errorf("read Docker's list of containers: %w", err)
		}
		if !g.own.has(item.ID) && !reloaded {
			if err := g.own.reload(c.r.Context()); err != nil {
				return err
			}
			reloaded = true
		}
		if g.own.has(item.ID) {
			own = append(own, raw)
		}
	}
	return answer(c.w, own)
}

// parseFilters reads both forms of filters: lists, and objects whose keys count
// where the value is true. Each name must be in allowed.
func parseFilters(text string, allowed []string) (map[string][]string, error) {
	filters := map[string][]string{}
	if text == "" {
		return filters, nil
	}
	obj, err := parse([]byte(text))
	if err != nil {
		return nil, refusal{http.StatusBadRequest, "kbnode: filters: " + err.Error()}
	}
	for name, v := range obj {
		if !slices.Contains(allowed, name) {
			return nil, forbid("filters: %.40q is none that a job may use; use one of %s", name, strings.Join(allowed, ", "))
		}
		list, err := stringList(v)
		if set, ok := v.(map[string]any); ok {
			list, err = nil, nil
			for _, key := range slices.Sorted(maps.Keys(set)) {
				if set[key] == true {
					list = append(list, key)
				}
			}
		}
		if err != nil {
			return nil, refusal{http.StatusBadRequest, "kbnode: filters: " + name + " is " + err.Error()}
		}
		filters[name] = list
	}
	return filters, nil
}

// infoFields are what a job learns of the engine; the rest is about the node and
// its other slots.
var infoFields = []string{"ServerVersion", "OSType", "Architecture", "OperatingSystem", "KernelVersion",
	"CgroupDriver", "CgroupVersion", "Driver", "DefaultRuntime", "IndexServerAddress"}

func (g *guard) info(c *call) error {
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	if resp.StatusCode != http.StatusOK {
		relay(c.w, resp)
		return nil
	}
	body, err := readAll(resp)
	if err != nil {
		return err
	}
	var all map[string]any
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("read Docker's info: %w", err)
	}
	shown := map[string]any{"Name": g.policy.Name, "NCPU": cpuCount(g.policy), "MemTotal": g.policy.MemoryBytes}
	for _, name := range infoFields {
		if v, ok := all[name]; ok {
			shown[name] = v
		}
	}
	return answer(c.w, shown)
}

// checkPolicy says what a policy lacks. Zero would mean "no limit" to the engine.
func checkPolicy(p plan.JobPolicy) error {
	var errs []error
	lack := func(missing bool, what string) {
		if missing {
			errs = append(errs, fmt.Errorf("the policy of slot %s has no %s", p.Name, what))
		}
	}
	lack(p.Name == "", "name")
	lack(p.User == "", "user")
	lack(!strings.HasSuffix(p.Slice, ".slice") || strings.Contains(p.Slice, "/"), "slice")
	lack(p.CPUs == "", "cpus")
	lack(p.MemoryNodes == "", "memory_nodes")
	lack(p.MemoryBytes <= pageSlack, "memory_bytes")
	lack(p.PidsLimit <= 0, "pids_limit")
	lack(p.ShmBytes <= 0, "shm_bytes")
	lack(!filepath.IsAbs(p.WorkRoot) || filepath.Clean(p.WorkRoot) == "/", "work_root")
	lack(!filepath.IsAbs(p.DockerSocket), "docker_socket")
	lack(!filepath.IsAbs(p.Socket), "socket")
	return errors.Join(errs...)
}
