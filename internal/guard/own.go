package guard

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// maxContainers is how many containers a slot has at once. Each has a shim, a log and a
// configuration outside the slot's limits.
const maxContainers = 16

// owned is a container that was made through this guard.
type owned struct {
	name    string  // as the job gave it; "" if the engine made one up
	binds   []bound // what it mounts, until it is started
	disk    string  // its directory on the slot's disk; "" without one
	started bool    // a start was tried: the job controls its files now
}

// owners tracks the containers of the slot. It is a copy of what the engine has: a container is
// the slot's if it is below the slot's slice and has the slot's label, and only the guard can
// make such a container. An unknown name or ID is looked up once in the engine before it is
// refused, which is also how a restarted guard finds its containers again.
type owners struct {
	prefix string // of names in the engine, so that slots do not take each other's names
	list   func(context.Context) ([]docker.Container, error)

	mu      sync.Mutex
	byID    map[string]owned
	loaded  bool // the containers of an earlier guard are in byID
	pending int  // containers that are being created

	reloading sync.Mutex // one query of the engine at a time
}

var refForm = lazily(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// engineName returns the name in the engine of a container that a job calls name.
func (o *owners) engineName(name string) string { return o.prefix + name }

func (o *owners) add(id string, c owned) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string]owned{}
	}
	// It may have been listed and started before its creation was answered.
	c.started = c.started || o.byID[id].started
	o.byID[id] = c
}

// take returns what a container mounts, once: after its start it needs none of it on the host.
// It also reports whether this is the container's first start.
func (o *owners) take(id string) (binds []bound, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, ok := o.byID[id]
	if ok {
		o.byID[id] = owned{name: c.name, disk: c.disk, started: true}
	}
	return c.binds, ok && !c.started
}

// reserve takes a place for a new container. The caller calls giveBack when the container has
// been added, or will not be.
func (o *owners) reserve(ctx context.Context) (giveBack func(), err error) {
	o.mu.Lock()
	fresh := !o.loaded
	o.mu.Unlock()
	if fresh {
		err = o.reload(ctx)
	}
	for ; err == nil; err = o.reload(ctx) {
		o.mu.Lock()
		free := len(o.byID)+o.pending < maxContainers
		if free {
			o.pending++
		}
		o.mu.Unlock()
		if free {
			return func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				o.pending--
			}, nil
		}
		if fresh {
			return nil, forbid("the slot already has %d containers; remove one (docker rm), or run them with --rm", maxContainers)
		}
		fresh = true
	}
	return nil, err
}

func (o *owners) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byID, id)
}

// resolve finds the one container of the slot that has this ID, name or ID prefix, in the
// engine's order. For any other it returns the engine's error for a missing one.
func (o *owners) resolve(ctx context.Context, ref string) (id string, c owned, err error) {
	if !refForm.MatchString(ref) {
		return "", owned{}, noSuchContainer(ref)
	}
	if id, c, err := o.find(ref); id != "" || err != nil {
		return id, c, err
	}
	if err := o.reload(ctx); err != nil {
		return "", owned{}, err
	}
	if id, c, err = o.find(ref); id == "" && err == nil {
		err = noSuchContainer(ref)
	}
	return id, c, err
}

func (o *owners) find(ref string) (id string, c owned, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, ok := o.byID[ref]; ok {
		return ref, c, nil
	}
	matches := 0
	for full, c := range o.byID {
		if c.name == ref || (c.name != "" && o.prefix+c.name == ref) {
			return full, c, nil
		}
		if strings.HasPrefix(full, ref) {
			matches, id = matches+1, full
		}
	}
	if matches > 1 {
		return "", owned{}, refusal{http.StatusBadRequest, "multiple IDs found with provided prefix: " + ref}
	}
	return id, o.byID[id], nil
}

// has reports whether a full ID is the slot's, without asking the engine.
func (o *owners) has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.byID[id]
	return ok
}

func (o *owners) reload(ctx context.Context) error {
	o.reloading.Lock()
	defer o.reloading.Unlock()
	o.mu.Lock()
	gone := map[string]bool{} // known now: others are created meanwhile
	for id := range o.byID {
		gone[id] = true
	}
	o.mu.Unlock()
	list, err := o.list(ctx)
	if err != nil {
		return fmt.Errorf("list the slot's containers: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string]owned{}
	}
	for _, c := range list {
		delete(gone, c.ID)
		// One without labels was already known when the list was made.
		if _, known := o.byID[c.ID]; !known && c.Labels != nil {
			// A name that the engine made up has no prefix and is used as it is.
			o.byID[c.ID] = owned{name: strings.TrimPrefix(c.Name, o.prefix), disk: c.Labels[diskLabel], started: c.State != "created"}
		}
	}
	for id := range gone {
		delete(o.byID, id)
	}
	o.loaded = true
	return nil
}

// disks returns the directories of the slot's disk that containers use.
func (o *owners) disks() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	used := map[string]bool{}
	for _, c := range o.byID {
		used[c.disk] = true
	}
	return used
}

func noSuchContainer(ref string) error {
	return refusal{http.StatusNotFound, fmt.Sprintf("No such container: %.128s", ref)}
}

// clear forgets all containers.
func (o *owners) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byID = nil
}
