package guard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/checkout"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// rig is a guard in front of a fake engine, with the slice's cgroup files.
type rig struct {
	engine   *fakeEngine
	policy   plan.JobPolicy
	cgroup   string // directory of the slice
	socket   string
	mounts   *binder
	network  *fakeNetwork
	confiner *confiner
	keeper   slotKeeper
	root     int // user ID
	mirrors  func() (checkout.Mirrors, error)
	patience time.Duration // with the engine, and with a canceled job
	mu       sync.Mutex
	held     map[string]string // what is mounted now, by held path
	stop     context.CancelFunc
	done     chan error
	client   *http.Client
}

func newRig(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &rig{engine: newFakeEngine(t), policy: testPolicy(), done: make(chan error, 1), root: -1}
	r.policy.User = me.Username
	r.policy.DockerSocket = r.engine.socket
	r.policy.WorkRoot = filepath.Join(dir, "work")
	r.policy.Socket = filepath.Join(dir, "run", "gpu0", "docker.sock")
	r.socket = r.policy.Socket
	r.cgroup = filepath.Join(dir, "cgroup", "buildkite.slice", "buildkite-gpu0.slice")
	if err := os.MkdirAll(filepath.Join(r.policy.WorkRoot, "checkout"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(r.cgroup, 0o700); err != nil {
		t.Fatal(err)
	}
	r.limit(t, "cpuset.cpus.effective", r.policy.CPUs)
	r.limit(t, "cpuset.mems.effective", r.policy.MemoryNodes)
	r.limit(t, "memory.max", "34359738368")
	r.limit(t, "memory.swap.max", "0")
	r.client = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", r.socket) }}}
	r.held = map[string]string{}
	r.mounts = &binder{
		dir: filepath.Join(filepath.Dir(r.socket), mountsDir),
		mount: func(source, held string) error {
			fd, err := openExact(source)
			if err != nil {
				return err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.held[held] = source
			return syscall.Close(fd)
		},
		unmount: func(held string) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.held, held)
			return nil
		},
	}
	r.network = &fakeNetwork{}
	for _, f := range change {
		f(r)
	}
	r.serve(t, filepath.Join(dir, "cgroup"))
	return r
}

// serve starts a guard and waits until it answers.
func (r *rig) serve(t testing.TB, cgroupRoot string) {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	uid, gid, err := lookupUser(me.Username)
	if err != nil {
		t.Fatal(err)
	}
	l, err := listen(r.socket, uid, gid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() {
		r.done <- Serve(ctx, Config{Policy: r.policy, Listener: l, CgroupRoot: cgroupRoot, Log: slog.New(slog.DiscardHandler), binder: r.mounts, network: r.network.slot(), confiner: r.confiner, keeper: r.keeper, mirrors: r.mirrors, root: r.root, engineTime: r.patience, stopGrace: r.patience})
	}()
	t.Cleanup(cancel)
	for deadline := time.Now().Add(5 * time.Second); r.policy.Network != "none" && !r.network.asked() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

func (r *rig) limit(t testing.TB, file, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.cgroup, file), []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ask sends one request and returns the status and the body, or the message of an error.
func (r *rig) ask(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://docker"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Registry-Auth", "e30=")
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp(resp.Body)
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= 400 {
		var no struct{ Message string }
		if err := json.Unmarshal(data, &no); err != nil || no.Message == "" {
			t.Fatalf("%s %s: %d without a message: %s", method, path, resp.StatusCode, data)
		}
		return resp.StatusCode, no.Message
	}
	return resp.StatusCode, string(data)
}

func (r *rig) create(t testing.TB, name string) string {
	t.Helper()
	path := "/v1.45/containers/create"
	if name != "" {
		path += "?name=" + name
	}
	status, body := r.ask(t, "POST", path, `{"Image":"img"}`)
	var made struct {
		ID string `json:"Id"`
	}
	if err := json.Unmarshal([]byte(body), &made); status != http.StatusCreated || err != nil {
		t.Fatalf("create: %d %s", status, body)
	}
	return made.ID
}

const (
	neighbour = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	forged    = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
	earlier   = "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
)

func TestRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.add(neighbour, "kbnode-gpu1-job", "buildkite-gpu1.slice", "1")
	// A label alone makes no one an owner: an image may have it.
	r.engine.add(forged, "forged", "", "0")
	r.engine.add(earlier, "kbnode-gpu0-earlier", "buildkite-gpu0.slice", "0")
	own := r.create(t, "job")
	for name, row := range map[string]struct {
		method, path, body string
		status             int
		want               string // in the answer
		engine             string // what the engine must have been asked; "" for nothing new
	}{
		"ping":                           {"GET", "/_ping", "", 200, "", "GET /_ping"},
		"ping of a version":              {"GET", "/v1.41/_ping", "", 200, "", "GET /v1.41/_ping"},
		"version":                        {"GET", "/v1.50/version", "", 200, "26.1.5", "GET /v1.50/version"},
		"info tells of the slot only":    {"GET", "/v1.45/info", "", 200, `"NCPU":4,"Name":"gpu0"`, "GET /v1.45/info"},
		"a version of long ago":          {"GET", "/v1.24/containers/json", "", 400, "too old", ""},
		"a version that is none":         {"GET", "/v2.0/info", "", 403, "is not available to jobs", ""},
		"pull":                           {"POST", "/v1.45/images/create?fromImage=docker.io%2Flibrary%2Fimg&tag=1", "", 200, "Pulled", "POST /v1.45/images/create?fromImage=docker.io%2Flibrary%2Fimg&tag=1"},
		"pull of all tags":               {"POST", "/images/create?fromImage=a.b:5000/img", "", 403, "set the tag", ""},
		"import":                         {"POST", "/images/create?fromSrc=http://x/y.tar", "", 403, `"fromSrc"`, ""},
		"import by an empty pull":        {"POST", "/images/create", "", 403, "set fromImage", ""},
		"image of a long name":           {"GET", "/v1.45/images/ghcr.io/a/b:1/json", "", 200, "sha256:", "GET /v1.45/images/ghcr.io/a/b:1/json"},
		"image that is a way elsewhere":  {"GET", "/images/../containers/" + neighbour + "/json", "", 403, "not the name of an image", ""},
		"image with an encoded way":      {"GET", "/images/a%2f..%2f..%2finfo/json", "", 403, "not the name of an image", ""},
		"own container":                  {"GET", "/v1.45/containers/" + own + "/json", "", 200, own, "GET /v1.45/containers/" + own + "/json"},
		"own container by name":          {"GET", "/v1.45/containers/job/json", "", 200, own, "GET /v1.45/containers/" + own + "/json"},
		"own container by short ID":      {"POST", "/v1.45/containers/" + own[:63] + "/kill?signal=TERM", "", 204, "", "POST /v1.45/containers/" + own + "/kill?signal=TERM"},
		"container of an earlier guard":  {"POST", "/v1.45/containers/earlier/resize?h=1&w=2", "", 204, "", "POST /v1.45/containers/" + earlier + "/resize?h=1&w=2"},
		"neighbour's container":          {"GET", "/containers/" + neighbour + "/json", "", 404, "No such container: " + neighbour, ""},
		"neighbour's container by name":  {"POST", "/containers/kbnode-gpu1-job/stop", "", 404, "No such container: kbnode-gpu1-job", ""},
		"neighbour's container by short": {"POST", "/containers/bbbb/kill", "", 404, "No such container: bbbb", ""},
		"neighbour's logs":               {"GET", "/containers/" + neighbour + "/logs?stdout=1", "", 404, "No such container", ""},
		"neighbour removed":              {"DELETE", "/containers/" + neighbour + "?force=1", "", 404, "No such container", ""},
		"container with a forged label":  {"DELETE", "/containers/" + forged + "?force=1", "", 404, "No such container", ""},
		"container that is a way":        {"GET", "/containers/..%2fimages/json", "", 403, "is not available to jobs", ""},
		"container of no name":           {"DELETE", "/containers/", "", 403, "is not available to jobs", ""},
		"long stop":                      {"POST", "/v1.45/containers/job/stop?t=-1", "", 204, "", "POST /v1.45/containers/" + own + "/stop?t=60"},
		"logs":                           {"GET", "/v1.45/containers/job/logs?follow=1&stdout=1&tail=all", "", 200, "logged", "GET /v1.45/containers/" + own + "/logs?follow=1&stdout=1&tail=all"},
		"start":                          {"POST", "/v1.45/containers/job/start", "", 204, "", "POST /v1.45/containers/" + own + "/start"},
		"an unknown parameter":           {"POST", "/containers/job/start?checkpoint=x", "", 403, `"checkpoint"`, ""},
		"a parameter twice":              {"POST", "/containers/job/kill?signal=TERM&signal=KILL", "", 403, "is set twice", ""},
		"a parameter of another shape":   {"POST", "/containers/job/kill?signal=TERM%20x", "", 403, "cannot be", ""},
		"a malformed query":              {"POST", "/containers/job/kill?signal=%zz", "", 400, "malformed", ""},
		"attach without an upgrade":      {"POST", "/containers/job/attach?stream=1", "", 400, "Upgrade: tcp", ""},
		"a job that is none":             {"POST", "/kbnode/run", "{}", 403, "kind:", ""},
		"the end of no job":              {"POST", "/kbnode/cancel?job=0190", "", 404, "does not run job 0190", ""},
		"exec":                           {"POST", "/containers/job/exec", `{"Cmd":["sh"],"Privileged":true}`, 403, "is not available to jobs", ""},
		"update":                         {"POST", "/containers/job/update", `{"CpusetCpus":"0-63"}`, 403, "is not available to jobs", ""},
		"upload of an archive":           {"PUT", "/containers/job/archive?path=/", "", 403, "is not available to jobs", ""},
		"download of an archive":         {"GET", "/containers/job/archive?path=/", "", 403, "is not available to jobs", ""},
		"commit":                         {"POST", "/commit?container=job", "", 403, "is not available to jobs", ""},
		"build":                          {"POST", "/build", "", 403, "is not available to jobs", ""},
		"load":                           {"POST", "/images/load", "", 403, "is not available to jobs", ""},
		"removal of an image":            {"DELETE", "/images/img", "", 403, "is not available to jobs", ""},
		"prune":                          {"POST", "/containers/prune", "", 403, "is not available to jobs", ""},
		"volume":                         {"POST", "/volumes/create", "{}", 403, "is not available to jobs", ""},
		"new network":                    {"POST", "/networks/create", "{}", 403, "is not available to jobs", ""},
		"plugins":                        {"GET", "/plugins", "", 403, "is not available to jobs", ""},
		"swarm":                          {"POST", "/swarm/init", "{}", 403, "is not available to jobs", ""},
		"events":                         {"GET", "/events", "", 403, "is not available to jobs", ""},
		"system":                         {"GET", "/system/df", "", 403, "is not available to jobs", ""},
		"a session":                      {"POST", "/session", "", 403, "is not available to jobs", ""},
		"networks":                       {"GET", `/networks?filters=%7B%22name%22%3A%7B%22%5Enone%24%22%3Atrue%7D%7D`, "", 200, `[{"Driver":"null","Id":"none"`, ""},
		"networks that are not there":    {"GET", `/networks?filters=%7B%22name%22%3A%5B%22foo%22%5D%7D`, "", 200, `[]`, ""},
		"a list by somebody's container": {"GET", `/containers/json?filters=%7B%22before%22%3A%5B%22` + neighbour + `%22%5D%7D`, "", 403, `"before"`, ""},
		"a list with a filter twice":     {"GET", `/containers/json?filters=%7B%22label%22%3A%5B%5D%2C%22label%22%3A%5B%5D%7D`, "", 400, "duplicate key", ""},
		"privileged container":           {"POST", "/v1.45/containers/create", `{"Image":"img","HostConfig":{"Privileged":true}}`, 403, "kbnode: HostConfig.Privileged: a job's container cannot be privileged", ""},
		"image that is not there":        {"POST", "/v1.44/containers/create", `{"Image":"missing"}`, 404, "No such image", "POST /v1.44/containers/create"},
		"name that is a way":             {"POST", "/containers/create?name=..%2fx", `{"Image":"img"}`, 403, "cannot be", ""},
		"a body of four megabytes":       {"POST", "/containers/create", strings.Repeat(" ", 4<<20), 403, "larger than", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r.engine.mu.Lock()
			r.engine.requests = nil
			r.engine.mu.Unlock()
			status, answer := r.ask(t, row.method, row.path, row.body)
			if status != row.status || !strings.Contains(answer, row.want) {
				t.Errorf("answers %d %s, want %d with %q", status, answer, row.status, row.want)
			}
			if row.engine != "" && !r.engine.seen(row.engine) {
				t.Errorf("the engine was asked %q, want %q", r.engine.requests, row.engine)
			}
			for _, asked := range r.engine.requests {
				// To look up a container is to list and inspect the slot's.
				looking := strings.HasPrefix(asked, "GET ") || strings.HasPrefix(asked, "HEAD /_ping")
				if row.engine == "" && !looking {
					t.Errorf("the engine was asked %q", asked)
				}
			}
		})
	}
	t.Run("the list shows the slot's containers only", func(t *testing.T) {
		status, answer := r.ask(t, "GET", `/v1.45/containers/json?all=1&filters=%7B%22label%22%3A%7B%22com.buildkite.job-id%22%3Atrue%7D%7D`, "")
		var list []struct {
			ID string `json:"Id"`
		}
		if err := json.Unmarshal([]byte(answer), &list); err != nil || status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		got := map[string]bool{}
		for _, c := range list {
			got[c.ID] = true
		}
		if diff := cmp.Diff(map[string]bool{own: true, earlier: true}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a name is the slot's own in the engine", func(t *testing.T) {
		if got := r.engine.containers[own].Name; got != "/kbnode-gpu0-job" {
			t.Errorf("the engine calls it %s", got)
		}
	})
	if r.engine.auth != "e30=" {
		t.Errorf("the registry's credentials did not arrive: %q", r.engine.auth)
	}
}

func TestNoContainerWithoutLimits(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		spoil func(*testing.T, *rig)
		want  string
	}{
		"other CPUs":      {func(t *testing.T, r *rig) { r.limit(t, "cpuset.cpus.effective", "0-15") }, `cpuset.cpus.effective of buildkite-gpu0.slice is "0-15", planned is "2-3,10-11"`},
		"other memory":    {func(t *testing.T, r *rig) { r.limit(t, "cpuset.mems.effective", "0-1") }, "cpuset.mems.effective"},
		"no memory limit": {func(t *testing.T, r *rig) { r.limit(t, "memory.max", "max") }, "memory.max of buildkite-gpu0.slice is max"},
		"swap":            {func(t *testing.T, r *rig) { r.limit(t, "memory.swap.max", "max") }, "memory.swap.max"},
		"no slice": {func(t *testing.T, r *rig) {
			if err := os.RemoveAll(r.cgroup); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
		"the cgroupfs driver": {func(_ *testing.T, r *rig) { r.engine.driver = "cgroupfs" }, `cgroup driver "cgroupfs"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			row.spoil(t, r)
			status, answer := r.ask(t, "POST", "/containers/create", `{"Image":"img"}`)
			if status != http.StatusServiceUnavailable || !strings.Contains(answer, row.want) {
				t.Errorf("answers %d %s, want %q", status, answer, row.want)
			}
			if len(r.engine.created) != 0 {
				t.Error("a container was created")
			}
		})
	}
}

// TestStartLooksAgain replaces a mount's source with a link between create and start.
func TestStartLooksAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := filepath.Join(r.policy.WorkRoot, "checkout")
	status, answer := r.ask(t, "POST", "/containers/create?name=job", `{"Image":"img","HostConfig":{"Binds":["`+dir+`:/workdir"]}}`)
	if status != http.StatusCreated {
		t.Fatal(answer)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", dir); err != nil {
		t.Fatal(err)
	}
	if status, answer = r.ask(t, "POST", "/containers/job/start", ""); status != http.StatusForbidden || !strings.Contains(answer, "changed after the container was created") {
		t.Errorf("answers %d %s", status, answer)
	}
	// docker run --rm waits for the container to be removed.
	if len(r.engine.containers) != 0 {
		t.Errorf("left behind: %v", r.engine.containers)
	}
}

// startKeeper notes which containers start.
type startKeeper struct {
	slotKeeper
	started chan string
}

func (k *startKeeper) Started(id string)         { k.started <- id }
func (k *startKeeper) Made(string)               {}
func (k *startKeeper) Watch(ctx context.Context) { <-ctx.Done() }

func TestStartEndsTogether(t *testing.T) {
	t.Parallel()
	k := &startKeeper{started: make(chan string, 2)}
	r := newRig(t, func(r *rig) { r.keeper = k })
	// A container that has already ended has no cgroup.
	r.create(t, "ended")
	if status, answer := r.ask(t, "POST", "/containers/ended/start", ""); status != http.StatusNoContent {
		t.Fatalf("answers %d %s", status, answer)
	}
	id := r.create(t, "job")
	file := filepath.Join(r.cgroup, "docker-"+id+".scope", "memory.oom.group")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, answer := r.ask(t, "POST", "/containers/job/start", ""); status != http.StatusNoContent {
		t.Fatalf("answers %d %s", status, answer)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "1" {
		t.Errorf("memory.oom.group is %q, %v", got, err)
	}
	if n := len(k.started); n != 2 || <-k.started == id || <-k.started != id {
		t.Errorf("%d starts are recorded, want that of %s as the second of two", n, id)
	}
}

// TestBinds checks what the engine gets for a mount, and when it is mounted.
func TestBinds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := filepath.Join(r.policy.WorkRoot, "checkout")
	file := filepath.Join(dir, "task.json")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	started := map[string]string{}
	r.engine.onStart = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		maps.Copy(started, r.held)
	}
	body := `{"Image":"img","HostConfig":{"Binds":["` + dir + `:/workdir","` + file + `:/task.json:ro"]}}`
	for _, name := range []string{"job", "other"} {
		if status, answer := r.ask(t, "POST", "/containers/create?name="+name, body); status != http.StatusCreated {
			t.Fatal(answer)
		}
	}
	want := map[string]string{}
	for i, m := range r.engine.created[0].HostConfig.Mounts[:2] {
		info, err := os.Lstat(m.Source)
		if filepath.Dir(m.Source) != r.mounts.dir || err != nil || info.IsDir() != (i == 0) {
			t.Errorf("the engine gets %s (%v)", m.Source, err)
		}
		want[m.Source] = []string{dir, file}[i]
	}
	if status, answer := r.ask(t, "POST", "/containers/job/start", ""); status != http.StatusNoContent {
		t.Fatal(answer)
	}
	if diff := cmp.Diff(want, started); diff != "" {
		t.Errorf("mounted while the engine started it (-want +got):\n%s", diff)
	}
	if status, answer := r.ask(t, "DELETE", "/containers/other", ""); status != http.StatusNoContent {
		t.Fatal(answer)
	}
	if left, err := os.ReadDir(r.mounts.dir); err != nil || len(left) != 0 || len(r.held) != 0 {
		t.Errorf("left behind: %v, %v, %v", left, r.held, err)
	}
}

// attach opens a container's streams as Docker's command line does.
func attach(t testing.TB, r *rig, ref, early string) (*net.UnixConn, *bufio.Reader) {
	t.Helper()
	return attachAt(t, r.socket, ref, early)
}

func attachAt(t testing.TB, socket, ref, early string) (*net.UnixConn, *bufio.Reader) {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// Early input comes in one piece with the request.
	if _, err := io.WriteString(conn, "POST /v1.45/containers/"+ref+"/attach?stream=1&stdin=1&stdout=1 HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"+early); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Content-Type") != "application/vnd.docker.raw-stream" {
		t.Fatalf("answers %s %v", resp.Status, resp.Header)
	}
	return conn, br
}

func TestAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	client, out := attach(t, r, "job", "early ")
	engine := <-r.engine.attached
	if err := engine.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// The client sends its last input and closes its half. The container gets all of it and
	// answers with more than the sockets hold.
	if _, err := io.WriteString(client, "late"); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	heard, err := io.ReadAll(engine.r)
	if err != nil || string(heard) != "early late" {
		t.Fatalf("the container heard %q, %v", heard, err)
	}
	long := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	wrote := make(chan error, 1)
	go func() {
		_, err := engine.Write(long)
		wrote <- err
		_ = engine.Close()
	}()
	got, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if want := append([]byte(frame("hello\n")), long...); !bytes.Equal(got, want) {
		t.Errorf("the client got %d bytes, want %d", len(got), len(want))
	}
}

// TestAttachEnds checks that the end of the container reaches a client that is
// still typing, with the last output and without a reset.
func TestAttachEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	client, out := attach(t, r, "job", "")
	engine := <-r.engine.attached
	if _, err := io.WriteString(client, "typed\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(engine, "bye"); err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(out); err != nil || string(got) != frame("hello\n")+"bye" {
		t.Errorf("the client got %q, %v", got, err)
	}
}

// TestAttachOfClientThatIsGone checks that the stream of a silent container ends, so that it
// does not hold up the guard's end.
func TestAttachOfClientThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	conn, _ := attach(t, r, "job", "")
	engine := <-r.engine.attached
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(engine.r); err != nil {
		t.Fatal(err)
	}
	// Only the input has ended: output still comes through.
	if _, err := io.WriteString(engine, "output"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len("output"))); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
}

func TestWaitAnswersHeadersFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://docker/v1.45/containers/job/wait?condition=removed", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.Do(req) // returns with the headers
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp(resp.Body)
	close(r.engine.exit)
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != `{"StatusCode":7}` {
		t.Errorf("got %q, %v", body, err)
	}
}

// TestStopLetsStreamsEnd checks that a guard that is stopped does not cut off a job's output.
func TestStopLetsStreamsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	client, out := attach(t, r, "job", "")
	engine := <-r.engine.attached
	r.stop()
	if status, answer := r.ask(t, "POST", "/containers/job/kill?signal=TERM", ""); status != http.StatusNoContent {
		t.Errorf("a stopping guard with a job answers %d %s", status, answer)
	}
	if _, err := io.WriteString(engine, "bye"); err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(out); err != nil || !strings.HasSuffix(string(got), "bye") {
		t.Errorf("the client got %q, %v", got, err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-r.done; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// TestCleanSlotThroughGuard does what the hooks do after a job: they run as the slot's user, who
// has no other socket.
func TestCleanSlotThroughGuard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.add(neighbour, "kbnode-gpu1-job", "buildkite-gpu1.slice", "1")
	r.create(t, "")
	r.create(t, "job")
	engine, err := docker.New(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hangUp(engine) })
	if n, err := engine.CleanSlot(t.Context(), r.policy.Slice, slotLabel+"=0"); n != 2 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if _, there := r.engine.containers[neighbour]; !there || len(r.engine.containers) != 1 {
		t.Errorf("left are %v", r.engine.containers)
	}
}

func TestEngineAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := os.Remove(r.engine.socket); err != nil {
		t.Fatal(err)
	}
	if status, answer := r.ask(t, "GET", "/_ping", ""); status != http.StatusBadGateway || !strings.Contains(answer, "the Docker engine does not answer") {
		t.Errorf("answers %d %s", status, answer)
	}
}

func TestServeRefusesPolicy(t *testing.T) {
	t.Parallel()
	err := Serve(t.Context(), Config{Policy: plan.JobPolicy{Name: "gpu0", Slice: "a/b.slice", WorkRoot: "/"}, Log: slog.New(slog.DiscardHandler)})
	for _, want := range []string{"no slice", "no cpus", "no memory_bytes", "no pids_limit", "no work_root", "no socket"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
}

// TestCreateWithoutTheEnginesCPUs: an engine started while the slots' CPUs are a partition knows
// only the others.
func TestCreateWithoutTheEnginesCPUs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.online = "0,5"
	r.create(t, "job")
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	if n := len(r.engine.created); n != 1 {
		t.Fatalf("%d containers", n)
	}
	if h := r.engine.created[0].HostConfig; h.CpusetCpus != "" || h.CpusetMems != "" || h.CgroupParent != r.policy.Slice {
		t.Errorf("CPUs %q, memory nodes %q, slice %q", h.CpusetCpus, h.CpusetMems, h.CgroupParent)
	}
}
