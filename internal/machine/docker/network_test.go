package docker

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// endpoints is an engine with one network, "net". Docker 20.10 and 26.1 were seen to do what it does.
type endpoints struct {
	containers map[string]string // "runs", "exited" or "unknown", by name; the IDs are the names in upper case
	list       map[string]string // the names of the network's endpoints, by the ID of their container
	broken     string            // a request that fails
	removed    bool
}

// find returns the container with this name, or whose ID begins so, as the engine does.
func (e *endpoints) find(name string) string {
	for container := range e.containers {
		if e.containers[name] != "" && container == name || e.containers[name] == "" && strings.HasPrefix(container, name) {
			return container
		}
	}
	return ""
}

func (e *endpoints) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.45")
	w.Header().Set("Content-Type", "application/json")
	path := strings.TrimPrefix(r.URL.Path, "/v1.45")
	refuse := func(status int, message string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
	}
	asked, one := strings.CutPrefix(strings.TrimSuffix(path, "/json"), "/containers/")
	name := strings.ToLower(asked)
	switch state := e.containers[e.find(name)]; {
	case path == "/_ping":
	case r.Method+" "+path == e.broken || one && state == "unknown":
		refuse(http.StatusInternalServerError, "out of order")
	case one && state == "":
		refuse(http.StatusNotFound, "No such container: "+asked)
	case one:
		name = e.find(name)
		_ = json.NewEncoder(w).Encode(map[string]any{"Id": strings.ToUpper(name), "Name": "/" + name, "State": map[string]bool{"Running": state == "runs"}})
	case e.removed:
		refuse(http.StatusNotFound, "network net not found")
	case path == "/networks/net/disconnect":
		var req struct {
			Container string
			Force     bool
		}
		_ = json.NewDecoder(r.Body).Decode(&req)
		if other := e.find(strings.ToLower(req.Container)); other != "" {
			e.containers[other] = "without a network"
			return
		}
		ends := len(e.list)
		if req.Force {
			maps.DeleteFunc(e.list, func(_, end string) bool { return end == req.Container })
		}
		if len(e.list) == ends {
			refuse(http.StatusNotFound, "endpoint "+req.Container+" not found")
		}
	case r.Method == http.MethodDelete && len(e.list) > 0:
		refuse(http.StatusForbidden, "network net has active endpoints")
	case r.Method == http.MethodDelete:
		e.removed = true
		w.WriteHeader(http.StatusNoContent)
	default:
		ends := map[string]map[string]string{}
		for id, end := range e.list {
			ends[id] = map[string]string{"Name": end}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"Id": "net", "Name": "net", "Containers": ends})
	}
}

// TestDetach disconnects the containers that are gone, and no other.
func TestDetach(t *testing.T) {
	t.Parallel()
	const inspect = "GET /networks/net"
	for name, row := range map[string]struct {
		engine endpoints
		left   []string
		fails  string // what clearing the network says
		says   string // what removing it says; "" if it goes
	}{
		"nothing":      {endpoints{}, nil, "", ""},
		"what is gone": {endpoints{list: map[string]string{"A": "a", "ep-1": "b"}}, nil, "", ""},
		"a container that runs": {
			endpoints{map[string]string{"web": "runs"}, map[string]string{"WEB": "web", "A": "a"}, "", false}, []string{"web"}, "",
			"active endpoints: container web uses it; type sudo docker network disconnect -f net web",
		},
		"one that was renamed": {
			endpoints{map[string]string{"web": "runs"}, map[string]string{"WEB": "old"}, "", false}, []string{"old"}, "", "disconnect -f net web",
		},
		"one that starts": {endpoints{map[string]string{"web": "exited"}, map[string]string{"ep-1": "web"}, "", false}, []string{"web"}, "", "docker rm web"},
		"one that has ended": {
			endpoints{map[string]string{"web": "exited"}, map[string]string{"WEB": "web"}, "", false}, []string{"web"}, "",
			"container web, which has ended, keeps it; type sudo docker rm web",
		},
		"one that is gone, whose name another has": {
			endpoints{map[string]string{"web": "runs"}, map[string]string{"GONE": "web"}, "", false}, []string{"web"}, "", "type sudo docker rename web web-2",
		},
		"one that is gone, whose name begins another's ID": {
			endpoints{map[string]string{"web1": "runs"}, map[string]string{"GONE": "web"}, "", false}, []string{"web"}, "", "active endpoints",
		},
		"one that cannot be read": {
			endpoints{map[string]string{"web": "unknown"}, map[string]string{"WEB": "web", "A": "a"}, "", false}, []string{"web"}, "out of order", "out of order",
		},
		"a network that cannot be read": {
			endpoints{nil, map[string]string{"A": "a"}, inspect, false}, []string{"a"}, "look up network net: ", "active endpoints",
		},
		"one that cannot be disconnected": {
			endpoints{nil, map[string]string{"A": "a"}, "POST /networks/net/disconnect", false}, []string{"a"}, "disconnect a from network net: ", "disconnect a from network net: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			was := maps.Clone(row.engine.containers)
			for _, call := range []string{"clear", "remove"} {
				fake := row.engine
				fake.list = maps.Clone(fake.list)
				e := engineOf(t, &fake)
				do, says := e.DetachGone, row.fails
				if call == "remove" {
					do, says = e.RemoveNetwork, row.says
				}
				if err := do(t.Context(), "net"); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v, want %q", call, err, says)
				}
				must.Equal(t, row.left, slices.Collect(maps.Values(fake.list)))
				must.Equal(t, was, fake.containers)
				must.Equal(t, call == "remove" && says == "", fake.removed)
			}
		})
	}
}
