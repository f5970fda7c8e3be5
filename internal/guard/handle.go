package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// bodyDeadline is how long a client has to send the body of a request.
	bodyDeadline = 30 * time.Second
	// maxAuth bounds a registry's credentials, in bytes.
	maxAuth = 8 << 10
)

// pass sends the request to the engine and relays its answer.
func (g *guard) pass(c *call) error {
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	relay(c.w, resp)
	return nil
}

// show relays an answer that the engine holds in memory until it has been read. It never asks
// for the size of a container: the engine would walk its files.
func (g *guard) show(c *call) error {
	c.query.Del("size")
	resp, err := g.up.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	defer answerWithin(c.w)()
	relay(c.w, resp)
	return nil
}

// stop bounds the time that a container may take to end: -1 would be forever.
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
		binds, _ := g.own.take(c.id)
		g.release(binds)
		g.own.forget(c.id)
	}
	relay(c.w, resp)
	return nil
}

// listFilters are the filters that a job may use. Others, like "before", take a container's name
// and would reveal whether someone else has it.
var listFilters = []string{"label", "status", "name", "id", "ancestor", "exited", "health", "is-task"}

// list shows only the slot's containers: it asks the engine for those with the slot's label, and
// compares the answer with the known ones.
func (g *guard) list(c *call) error {
	c.query.Del("size")
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

// parseFilters reads both forms of filters: lists, and objects whose keys count if the value is
// true. Each name must be in allowed.
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
			return nil, forbid("filters: a job cannot use %.40q; use one of %s", name, strings.Join(allowed, ", "))
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

// infoFields are what a job learns about the engine; the rest is about the node and its other
// slots.
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

// checkPolicy returns what a policy lacks. Zero would mean "no limit" to the engine.
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
	lack(p.MemoryBytes <= slot.PageSlack, "memory_bytes")
	lack(p.PidsLimit <= 0, "pids_limit")
	lack(p.ShmBytes <= 0, "shm_bytes")
	lack(!filepath.IsAbs(p.WorkRoot) || filepath.Clean(p.WorkRoot) == "/", "work_root")
	lack(!filepath.IsAbs(p.DockerSocket), "docker_socket")
	lack(!filepath.IsAbs(p.Socket), "socket")
	return errors.Join(errs...)
}
