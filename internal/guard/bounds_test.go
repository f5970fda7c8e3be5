package guard

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestStartLooksAtLimits removes a slot's limit between create and start.
func TestStartLooksAtLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	r.limit(t, "memory.max", "max")
	if status, answer := r.ask(t, "POST", "/containers/job/start", ""); status != http.StatusServiceUnavailable || !strings.Contains(answer, "memory.max") {
		t.Errorf("answers %d %s", status, answer)
	}
	if r.engine.seen("POST /containers/0") || len(r.engine.containers) != 0 {
		t.Errorf("it was started or left: %q", r.engine.requests)
	}
}

// TestConnectionsAreBounded opens as many connections as are allowed, and one more.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ping := func(patience time.Duration) (net.Conn, error) {
		conn, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_, err = conn.Read(make([]byte, 1))
		return conn, err
	}
	var first net.Conn
	for i := range maxConnections {
		conn, err := ping(time.Minute)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if i == 0 {
			first = conn
		}
	}
	more, err := ping(300 * time.Millisecond)
	if err == nil {
		t.Error("one more is served")
	}
	for _, conn := range []net.Conn{more, first} {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ping(time.Minute); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// noted is a response writer that records its deadlines.
type noted struct {
	*httptest.ResponseRecorder
	reads []time.Time
}

func (n *noted) SetReadDeadline(at time.Time) error { n.reads = append(n.reads, at); return nil }

// TestBodyHasATime checks the deadlines of a request's body, because half a minute is too long
// to wait.
func TestBodyHasATime(t *testing.T) {
	t.Parallel()
	g := &guard{policy: testPolicy(), facts: testFacts()}
	w := &noted{ResponseRecorder: httptest.NewRecorder()}
	before := time.Now()
	_ = g.create(&call{w: w, r: httptest.NewRequestWithContext(context.Background(), "POST", "/containers/create", strings.NewReader("no JSON"))})
	if len(w.reads) != 2 || w.reads[0].Before(before) || w.reads[0].After(time.Now().Add(bodyDeadline)) || !w.reads[1].IsZero() {
		t.Errorf("deadlines %v", w.reads)
	}
}

// TestEachSecretIsDropped sends each variable that would let a job act as the agent.
func TestEachSecretIsDropped(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"BUILDKITE_AGENT_TOKEN", "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_JOB_API_TOKEN", "BUILDKITE_AGENT_JOB_API_SOCKET", "LD_PRELOAD", "LD_AUDIT", "CUDA_VISIBLE_DEVICES", "KERNELBOT_GPU_INDEX"} {
		got, err := rebuild(testPolicy(), testFacts(), []byte(`{"Image":"i","Env":["`+name+`=x","KEPT=1"]}`))
		if err != nil {
			t.Fatal(err)
		}
		if env := strings.Join(got.Env, " "); strings.Contains(env, name+"=x") || !strings.Contains(env, "KEPT=1") {
			t.Errorf("%s: %s", name, env)
		}
	}
}
