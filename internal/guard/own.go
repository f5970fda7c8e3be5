package guard

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// owned is a container that was made through this guard.
type owned struct {
	name  string  // as the job gave it; "" if the engine made one up
	binds []bound // what it mounts, until it is started
	disk  string  // its directory on the slot's disk; "" without one
}

// owners knows the containers of the slot. It is a copy of what the engine
// has: a container is the slot's if it is below the slot's slice and has the
// slot's label, and only the guard can make one so. A name or ID that is not
// known is looked up once in the engine before it is refused, which is also how
// a guard that was restarted finds its containers again.
type owners struct {
	prefix string // of names in the engine, so that slots do not take each other's
	list   func(context.Context) ([]docker.Container, error)

	mu   sync.Mutex
	byID map[string]owned

	reloading sync.Mutex // one look into the engine at a time
}

var refForm = lazily(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// engineName is the name in the engine of a container that a job calls name.
func (o *owners) engineName(name string) string { return o.prefix + name }

func (o *owners) add(id string, c owned) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string]owned{}
	}
	o.byID[id] = c
}

// take returns what a container mounts, once: after its start it needs none of
// it on the host.
func (o *owners) take(id string) []bound {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, ok := o.byID[id]
	if ok {
		o.byID[id] = owned{name: c.name, disk: c.disk}
	}
	return c.binds
}

func (o *owners) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byID, id)
}

// resolve finds the one container of the slot that has this ID, name or
// beginning of an ID, in the order that the engine does. For any other it
// answers as the engine does where there is none.
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

// has tells whether a full ID is the slot's, without asking the engine.
func (o *owners) has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.byID[id]
	return ok
}

func (o *owners) reload(ctx context.Context) error {
	o.reloading.Lock()
	defer o.reloading.Unlock()
	list, err := o.list(ctx)
	if err != nil {
		return fmt.Errorf("list the slot's containers: %w", err)
	}
	byID := make(map[string]owned, len(list))
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range list {
		// A name that the engine made up has no prefix and is good as it is.
		byID[c.ID] = owned{name: strings.TrimPrefix(c.Name, o.prefix), binds: o.byID[c.ID].binds, disk: c.Labels[diskLabel]}
	}
	for id, c := range o.byID {
		// It was created while the engine made its list.
		if _, ok := byID[id]; !ok && len(c.binds) > 0 {
			byID[id] = c
		}
	}
	o.byID = byID
	return nil
}

// disks are the directories of the slot's disk that containers use.
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
