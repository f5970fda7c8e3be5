package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/test/registrytest"
)

// TestEngine updates images in a real Docker engine, whose socket is in KBNODE_TEST_DOCKER
// and which reaches this process on 127.0.0.1. The registry and the canaries are fake.
func TestEngine(t *testing.T) {
	socket := os.Getenv("KBNODE_TEST_DOCKER")
	if socket == "" {
		t.Skip("KBNODE_TEST_DOCKER names no engine")
	}
	login := t.TempDir()
	t.Setenv("DOCKER_CONFIG", login)
	engine, err := docker.New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	registry := &registrytest.Registry{}
	server := httptest.NewServer(registry)
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/eval"
	latest, dir := repository+":latest", t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	quiet := func(docker.Progress) {}
	// publish puts another image into the registry, and removes it from the engine.
	publish := func(tag string) {
		t.Helper()
		must(engine.Import(t.Context(), repository+":"+tag, layer(t)))
		must(engine.Push(t.Context(), repository+":"+tag, quiet))
		must(engine.Untag(t.Context(), repository+":"+tag))
	}
	w := newWorld(t)
	u := func() *Updater {
		return &Updater{Engine: engine, Node: realNode{w, engine}, Dir: dir, Name: latest, Keep: 1, Pause: 10 * time.Millisecond, Say: func(s string) { t.Log(s) }}
	}
	stands := func() string {
		t.Helper()
		i, err := engine.Image(t.Context(), latest)
		must(err)
		return i.ID
	}
	do := func(what string) func(Result, error) Result {
		return func(r Result, err error) Result {
			t.Helper()
			if err != nil || r.Action != what {
				t.Fatalf("%+v, %v; want %q", r, err, what)
			}
			return r
		}
	}
	update := func(o Options, what string) Result { t.Helper(); return do(what)(u().Update(t.Context(), o)) }

	publish("latest")
	update(Options{}, ActionUpdated)
	update(Options{Auto: true}, ActionNone)
	first := stands()

	publish("latest")
	registry.SetFaults(registrytest.Faults{Cuts: 1, After: 300 << 10})
	update(Options{Check: true}, ActionNewer)
	update(Options{Auto: true}, ActionUpdated)
	second := stands()
	if second == first {
		t.Fatal("the name stands for the first image still")
	}

	publish("latest")
	third := update(Options{}, ActionUpdated)
	if _, err := engine.Image(t.Context(), first); !errors.Is(err, docker.ErrNotFound) {
		t.Errorf("the oldest image: %v, want it gone", err)
	}
	do(ActionBack)(u().Rollback(t.Context(), "a test"))
	if stands() != second {
		t.Error("the rollback did not go back")
	}
	if _, err := engine.Image(t.Context(), third.Current.ID); !errors.Is(err, docker.ErrNotFound) {
		t.Errorf("the image that was gone back from: %v, want it gone", err)
	}
	update(Options{Auto: true}, ActionSkipped)

	publish("bad")
	w.bad["new"] = true
	update(Options{From: repository + ":bad"}, ActionRefused)
	w.bad["new"] = false
	if stands() != second {
		t.Error("an image that failed got the name")
	}

	// A container uses an image that should be removed.
	held := create(t, socket, latest)
	defer func() { _ = engine.Discard(context.Background(), held) }()
	for range 2 {
		publish("latest")
		update(Options{}, ActionUpdated)
	}
	if _, err := engine.Image(t.Context(), second); err != nil {
		t.Errorf("an image that a container uses: %v", err)
	}
	must(engine.Discard(t.Context(), held))
	update(Options{}, ActionNone)
	if _, err := engine.Image(t.Context(), second); !errors.Is(err, docker.ErrNotFound) {
		t.Errorf("an image that no container uses any more: %v", err)
	}

	base := stands()
	src := Source{Dockerfile: "Dockerfile", Archive: func() (io.ReadCloser, error) {
		return archive(t, "Dockerfile", fmt.Appendf(nil, "FROM %s\nLABEL built=here\n", latest)), nil
	}}
	built := do(ActionUpdated)(u().Build(t.Context(), src, true, Options{}))
	if built.Current.Digest == "" || built.Current.Digest != registry.Digest("eval", "latest") || stands() == base {
		t.Errorf("built and pushed: %+v, and the registry has %s", built.Current, registry.Digest("eval", "latest"))
	}
	update(Options{Auto: true}, ActionNone)
	if _, err := engine.Resolve(t.Context(), repository+":nowhere"); !errors.Is(err, docker.ErrRefused) {
		t.Errorf("a tag that is not there: %v", err)
	}

	// A registry that requires credentials.
	locked := httptest.NewServer(&registrytest.Registry{User: "u", Password: "s3cret"})
	defer locked.Close()
	host := strings.TrimPrefix(locked.URL, "http://")
	private := host + "/eval:private"
	must(engine.Tag(t.Context(), latest, private))
	if err := engine.Push(t.Context(), private, quiet); !errors.Is(err, docker.ErrRefused) {
		t.Errorf("a push without credentials: %v", err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte("u:s3cret"))
	must(os.WriteFile(filepath.Join(login, "config.json"), fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, auth), 0o600))
	must(engine.Push(t.Context(), private, quiet))
	sum, err := engine.Resolve(t.Context(), private)
	must(err)
	must(engine.Untag(t.Context(), private))
	must(engine.Pull(t.Context(), host+"/eval@"+sum, quiet))
	must(engine.Untag(t.Context(), host+"/eval@"+sum))

	names, err := engine.Names(t.Context(), ownNames)
	must(err)
	if len(names) != 2 {
		t.Errorf("kbnode's own names are %v", names)
	}
	for n := range names {
		must(engine.Untag(t.Context(), n))
	}
	must(engine.Untag(t.Context(), latest))
}

// create makes a container and returns its ID.
func create(t *testing.T, socket, image string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://engine/containers/create", "application/json", strings.NewReader(fmt.Sprintf(`{"Image":%q,"Cmd":["true"]}`, image)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var made struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.ID == "" {
		t.Fatal(resp.Status, err)
	}
	return made.ID
}

// realNode is a node with images of the engine and fake verdicts.
type realNode struct {
	*world
	engine *docker.Engine
}

func (n realNode) Canary(ctx context.Context, slot Slot, image string) (Canary, error) {
	if _, err := n.engine.Image(ctx, image); err != nil {
		return Canary{}, err
	}
	n.passed[image] = n.passed[image] || !n.bad["new"]
	return Canary{Slot: slot.Name, Passed: n.passed[image], Reason: "it fails"}, nil
}

// layer returns a root file system with some random bytes.
func layer(t *testing.T) io.Reader {
	t.Helper()
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	return archive(t, "random", data)
}

func archive(t *testing.T, name string, data []byte) io.ReadCloser {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return io.NopCloser(&b)
}
