package docker

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// engineOf returns an engine that answers as the handler does.
func engineOf(t *testing.T, handler http.Handler) *Engine {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	must.Serve(t, socket, handler.ServeHTTP)
	e, err := New(socket)
	must.Do(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// fakeContainer is a container that a slot's service may have left.
type fakeContainer struct {
	parent, label string
	removing      bool // someone else has begun to: it is gone when it is waited for
	hung          bool // does not answer an inspection
	stuck         bool // cannot be removed
}

// having returns an engine that has only containers, by ID, and what it was asked to change.
func having(t *testing.T, containers map[string]fakeContainer) (e *Engine, asked *[]string) {
	t.Helper()
	var mu sync.Mutex
	asked = &[]string{}
	route := func(answer func(r *http.Request, id string, c fakeContainer) http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if r.Method != http.MethodGet {
				*asked = append(*asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1.45")+"?"+r.URL.RawQuery)
			}
			id := r.PathValue("id")
			c, ok := containers[id]
			if !ok {
				says(404, `{"message":"No such container"}`)(w, r)
				return
			}
			answer(r, id, c)(w, r)
		}
	}
	e = answering(t, map[string]http.HandlerFunc{
		"GET /containers/json": func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			list := []map[string]string{{"Id": "vanished"}}
			for id, c := range containers {
				if strings.Contains(r.URL.Query().Get("filters"), `"`+c.label+`"`) {
					list = append(list, map[string]string{"Id": id})
				}
			}
			_ = json.NewEncoder(w).Encode(list)
		},
		"GET /containers/{id}/json": route(func(r *http.Request, id string, c fakeContainer) http.HandlerFunc {
			if c.hung {
				mu.Unlock()
				<-r.Context().Done()
				mu.Lock()
			}
			return says(200, `{"Id":"`+id+`","HostConfig":{"CgroupParent":"`+c.parent+`"}}`)
		}),
		"POST /containers/{id}/stop": route(func(*http.Request, string, fakeContainer) http.HandlerFunc { return says(204, "") }),
		"POST /containers/{id}/wait": route(func(_ *http.Request, id string, _ fakeContainer) http.HandlerFunc {
			delete(containers, id)
			return says(200, `{"StatusCode":0}`)
		}),
		"DELETE /containers/{id}": route(func(_ *http.Request, id string, c fakeContainer) http.HandlerFunc {
			switch {
			case c.stuck:
				return says(500, `{"message":"could not kill"}`)
			case c.removing:
				return says(409, `{"message":"removal of container `+id+` is already in progress"}`)
			}
			delete(containers, id)
			return says(204, "")
		}),
	})
	e.inspectTime = 300 * time.Millisecond
	return e, asked
}

// TestInfo talks to the engines of Debian 12 (20.10, API 1.41), Debian 13 (26.1, API 1.45) and
// one with CDI in its info (28.2, API 1.50).
func TestInfo(t *testing.T) {
	t.Parallel()
	const common = `"ServerVersion":"x","CgroupDriver":"systemd","CgroupVersion":"2","Driver":"overlay2","DockerRootDir":"/var/lib/docker","DefaultRuntime":"runc",
		"Runtimes":{"runc":{},"io.containerd.runc.v2":{}}`
	components := says(200, `{"Components":[{"Name":"Engine","Version":"x"},{"Name":"runc","Version":"1.1.5+ds1"}]}`)
	for version, row := range map[string]struct {
		more string
		runc http.HandlerFunc
		want Info
	}{
		"1.41": {"", says(404, `{"message":"page not found"}`), Info{}},
		"1.45": {"", components, Info{Runc: "1.1.5+ds1"}},
		"1.50": {`,"DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]],"SecurityOptions":["name=userns"],"Warnings":["WARNING: x"],
			"RegistryConfig":{"IndexConfigs":{"docker.io":{"Secure":true},"r.example:5000":{"Secure":false}}},"CDISpecDirs":["/etc/cdi","/var/run/cdi"],
			"DiscoveredDevices":[{"Source":"cdi","ID":"nvidia.com/gpu=1"},{"Source":"cdi","ID":"nvidia.com/gpu=0"},{"Source":"x","ID":"y"}]`, components, Info{
			Runc: "1.1.5+ds1", CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"}, CDIDevices: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"},
			Snapshotter: true, Insecure: []string{"r.example:5000"}, Security: []string{"name=userns"}, Warnings: []string{"WARNING: x"},
		}},
	} {
		e := answeringAs(t, version, map[string]http.HandlerFunc{"GET /info": says(200, "{"+common+row.more+"}"), "GET /version": row.runc})
		got, err := e.Info(t.Context())
		must.Do(t, err)
		got.Runc = e.Runc(t.Context())
		want := row.want
		want.Version, want.APIVersion, want.CgroupDriver, want.CgroupVersion, want.StorageDriver = "x", version, "systemd", "2", "overlay2"
		want.RootDir, want.Runtimes, want.DefaultRuntime = "/var/lib/docker", []string{"io.containerd.runc.v2", "runc"}, "runc"
		must.Equal(t, want, got)
	}
}

