package docker

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// engine is a Docker engine that has only containers.
type engine struct {
	mu         sync.Mutex
	requests   []string
	containers map[string]string // ID to cgroup parent
	// removing has containers whose removal someone else has begun: it is complete when it is
	// waited for.
	removing map[string]bool
	hung     map[string]bool   // do not answer an inspection
	stuck    map[string]bool   // cannot be removed
	labels   map[string]string // "name=value", of containers
}

// engineOf returns an engine that answers as the handler does.
func engineOf(t *testing.T, handler http.Handler) *Engine {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	e, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Api-Version", "1.45")
	w.Header().Set("Content-Type", "application/json")
	path := strings.TrimPrefix(r.URL.Path, "/v1.45")
	if path == "/_ping" {
		return
	}
	if r.Method != http.MethodGet {
		e.requests = append(e.requests, r.Method+" "+path+"?"+r.URL.RawQuery)
	}
	reply := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	if path == "/containers/json" {
		list := []map[string]string{{"Id": "vanished"}}
		for id := range e.containers {
			if strings.Contains(r.URL.Query().Get("filters"), `"`+e.labels[id]+`"`) {
				list = append(list, map[string]string{"Id": id})
			}
		}
		reply(http.StatusOK, list)
		return
	}
	parts := strings.Split(path, "/")
	id := parts[2]
	parent, ok := e.containers[id]
	switch verb := parts[len(parts)-1]; {
	case !ok:
		reply(http.StatusNotFound, map[string]string{"message": "No such container"})
	case verb == "json" && e.hung[id]:
		e.mu.Unlock()
		<-r.Context().Done()
		e.mu.Lock()
	case verb == "json":
		reply(http.StatusOK, map[string]any{"Id": id, "HostConfig": map[string]string{"CgroupParent": parent}})
	case verb == "wait":
		delete(e.containers, id)
		reply(http.StatusOK, map[string]int{"StatusCode": 0})
	case r.Method == http.MethodDelete && e.stuck[id]:
		reply(http.StatusInternalServerError, map[string]string{"message": "could not kill"})
	case r.Method == http.MethodDelete && e.removing[id]:
		reply(http.StatusConflict, map[string]string{"message": "removal of container " + id + " is already in progress"})
	case r.Method == http.MethodDelete:
		delete(e.containers, id)
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		got.Runc = e.Runc(t.Context())
		want := row.want
		want.Version, want.APIVersion, want.CgroupDriver, want.CgroupVersion, want.StorageDriver = "x", version, "systemd", "2", "overlay2"
		want.RootDir, want.Runtimes, want.DefaultRuntime = "/var/lib/docker", []string{"io.containerd.runc.v2", "runc"}, "runc"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", version, diff)
		}
	}
}

func TestAbsent(t *testing.T) {
	t.Parallel()
	e, err := New(filepath.Join(t.TempDir(), "docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Info(t.Context()); !errors.Is(err, ErrAbsent) {
		t.Errorf("Info: %v, want ErrAbsent", err)
	}
	if _, err := e.CleanSlot(t.Context(), "buildkite-gpu0.slice", "kbnode.slot=0"); !errors.Is(err, ErrAbsent) {
		t.Errorf("CleanSlot: %v, want ErrAbsent", err)
	}
	if _, err := e.Networks(t.Context(), "x"); !errors.Is(err, ErrAbsent) {
		t.Errorf("Networks: %v, want ErrAbsent", err)
	}
	if _, err := e.ImageConfig(t.Context(), "x"); !errors.Is(err, ErrAbsent) {
		t.Errorf("ImageConfig: %v, want ErrAbsent", err)
	}
}

func TestImage(t *testing.T) {
	t.Parallel()
	e := answering(t, map[string]http.HandlerFunc{
		"GET /images/there/json":   says(200, `{"Id":"sha256:1","RepoDigests":["there@sha256:2"],"Size":3}`),
		"GET /images/nowhere/json": says(404, `{"message":"No such image"}`),
	})
	got, err := e.Image(t.Context(), "there")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Image{ID: "sha256:1", Digests: []string{"there@sha256:2"}, Size: 3}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := e.Image(t.Context(), "nowhere"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
}

// TestCleanSlot removes the slot's containers and asks about no other: one that hangs its
// inspection affects only its own slot.
func TestCleanSlot(t *testing.T) {
	t.Parallel()
	const label, slice = "kbnode.slot=0", "buildkite-gpu0.slice"
	fake := &engine{removing: map[string]bool{"d": true}, hung: map[string]bool{"b": true, "e": true},
		containers: map[string]string{"a": slice, "b": "buildkite-gpu1.slice", "c": "", "d": slice, "e": slice},
		labels:     map[string]string{"a": label, "b": "kbnode.slot=1", "c": label, "d": label, "e": label}}
	e := engineOf(t, fake)
	e.inspectTime = 50 * time.Millisecond
	n, err := e.CleanSlot(t.Context(), slice, label)
	if err != nil || n != 3 {
		t.Fatalf("%d, %v", n, err)
	}
	slices.Sort(fake.requests)
	want := []string{
		"DELETE /containers/a?force=1&v=1", "DELETE /containers/d?force=1&v=1", "DELETE /containers/e?force=1&v=1",
		"POST /containers/a/stop?t=5", "POST /containers/d/stop?t=5",
		"POST /containers/d/wait?condition=removed",
	}
	if diff := cmp.Diff(want, fake.requests); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"b": "buildkite-gpu1.slice", "c": ""}, fake.containers); diff != "" {
		t.Errorf("what is left:\n%s", diff)
	}
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
	fake := &engine{stuck: map[string]bool{"a": true}, hung: map[string]bool{"a": true},
		containers: map[string]string{"a": slice, "b": slice}, labels: map[string]string{"a": label, "b": label}}
	e := engineOf(t, fake)
	e.inspectTime = 50 * time.Millisecond
	if _, err := e.CleanSlot(t.Context(), slice, label); err == nil || !strings.Contains(err.Error(), "remove container a: ") {
		t.Errorf("%v, want one about container a", err)
	}
	if _, left := fake.containers["b"]; left {
		t.Error("container b was not removed")
	}
}
