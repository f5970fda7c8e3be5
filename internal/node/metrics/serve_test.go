package metrics

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// logged is a log for several goroutines.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

func served(t *testing.T) (*Exporter, *logged) {
	t.Helper()
	log := &logged{}
	e := New(Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	t.Cleanup(e.Close)
	return e, log
}

// taken returns a listener on a free port.
func taken(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func free(t *testing.T) string {
	t.Helper()
	l := taken(t)
	_ = l.Close()
	return l.Addr().String()
}

func get(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	must.Do(t, err)
	client := http.Client{Timeout: 10 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	must.Do(t, err)
	return res.StatusCode, string(text)
}

func TestServeFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	e, log := served(t)
	first, second := free(t), free(t)
	e.Publish(daemon.Snapshot{})
	for range 3 {
		e.Publish(listening(first))
	}
	must.Equal(t, 1, log.count("metrics served"))
	for _, tt := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, "/metrics", http.StatusOK},
		{http.MethodHead, "/metrics", http.StatusOK},
		{http.MethodPost, "/metrics", http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
		{http.MethodGet, "/metrics?" + strings.Repeat("x", 16<<10), http.StatusRequestHeaderFieldsTooLarge},
	} {
		if got, body := get(t, tt.method, "http://"+first+tt.path); got != tt.want {
			t.Errorf("%s %.20s: %d %.100s, want %d", tt.method, tt.path, got, body, tt.want)
		}
	}
	if _, body := get(t, http.MethodGet, "http://"+first+"/metrics"); !strings.Contains(body, `kbnode_passes_total{kind="look",result="ok"} 4`) {
		t.Errorf("told:\n%s", body)
	}

	e.Publish(listening(second))
	if got, body := get(t, http.MethodGet, "http://"+second+"/metrics"); got != http.StatusOK {
		t.Errorf("at another address: %d %s", got, body)
	}
	if got, _ := get(t, http.MethodGet, "http://"+first+"/metrics"); got != 0 {
		t.Errorf("still served at the address before: %d", got)
	}
	e.Publish(daemon.Snapshot{})
	if got, _ := get(t, http.MethodGet, "http://"+second+"/metrics"); got != 0 {
		t.Errorf("still served when it is off: %d", got)
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	e, log := served(t)
	other := taken(t)
	address := other.Addr().String()
	for range 3 {
		e.Publish(listening(address))
	}
	must.Equal(t, 1, log.count("metrics not served"))
	if n := log.count("address already in use; free the port"); n != 1 {
		t.Errorf("said: %s", log.b.String())
	}
	_ = other.Close()
	e.Publish(listening(address))
	if got, body := get(t, http.MethodGet, "http://"+address+"/metrics"); got != http.StatusOK {
		t.Errorf("when the port is free: %d %s", got, body)
	}
}

// TestServeEnds has a server that ends by itself.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	e, log := served(t)
	address := free(t)
	e.Publish(listening(address))
	must.Do(t, e.server.Close())
	<-e.ended
	e.Publish(listening(address))
	if got, body := get(t, http.MethodGet, "http://"+address+"/metrics"); got != http.StatusOK || log.count("metrics served") != 2 {
		t.Errorf("at the next pass: %d %s", got, body)
	}
}

// TestHostileClients checks that clients neither delay the daemon nor hold more than
// maxConns connections.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	e, _ := served(t)
	address := free(t)
	e.Publish(listening(address))
	var conns []net.Conn
	for range 3 * maxConns {
		c, err := net.Dial("tcp", address)
		must.Do(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, _ = c.Write([]byte("GET /metrics HTTP/1.1\r\n")) // and nothing more
		conns = append(conns, c)
	}
	began := time.Now()
	e.Publish(listening(address))
	if d := time.Since(began); d > readTime/2 {
		t.Errorf("a pass took %s", d)
	}
	closed := 0
	for _, c := range slices.Backward(conns) { // the server waits for the first ones
		_ = c.SetReadDeadline(began.Add(readTime / 2))
		if _, err := io.ReadAll(c); err == nil || !strings.Contains(err.Error(), "timeout") {
			closed++
		}
	}
	if closed != 2*maxConns {
		t.Errorf("%d of %d connections were closed at once, want all but %d", closed, len(conns), maxConns)
	}
	// Silent clients are disconnected in time.
	_ = conns[0].SetReadDeadline(began.Add(2 * readTime))
	if _, err := io.ReadAll(conns[0]); err != nil {
		t.Errorf("a slow client is still connected: %v", err)
	}
}

// TestScrapesWhilePassesGoOn is for the race detector, and checks that no scrape sees half
// of a pass.
func TestScrapesWhilePassesGoOn(t *testing.T) {
	t.Parallel()
	e, _ := served(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			e.Publish(full())
		}
	}()
	for {
		if n := len(samples(t, e, `kbnode_slot_info`)); n != 0 && n != 4 {
			t.Errorf("%d slots", n)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func listening(address string) daemon.Snapshot {
	return daemon.Snapshot{Metrics: config.Metrics{Listen: address}}
}
