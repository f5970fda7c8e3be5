package guard

import (
	"archive/tar"
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/test/must"
)

// fakeEngine is a Docker engine with simulated containers, on a unix socket. It records what it
// was asked.
type fakeEngine struct {
	socket   string
	root     string        // its directory
	store    string        // what keeps its images; "" for itself
	driver   string        // cgroup driver
	security []string      // its security options
	exit     chan struct{} // closed: containers have exited
	status   int           // with which they exit
	// online lists the CPUs that the engine knows; "" for all.
	online string
	// onStart, if not nil, is called while a container starts.
	onStart func()

	logs func(write func(string)) // nil writes one line
	// fault, if not nil, returns the status of a request that fails: 0 if it does not, and -1 if the
	// connection breaks. It may wait.
	fault     func(r *http.Request) int
	says      string // what a request that fails says; "" for "out of order"
	pullError string // what it says of each pull
	armor     string // the AppArmor profile that it gives containers
	// forgets: it tells no events, as after a restart. stops: it has sent its containers a signal.
	forgets, stops bool
	restores       atomic.Bool // its containers go on while it restarts
	// stats are files in containers, as the engine reports them; "" for one that is missing.
	stats map[string]string
	files map[string]string // the text of those
	user  string            // of its images
	// volumes are those that its images declare.
	volumes map[string]struct{}
	// onImage, if not nil, is called when it is asked for an image.
	onImage func()

	mu         sync.Mutex
	requests   []string
	created    []container.CreateRequest
	views      []container.CreateRequest // those only to look at their image
	pulled     bool                      // what was absent
	names      int                       // how many an image has besides one
	onPull     func()
	containers map[string]*fakeContainer
	// endpoints has the names of the endpoints on the slots' networks, by the ID of their container.
	endpoints map[string]string
	// dead lists containers that cannot be removed, which is found when it is tried.
	dead map[string]bool
	// attached gets the engine's end of an attached stream, and what was read of it so far.
	attached chan stream
}

type fakeContainer struct {
	ID    string `json:"Id"`
	Name  string
	Image string
	State struct {
		Status   string
		Running  bool
		Dead     bool
		ExitCode int
	}
	Config struct {
		Image string
	}
	HostConfig      container.HostConfig
	AppArmorProfile string
	Mounts          []map[string]string
}

type stream struct {
	net.Conn
	r *bufio.Reader
}

