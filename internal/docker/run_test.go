package docker

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// stage is an engine with one container.
type stage struct {
	mu      sync.Mutex
	body    string // of the last request
	removed []string
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
	mux.HandleFunc("DELETE /", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.removed = append(s.removed, r.URL.RequestURI())
		if strings.HasSuffix(r.URL.Path, "/missing") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"none"}`)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return engineOf(t, mux)
}

func TestImport(t *testing.T) {
	t.Parallel()
	s := &stage{}
	e := s.serve(t)
	if err := e.Import(t.Context(), "x:latest", strings.NewReader("archive")); err != nil || s.body != "- x:latest archive" {
		t.Errorf("imported %q, %v", s.body, err)
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	s := &stage{}
	e := s.serve(t)
	for _, id := range []string{"c1", "missing"} {
		if err := e.Discard(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if diff := cmp.Diff([]string{"/v1.45/containers/c1?force=1&v=1", "/v1.45/containers/missing?force=1&v=1"}, s.removed); diff != "" {
		t.Error(diff)
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
