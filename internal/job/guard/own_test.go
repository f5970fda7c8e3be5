package guard

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// Names of slot 0's containers.
const (
	containerA = "kbnode-gpu0-AAAAAAAAAAAAAAAAAAAAAAAAAA"
	containerB = "kbnode-gpu0-BBBBBBBBBBBBBBBBBBBBBBBBBB"
)

// TestGoneKeepsNoSlot clears what an engine that was killed keeps of containers that are gone, and does not
// depend on it: jobs run beside what cannot be cleared.
func TestGoneKeepsNoSlot(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		fault string // the end of the path of requests that fail
		left  []string
	}{
		"all is well":                 {"", []string{"theirs"}},
		"nothing can be disconnected": {"/disconnect", []string{containerA, containerB, "theirs"}},
		"the network cannot be read":  {"/networks/kbnode-gpu0", []string{containerA, containerB, "theirs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ready(t)
			r.engine.add("theirs", "theirs", "")
			r.engine.endpoints = map[string]string{"gone": containerB, "ep-1": containerA, "theirs": "theirs"}
			r.engine.fault = func(req *http.Request) int {
				return map[bool]int{true: http.StatusInternalServerError}[row.fault != "" && strings.HasSuffix(req.URL.Path, row.fault)]
			}
			for range 2 {
				if o := r.try(t); why(o) != "" || o.ExitCode != 7 {
					t.Errorf("%+v", o)
				}
			}
			r.engine.mu.Lock()
			defer r.engine.mu.Unlock()
			must.Equal(t, row.left, slices.Sorted(maps.Values(r.engine.endpoints)))
			if c := r.engine.containers["theirs"]; c == nil || c.HostConfig.NetworkMode != "" {
				t.Errorf("someone else's container: %+v", c)
			}
		})
	}
}

// TestDeadKeepsNoSlot runs jobs beside the slot's containers that the engine cannot remove, and keeps their files.
func TestDeadKeepsNoSlot(t *testing.T) {
	t.Parallel()
	r := ready(t)
	for id, name := range map[string]string{"d1": containerA, "d2": containerB + imageSuffix} {
		r.engine.add(id, name, r.policy.Slice)
		r.engine.dead[id] = true
	}
	r.engine.dead[jobContainer] = true
	for range 2 {
		if o := r.try(t); why(o) != "" || o.ExitCode != 7 || o.Lost+o.Reason != "" {
			t.Errorf("%+v", o)
		}
	}
}

// TestOwns finds the slot's containers by their names, and no others.
func TestOwns(t *testing.T) {
	t.Parallel()
	g := &guard{policy: testPolicy()}
	one, other := g.newName(), g.newName()
	if one == other {
		t.Errorf("two containers are called %s", one)
	}
	for name, want := range map[string]bool{
		one: true, one + imageSuffix: true, "kbnode-gpu0": false, "kbnode-gpu0.image": false, "kbnode-gpu0-": false,
		"kbnode-gpu0-prometheus-node-exporter-1": false, "kbnode-gpu0-server": false, "kbnode-gpu0x": false, strings.Replace(one, "gpu0", "gpu01", 1): false, "theirs": false, "": false,
	} {
		if g.owns(name) != want {
			t.Errorf("%q is the slot's: %t", name, !want)
		}
	}
}
