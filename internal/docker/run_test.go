package docker

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// stage is an engine with one container and something of every kind.
type stage struct {
	mu   sync.Mutex
	body string   // of the create request
	gone []string // what was removed
}

func (s *stage) serve(t *testing.T) *Engine {
	t.Helper()
	mux := http.NewServeMux()
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.45")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		}
	}
	mux.HandleFunc("GET /_ping", say("")) // and HEAD
	mux.HandleFunc("POST /v1.45/images/create", func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.body = r.URL.Query().Get("fromSrc") + " " + r.URL.Query().Get("repo") + " " + string(got)
		_, _ = io.WriteString(w, `{"status":"sha256:1"}`)
	})
	mux.HandleFunc("POST /v1.45/containers/create", func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.body = r.URL.Query().Get("name") + " " + string(got)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"Id":"c1"}`)
	})
	mux.HandleFunc("POST /v1.45/containers/c1/start", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("POST /v1.45/containers/c1/wait", say(`{"StatusCode":137}`))
	mux.HandleFunc("POST /v1.45/containers/c9/wait", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"message":"none"}`)
	})
	mux.HandleFunc("GET /v1.45/containers/c1/json", say(`{"Id":"c1","State":{"Status":"exited","ExitCode":137,"OOMKilled":true},"Config":{},"HostConfig":{},
		"NetworkSettings":{"Networks":{"x":{"IPAddress":"198.18.0.2"}}}}`))
	mux.HandleFunc("GET /v1.45/containers/c1/logs", say("\x01\x00\x00\x00\x00\x00\x00\x03out\x02\x00\x00\x00\x00\x00\x00\x03err"))
	mux.HandleFunc("POST /v1.45/containers/c1/attach", func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = buf.WriteString("HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" + "\x01\x00\x00\x00\x00\x00\x00\x03all\x02\x00\x00\x00\x00\x00\x00\x02of")
			_ = errors.Join(buf.Flush(), conn.Close())
		}
	})
	mux.HandleFunc("POST /v1.45/containers/c1/stop", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.body = r.URL.RawQuery
		w.WriteHeader(http.StatusNotModified)
	})
	mux.HandleFunc("POST /v1.45/containers/c9/stop", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	mux.HandleFunc("GET /v1.45/containers/json", say(`[{"Id":"c1","Names":["/kbnode-x-1"]},{"Id":"c2","Names":["/job"]}]`))
	mux.HandleFunc("GET /v1.45/images/json", say(`[{"Id":"sha256:1","RepoTags":["x:latest","other:1"]},{"Id":"sha256:2","RepoTags":null}]`))
	mux.HandleFunc("GET /v1.45/networks", say(`[{"Id":"n1","Name":"x-net"},{"Id":"n2","Name":"bridge"}]`))
	mux.HandleFunc("GET /v1.45/volumes", say(`{"Volumes":[{"Name":"x"},{"Name":"y"}]}`))
	mux.HandleFunc("DELETE /", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gone = append(s.gone, r.URL.RequestURI())
		if strings.HasSuffix(r.URL.Path, "/missing") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"none"}`)
		} else if strings.Contains(r.URL.Path, "/images/") {
			say("[]")(w, r)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return engineOf(t, mux)
}

func TestRun(t *testing.T) {
	t.Parallel()
	s := &stage{}
	e := s.serve(t)
	if err := e.Import(t.Context(), "x:latest", strings.NewReader("archive")); err != nil || s.body != "- x:latest archive" {
		t.Errorf("imported %q, %v", s.body, err)
	}
	id, err := e.Create(t.Context(), Run{Name: "x", Image: "i", Cmd: []string{"true"}, Binds: []string{"/a:/b"}, Network: "none"})
	if err != nil || id != "c1" {
		t.Fatalf("%s, %v", id, err)
	}
	name, body, _ := strings.Cut(s.body, " ")
	var asked struct {
		Image      string
		Cmd        []string
		HostConfig struct {
			Binds       []string
			NetworkMode string
		}
	}
	if err := json.Unmarshal([]byte(body), &asked); err != nil {
		t.Fatal(err)
	}
	h := asked.HostConfig
	if name != "x" || asked.Image != "i" || !slices.Equal(asked.Cmd, []string{"true"}) || !slices.Equal(h.Binds, []string{"/a:/b"}) || h.NetworkMode != "none" {
		t.Errorf("asked for %s %+v", name, asked)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Error(err)
	}
	end, err := e.Wait(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Ended{ExitCode: 137, OOMKilled: true, Stdout: []byte("out"), Stderr: []byte("err")}, end); diff != "" {
		t.Error(diff)
	}
	if _, err := e.Wait(t.Context(), "c9"); !errors.Is(err, ErrNotFound) {
		t.Errorf("waited for a container that is not there: %v", err)
	}
}

// TestTraces finds by name what is then removed, and nothing else.
func TestTraces(t *testing.T) {
	t.Parallel()
	s := &stage{}
	e := s.serve(t)
	found, err := e.Traces(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	want := []Trace{{"container", "c1", "kbnode-x-1"}, {"image", "x:latest", "x:latest"}, {"network", "n1", "x-net"}, {"volume", "x", "x"}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
	for _, trace := range append(found, Trace{"container", "missing", "missing"}, Trace{"volume", "missing", "missing"}) {
		if err := e.Erase(t.Context(), trace); err != nil {
			t.Errorf("%+v: %v", trace, err)
		}
	}
	if diff := cmp.Diff([]string{
		"/v1.45/containers/c1?force=1&v=1", "/v1.45/images/x:latest?force=1", "/v1.45/networks/n1", "/v1.45/volumes/x?force=1",
		"/v1.45/containers/missing?force=1&v=1", "/v1.45/volumes/missing?force=1",
	}, s.gone); diff != "" {
		t.Error(diff)
	}
	if err := e.Erase(t.Context(), Trace{"house", "h", "h"}); err == nil {
		t.Error("a house was removed")
	}
}

// TestOutput reads a container's two streams, live and from its log.
func TestOutput(t *testing.T) {
	t.Parallel()
	s := &stage{}
	e := s.serve(t)
	for _, row := range []struct {
		tty      bool
		open     func(tty bool) (*Output, error)
		out, err string
	}{
		{open: func(tty bool) (*Output, error) { return e.Attach(t.Context(), "c1", tty) }, out: "all", err: "of"},
		{open: func(tty bool) (*Output, error) { return e.Follow(t.Context(), "c1", tty, time.Minute) }, out: "out", err: "err"},
		{tty: true, open: func(tty bool) (*Output, error) { return e.Follow(t.Context(), "c1", tty, time.Minute) },
			out: "\x01\x00\x00\x00\x00\x00\x00\x03out\x02\x00\x00\x00\x00\x00\x00\x03err"},
	} {
		o, err := row.open(row.tty)
		if err != nil {
			t.Fatal(err)
		}
		var out, errs strings.Builder
		if err := o.Copy(&out, &errs); err != nil || out.String() != row.out || errs.String() != row.err {
			t.Errorf("%q, %q, %v", out.String(), errs.String(), err)
		}
		o.Close()
	}
	if _, err := e.Attach(t.Context(), "c9", false); err == nil {
		t.Error("attached to no container")
	}
	if err := e.AwaitEnd(t.Context(), "c1"); err != nil {
		t.Error(err)
	}
	if err := e.AwaitEnd(t.Context(), "c9"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := e.Stop(t.Context(), "c1", 25*time.Second); err != nil || s.body != "t=25" {
		t.Errorf("%v, %s", err, s.body)
	}
	if err := e.Stop(t.Context(), "c9", time.Second); err != nil {
		t.Error(err)
	}
}
