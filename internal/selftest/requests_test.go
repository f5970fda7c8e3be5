package selftest

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/selftest/hostile"
)

// permissive is an engine without a guard. It creates privileged containers for anyone who
// asks, and starts what should not start.
type permissive struct {
	mu      sync.Mutex
	removed []string
}

func (p *permissive) serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: p}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

func (p *permissive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.45")
	w.Header().Set("Content-Type", "application/json")
	status, answer := http.StatusOK, "[]"
	switch path := r.URL.Path; {
	case r.Method == http.MethodDelete:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.removed = append(p.removed, filepath.Base(path))
		status, answer = http.StatusNoContent, ""
	case strings.HasSuffix(path, "/containers/create"):
		status, answer = http.StatusCreated, `{"Id":"made"}`
	case strings.HasSuffix(path, "/gone/json"):
		status, answer = http.StatusNotFound, `{"message":"No such container: gone"}`
	case strings.HasSuffix(path, "/containers/json"):
		answer = `[{"Id":"a","Names":["/kbnode-selftest-evil"]},{"Id":"b","Names":["/kbnode-selftest-gpu1-own"]},{"Id":"c","Names":["/kbnode-gpu7-kbnode-selftest-attack"]}]`
	case strings.HasSuffix(path, "/json") && strings.Contains(path, "/containers/"):
		answer = `{"Id":"made","State":{"Status":"running"},"Config":{"Image":"x"},"HostConfig":{"Privileged":true}}`
	case strings.HasSuffix(path, "/volumes"):
		answer = "{}"
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer)
}

// TestNothingHolds tests a slot whose socket refuses nothing. Each request is reported, and
// what it created is removed.
func TestNothingHolds(t *testing.T) {
	t.Parallel()
	s, engine := testedSlot(), &permissive{}
	s.policy.Socket = engine.serve(t)
	var err error
	if s.t.engine, err = docker.New(s.policy.Socket); err != nil {
		t.Fatal(err)
	}
	target := hostile.Target{Image: image, Own: "own", Other: "gone"}
	requests := hostile.Requests()
	wanting := func(want hostile.Want) hostile.Request {
		return requests[slices.IndexFunc(requests, func(r hostile.Request) bool { return r.Want == want && strings.HasPrefix(r.Path, "/containers/create") })]
	}
	refused, rebuilt := s.send(t.Context(), wanting(hostile.Refused), target), s.rebuilt(t.Context(), wanting(hostile.Rebuilt), target)
	if refused.Held || refused.Do == "" || rebuilt.Held || !strings.Contains(rebuilt.Saw, "it is privileged") {
		t.Errorf("%+v, %+v", refused, rebuilt)
	}
	if want := []string{"made", "made"}; !slices.Equal(engine.removed, want) {
		t.Errorf("removed %q, want %q", engine.removed, want)
	}
	checks, err := s.madeByRefused(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	var saw []string
	for _, c := range checks {
		if c.Held || c.Do == "" {
			t.Errorf("%+v", c)
		}
		saw = append(saw, c.Saw)
	}
	slices.Sort(saw)
	if want := []string{"container kbnode-selftest-evil", "gone", "started or stopped"}; !slices.Equal(saw, want) {
		t.Errorf("saw %q, want %q", saw, want)
	}
	s.policy.Socket += ".gone"
	if c := s.send(t.Context(), wanting(hostile.Refused), target); c.Held || !strings.Contains(c.Saw, "connect") {
		t.Errorf("without a socket: %+v", c)
	}
}