func TestAbsent(t *testing.T) {
	t.Parallel()
	e, err := New(filepath.Join(t.TempDir(), "docker.sock"))
	must.Do(t, err)
	_, ofInfo := e.Info(t.Context())
	_, ofClean := e.CleanSlot(t.Context(), "buildkite-gpu0.slice", "kbnode.slot=0")
	_, ofNetworks := e.Networks(t.Context(), "x")
	_, ofConfig := e.ImageConfig(t.Context(), "x")
	for _, err := range []error{ofInfo, ofClean, ofNetworks, ofConfig} {
		if !errors.Is(err, ErrAbsent) {
			t.Errorf("%v, want ErrAbsent", err)
		}
	}
}

func TestImage(t *testing.T) {
	t.Parallel()
	e := answering(t, map[string]http.HandlerFunc{
		"GET /images/there/json":   says(200, `{"Id":"sha256:1","RepoDigests":["there@sha256:2"],"Size":3}`),
		"GET /images/nowhere/json": says(404, `{"message":"No such image"}`),
	})
	got, err := e.Image(t.Context(), "there")
	must.Do(t, err)
	must.Equal(t, Image{ID: "sha256:1", Digests: []string{"there@sha256:2"}, Size: 3}, got)
	if _, err := e.Image(t.Context(), "nowhere"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
}

// TestCleanSlot removes the slot's containers and asks about no other: one that hangs its
// inspection affects only its own slot.
func TestCleanSlot(t *testing.T) {
	t.Parallel()
	const label, slice = "kbnode.slot=0", "buildkite-gpu0.slice"
	containers := map[string]fakeContainer{
		"a": {parent: slice, label: label}, "b": {parent: "buildkite-gpu1.slice", label: "kbnode.slot=1", hung: true}, "c": {label: label},
		"d": {parent: slice, label: label, removing: true}, "e": {parent: slice, label: label, hung: true},
	}
	e, asked := having(t, containers)
	n, err := e.CleanSlot(t.Context(), slice, label)
	if err != nil || n != 3 {
		t.Fatalf("%d, %v", n, err)
	}
	slices.Sort(*asked)
	must.Equal(t, []string{
		"DELETE /containers/a?force=1&v=1", "DELETE /containers/d?force=1&v=1", "DELETE /containers/e?force=1&v=1",
		"POST /containers/a/stop?t=5", "POST /containers/d/stop?t=5",
		"POST /containers/d/wait?condition=removed",
	}, *asked)
	must.Equal(t, []string{"b", "c"}, slices.Sorted(maps.Keys(containers)))
	for _, bad := range [][2]string{{"", label}, {"buildkite-gpu0", label}, {"/x.slice", label}, {slice, ""}, {slice, "kbnode.slot="}} {
		if _, err := e.CleanSlot(t.Context(), bad[0], bad[1]); err == nil {
			t.Errorf("cleaned %q", bad)
		}
	}
}

// TestCleanSlotFails: a container that cannot be removed does not keep the others.
func TestCleanSlotFails(t *testing.T) {
	t.Parallel()
	const label, slice = "kbnode.slot=0", "buildkite-gpu0.slice"
	containers := map[string]fakeContainer{"a": {parent: slice, label: label, stuck: true, hung: true}, "b": {parent: slice, label: label}}
	e, _ := having(t, containers)
	_, err := e.CleanSlot(t.Context(), slice, label)
	must.Err(t, err, "remove container a: ")
	must.Equal(t, []string{"a"}, slices.Sorted(maps.Keys(containers)))
}