func newFakeEngine(t testing.TB) *fakeEngine {
	t.Helper()
	e := &fakeEngine{
		socket: filepath.Join(t.TempDir(), "engine.sock"), driver: "systemd", status: 7,
		stats: map[string]string{"/etc/passwd": `{"size": 1000, "mode": 420}`, "/etc/group": "", "/sbin/docker-init": ""},
		root:  t.TempDir(), exit: make(chan struct{}), containers: map[string]*fakeContainer{}, endpoints: map[string]string{}, dead: map[string]bool{}, attached: make(chan stream, 8),
	}
	l, err := net.Listen("unix", e.socket)
	must.Do(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /info", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"CgroupDriver": e.driver, "CgroupVersion": "2", "ServerVersion": "26.1.5",
			"Name": "secret-host", "DockerRootDir": e.root, "LiveRestoreEnabled": e.restores.Load(), "DriverStatus": [][2]string{{"driver-type", e.store}},
			"NCPU": 224, "SecurityOptions": e.security, "Runtimes": map[string]any{"runc": map[string]string{"path": "runc"}}})
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"Version": "26.1.5", "ApiVersion": "1.45", "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64"})
	})
	mux.HandleFunc("GET /images/", func(w http.ResponseWriter, r *http.Request) {
		if e.onImage != nil {
			e.onImage()
		}
		e.mu.Lock()
		pulled := e.pulled
		e.mu.Unlock()
		if strings.Contains(r.URL.Path, "/absent") && !pulled {
			reply(w, http.StatusNotFound, map[string]string{"message": "No such image"})
			return
		}
		id := "1"
		if strings.Contains(r.URL.Path, "/moves") && pulled {
			id = "2"
		}
		reply(w, http.StatusOK, map[string]any{"Id": "sha256:" + strings.Repeat(id, 64), "path": r.URL.Path, "RepoTags": make([]string, 1+e.names), "Config": map[string]any{"User": e.user, "Volumes": e.volumes}})
	})
	mux.HandleFunc("POST /images/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	mux.HandleFunc("DELETE /images/", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, []any{}) })
	mux.HandleFunc("POST /volumes/create", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusCreated, map[string]string{"Name": "forget"})
	})
	mux.HandleFunc("DELETE /volumes/{name}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("POST /images/create", func(w http.ResponseWriter, r *http.Request) {
		if e.pullError != "" {
			reply(w, http.StatusOK, map[string]any{"errorDetail": map[string]string{"message": e.pullError}})
			return
		}
		e.mu.Lock()
		e.pulled = e.pulled || r.Context().Err() == nil
		if e.onPull != nil {
			e.onPull()
		}
		e.mu.Unlock()
		reply(w, http.StatusOK, map[string]string{"status": "Pulled"})
	})
	mux.HandleFunc("POST /containers/create", e.create)
	mux.HandleFunc("GET /containers/json", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		list := []any{}
		for _, id := range slices.Sorted(maps.Keys(e.containers)) {
			list = append(list, map[string]any{"Id": id, "Names": []string{e.containers[id].Name}})
		}
		reply(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /networks/{name}", e.network)
	mux.HandleFunc("POST /networks/{name}/disconnect", e.disconnect)
	mux.HandleFunc("GET /containers/{id}/json", e.with(func(w http.ResponseWriter, _ *http.Request, c *fakeContainer) {
		state := *c
		select {
		case <-e.exit:
			state.State.Status, state.State.Running, state.State.ExitCode = "exited", false, e.status
		default:
		}
		reply(w, http.StatusOK, state)
	}))
	mux.HandleFunc("HEAD /containers/{id}/archive", e.with(func(w http.ResponseWriter, r *http.Request, _ *fakeContainer) {
		stat, has := e.stats[r.URL.Query().Get("path")]
		if !has {
			stat = `{"mode": 2147484141}` // a directory
		}
		if stat == "" || !strings.HasPrefix(stat, "{") {
			w.WriteHeader(map[bool]int{true: http.StatusNotFound, false: http.StatusInternalServerError}[stat == ""])
			return
		}
		w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString([]byte(stat)))
	}))
	mux.HandleFunc("GET /containers/{id}/archive", e.with(func(w http.ResponseWriter, r *http.Request, _ *fakeContainer) {
		name := r.URL.Query().Get("path")
		var stat container.PathStat
		if why := e.stats[name]; why != "" && !strings.HasPrefix(why, "{") {
			reply(w, http.StatusInternalServerError, map[string]string{"message": why + " in " + name})
			return
		}
		if err := json.Unmarshal([]byte(e.stats[name]), &stat); err != nil {
			reply(w, http.StatusNotFound, map[string]string{"message": "no such file"})
			return
		}
		w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString([]byte(e.stats[name])))
		archive := tar.NewWriter(w)
		if stat.LinkTarget != "" {
			_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: filepath.Base(name), Linkname: stat.LinkTarget})
			return
		}
		_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(name), Size: int64(len(e.files[name]))})
		_, _ = io.WriteString(archive, e.files[name])
	}))
	mux.HandleFunc("POST /containers/{id}/attach", e.with(e.attach))
	mux.HandleFunc("POST /containers/{id}/wait", e.with(func(w http.ResponseWriter, r *http.Request, _ *fakeContainer) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-e.exit:
			_, _ = fmt.Fprintf(w, `{"StatusCode":%d}`, e.status)
		case <-r.Context().Done():
		}
	}))
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-e.exit:
		case <-r.Context().Done():
			return
		}
		e.mu.Lock()
		for _, id := range slices.Sorted(maps.Keys(e.containers)) {
			event := func(action string) {
				_, _ = fmt.Fprintf(w, `{"Type":"container","Action":%q,"Actor":{"ID":%q}}`+"\n", action, id)
			}
			if e.forgets || !strings.Contains(r.URL.RawQuery, id) {
				continue
			}
			if e.stops {
				event("kill")
			}
			event("die")
		}
		e.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		if !r.URL.Query().Has("until") {
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("GET /containers/{id}/logs", e.with(func(w http.ResponseWriter, _ *http.Request, _ *fakeContainer) {
		if e.logs == nil {
			_, _ = io.WriteString(w, "logged\n")
			return
		}
		e.logs(func(s string) {
			_, _ = io.WriteString(w, frame(s))
			_ = http.NewResponseController(w).Flush()
		})
	}))
	mux.HandleFunc("POST /containers/{id}/{verb}", e.with(func(w http.ResponseWriter, r *http.Request, c *fakeContainer) {
		if r.PathValue("verb") == "start" && e.onStart != nil {
			e.onStart()
		}
		e.mu.Lock()
		collides := slices.Contains(slices.Collect(maps.Values(e.endpoints)), c.Name[1:])
		e.mu.Unlock()
		if r.PathValue("verb") == "start" && collides {
			reply(w, http.StatusForbidden, map[string]string{"message": "endpoint with name " + c.Name[1:] + " already exists in network"})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("DELETE /containers/{id}", e.with(func(w http.ResponseWriter, _ *http.Request, c *fakeContainer) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.dead[c.ID] {
			c.State.Status, c.State.Running, c.State.Dead = "dead", false, true
			reply(w, http.StatusInternalServerError, map[string]string{"message": "driver failed to remove root filesystem: device or resource busy"})
			return
		}
		delete(e.containers, c.ID)
		w.WriteHeader(http.StatusNoContent)
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.requests = append(e.requests, r.Method+" "+r.URL.RequestURI())
		e.mu.Unlock()
		w.Header().Set("Api-Version", "1.45")
		if first, rest, ok := strings.Cut(r.URL.Path[1:], "/"); ok && strings.HasPrefix(first, "v1.") {
			r.URL.Path = "/" + rest
		}
		if e.fault != nil {
			switch status := e.fault(r); {
			case status < 0:
				panic(http.ErrAbortHandler)
			case status > 0:
				reply(w, status, map[string]string{"message": cmp.Or(e.says, "out of order")})
				return
			}
		}
		mux.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return e
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (e *fakeEngine) with(next func(http.ResponseWriter, *http.Request, *fakeContainer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		c := e.containers[r.PathValue("id")]
		for _, other := range e.containers {
			if other.Name == "/"+r.PathValue("id") {
				c = other
			}
		}
		e.mu.Unlock()
		if c == nil {
			reply(w, http.StatusNotFound, map[string]string{"message": "engine: no such container"})
			return
		}
		next(w, r, c)
	}
}

// add puts a container into the engine that someone else made.
func (e *fakeEngine) add(id, name, slice string) {
	c := &fakeContainer{ID: id, Name: "/" + name, Image: "sha256:" + strings.Repeat("1", 64)}
	c.State.Status, c.State.Running = "running", true
	c.HostConfig.CgroupParent = slice
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers[id] = c
	_ = e.logFiles(id, "container.log")
}

// logFiles are what a container's log consists of.
func (e *fakeEngine) logFiles(id string, names ...string) error {
	dir := filepath.Join(e.root, "containers", id, "local-logs")
	err := os.MkdirAll(dir, 0o700)
	for _, name := range names {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	return err
}

func (e *fakeEngine) create(w http.ResponseWriter, r *http.Request) {
	var req container.CreateRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		reply(w, http.StatusBadRequest, map[string]string{"message": err.Error()})
		return
	}
	if req.HostConfig == nil {
		req.HostConfig = &container.HostConfig{}
	}
	if e.online != "" && req.HostConfig.CpusetCpus != "" {
		reply(w, http.StatusBadRequest, map[string]string{"message": "Requested CPUs are not available - requested " + req.HostConfig.CpusetCpus + ", available: " + e.online})
		return
	}
	if req.Image == "missing" {
		reply(w, http.StatusNotFound, map[string]string{"message": "No such image: missing"})
		return
	}
	name := r.URL.Query().Get("name")
	e.mu.Lock()
	id := ""
	if strings.HasSuffix(name, imageSuffix) {
		e.views = append(e.views, req)
		id = fmt.Sprintf("%064x", 0xc00+len(e.views))
	} else {
		e.created = append(e.created, req)
		id = fmt.Sprintf("%064x", 0xa0+len(e.created))
	}
	taken := slices.ContainsFunc(slices.Collect(maps.Values(e.containers)), func(c *fakeContainer) bool { return c.Name == "/"+name })
	e.mu.Unlock()
	if taken {
		reply(w, http.StatusConflict, map[string]string{"message": "the container name " + name + " is already in use"})
		return
	}
	e.add(id, name, req.HostConfig.CgroupParent)
	e.mu.Lock()
	e.containers[id].HostConfig, e.containers[id].AppArmorProfile = *req.HostConfig, e.armor
	e.mu.Unlock()
	reply(w, http.StatusCreated, map[string]any{"Id": id, "Warnings": []string{}})
}

func (e *fakeEngine) network(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ends := map[string]map[string]string{}
	for id, name := range e.endpoints {
		ends[id] = map[string]string{"Name": name}
	}
	reply(w, http.StatusOK, map[string]any{"Id": "id", "Name": r.PathValue("name"), "Containers": ends})
}

// disconnect finds a container's endpoint as the engine does: by a container, or else, by the endpoint's name.
func (e *fakeEngine) disconnect(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Container string
		Force     bool
	}
	_ = json.NewDecoder(r.Body).Decode(&req)
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, c := range e.containers {
		if id == req.Container || c.Name == "/"+req.Container {
			c.HostConfig.NetworkMode = "none"
			w.WriteHeader(http.StatusOK)
			return
		}
	}
	for id, name := range e.endpoints {
		if name == req.Container && req.Force {
			delete(e.endpoints, id)
			w.WriteHeader(http.StatusOK)
			return
		}
	}
	reply(w, http.StatusNotFound, map[string]string{"message": "endpoint " + req.Container + " not found"})
}

func (e *fakeEngine) attach(w http.ResponseWriter, _ *http.Request, _ *fakeContainer) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	// The container's first output comes in one piece with the headers.
	_, _ = io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"+frame("hello\n"))
	e.attached <- stream{conn, buf.Reader}
}

// frame returns output of a container without a terminal.
func frame(s string) string { return "\x01\x00\x00\x00\x00\x00\x00" + string(rune(len(s))) + s }

// end ends all containers.
func (e *fakeEngine) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !isClosed(e.exit) {
		close(e.exit)
	}
}

// asked is how many requests had a text.
func (e *fakeEngine) asked(request string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.requests {
		if strings.Contains(s, request) {
			n++
		}
	}
	return n
}

// started reports whether a container was started.
func (e *fakeEngine) started() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.requests, func(s string) bool { return strings.HasPrefix(s, "POST ") && strings.HasSuffix(s, "/start") })
}

func (e *fakeEngine) requested(request string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.requests, func(s string) bool { return strings.HasPrefix(s, request) })
}
