package docker

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/moby/client"

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

// TestProxies finds a proxy only where the engine asks it for everything: also by plain HTTP, and not where NO_PROXY or
// a name of this machine makes an exception.
func TestProxies(t *testing.T) {
	t.Parallel()
	both := Info{HTTPProxy: "http://p:3128", HTTPSProxy: "http://p:3128", NoProxy: "lan.example,10.0.0.0/8"}
	for _, row := range []struct {
		info     Info
		registry string
		want     bool
	}{
		{Info{}, "reg.example", false}, {both, "reg.example:5000", true}, {both, "a.lan.example", false}, {both, "10.0.0.1:5000", false},
		{both, "localhost:5000", false}, {both, "127.0.0.1", false}, {Info{HTTPSProxy: "http://p:3128"}, "reg.example", false}, {Info{HTTPProxy: "http://p:3128"}, "reg.example", false},
	} {
		if got := row.info.Proxies(row.registry); got != row.want {
			t.Errorf("%s with %+v: %t", row.registry, row.info, got)
		}
	}
}

func TestAbsent(t *testing.T) {
	t.Parallel()
	e, err := New(filepath.Join(t.TempDir(), "docker.sock"))
	must.Do(t, err)
	_, ofInfo := e.Info(t.Context())
	ofRemove := e.Remove(t.Context(), "x")
	_, ofNetworks := e.Networks(t.Context(), "x")
	_, ofConfig := e.ImageConfig(t.Context(), "x")
	for _, err := range []error{ofInfo, ofRemove, ofNetworks, ofConfig} {
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

// TestRemove gives a container time to end, and removes it whether it could be stopped or not. One that can never
// start again, and one that someone else removes, are in no one's way.
func TestRemove(t *testing.T) {
	t.Parallel()
	var asked []string
	note := func(verb string, statuses map[string]int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			id := r.PathValue("id")
			asked = append(asked, strings.TrimSpace(id+" "+verb+" "+r.URL.RawQuery))
			says(cmp.Or(statuses[id], 204), `{"message": "no"}`)(w, r)
		}
	}
	e := answering(t, map[string]http.HandlerFunc{
		"POST /containers/{id}/stop": note("stop", map[string]int{"gone": 404, "ended": 304, "stuck": 500}),
		"DELETE /containers/{id}":    note("rm", map[string]int{"gone": 404, "removing": 409, "stuck": 500, "dead": 500}),
		"GET /containers/{id}/json": func(w http.ResponseWriter, r *http.Request) {
			says(200, `{"State": {"Dead": `+strconv.FormatBool(r.PathValue("id") == "dead")+`}}`)(w, r)
		},
		"POST /containers/{id}/wait": func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, "removing wait")
			if r.URL.Query().Get("condition") == "removed" {
				<-r.Context().Done() // it never is
			}
			says(200, `{"StatusCode":0}`)(w, r)
		},
		"GET /containers/json": func(w http.ResponseWriter, r *http.Request) {
			must.Equal(t, "1", r.URL.Query().Get("all"))
			must.Equal(t, `{"name":{"^/?a\\.":true}}`, r.URL.Query().Get("filters"))
			says(200, `[{"Id":"dead","Names":["/a1"]}, {"Id":"runs","Names":["/b/a2","/a2","/c/a2"],"State":"running"}, {"Id":"theirs","Names":["/b"]}]`)(w, r)
		},
	})
	for _, id := range []string{"runs", "ended", "gone", "removing", "dead"} {
		must.Do(t, e.Remove(t.Context(), id))
	}
	must.Err(t, e.Remove(t.Context(), "stuck"), "remove container stuck: ")
	must.Do(t, e.RemoveNamed(t.Context(), "a.", func(name string) bool { return strings.HasPrefix(name, "a") }))
	must.Equal(t, []string{
		"runs stop signal=SIGTERM&t=5", "runs rm force=1&v=1", "ended stop signal=SIGTERM&t=5", "ended rm force=1&v=1", "gone stop signal=SIGTERM&t=5", "gone rm force=1&v=1",
		"removing stop signal=SIGTERM&t=5", "removing rm force=1&v=1", "removing wait", "dead stop signal=SIGTERM&t=5", "dead rm force=1&v=1", "stuck stop signal=SIGTERM&t=5", "stuck rm force=1&v=1",
		"dead stop signal=SIGTERM&t=5", "dead rm force=1&v=1", "runs stop signal=SIGTERM&t=5", "runs rm force=1&v=1",
	}, asked)
}

// deadlines has no engine, and notes by when each request must be answered.
type deadlines struct{ left []time.Duration }

func (d *deadlines) RoundTrip(r *http.Request) (*http.Response, error) {
	by, _ := r.Context().Deadline()
	d.left = append(d.left, time.Until(by))
	return nil, errors.New("no answer")
}

// TestShortRequests gives each short request a limit, for an engine that hangs.
func TestShortRequests(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(context.Context, *Engine) error{
		"info":          func(ctx context.Context, e *Engine) error { _, err := e.Info(ctx); return err },
		"image":         func(ctx context.Context, e *Engine) error { _, err := e.Image(ctx, "x"); return err },
		"names":         func(ctx context.Context, e *Engine) error { _, err := e.Names(ctx, "x"); return err },
		"images in use": func(ctx context.Context, e *Engine) error { _, err := e.ImagesInUse(ctx); return err },
		"running":       func(ctx context.Context, e *Engine) error { _, err := e.Running(ctx); return err },
		"tag":           func(ctx context.Context, e *Engine) error { return e.Tag(ctx, "x", "y") },
		"untag":         func(ctx context.Context, e *Engine) error { return e.Untag(ctx, "x") },
	} {
		synctest.Test(t, func(t *testing.T) {
			var made deadlines
			api, err := client.New(client.WithHTTPClient(&http.Client{Transport: &made}), client.WithAPIVersion("1.45"))
			must.Do(t, err)
			e := &Engine{api: api}
			want := requestDeadline
			switch name {
			case "info":
				want = infoDeadline
			case "untag":
				want = untagDeadline
			}
			must.Err(t, ask(t.Context(), e), "no answer")
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			must.Err(t, ask(ctx, e), "no answer")
			if !slices.Equal(made.left, []time.Duration{want, time.Hour}) {
				t.Errorf("%s: %v", name, made.left)
			}
		})
	}
}
