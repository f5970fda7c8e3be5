package buildkite

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func client(t *testing.T, base, token string) *Client {
	t.Helper()
	c, err := New(Options{URL: base, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAgentsRefused(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		http.StatusUnauthorized: "refuses the API token",
		http.StatusForbidden:    "read_agents",
		http.StatusNotFound:     "has no access to this organization",
		http.StatusFound:        "302",

		http.StatusTooManyRequests: "try again in a minute",
	} {
		elsewhere := 0
		mux := http.NewServeMux()
		mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { elsewhere++ })
		mux.HandleFunc("/v2/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"message":"no"}`))
		})
		server := httptest.NewServer(mux)
		_, err := client(t, server.URL+"/", "secret-token").Agents(t.Context(), "kbnode")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("status %d: %v", status, err)
		}
		if elsewhere > 0 {
			t.Errorf("status %d: the token was sent elsewhere", status)
		}
		server.Close()
	}
}

// TestAgentsPages reads lists of several pages. A caller that looks for one agent reads until
// it is found, and an endless list is refused: half of it would mean that agents are gone.
func TestAgentsPages(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?page=%d&per_page=100>; rel="next"`, r.Host, r.URL.Path, asked.Add(1)+1))
		_, _ = w.Write([]byte(`[{"name":"a","paused":true,"paused_note":"new fan"}]`))
	}))
	t.Cleanup(server.Close)
	c := client(t, server.URL, "token")
	n := 0
	err := c.EachAgent(t.Context(), "kbnode", func(a Agent) bool {
		n++
		return n < 3 && a.Paused && a.PausedNote == "new fan"
	})
	if err != nil || n != 3 || asked.Load() != 3 {
		t.Errorf("%v after %d agents in %d pages", err, n, asked.Load())
	}
	if got, err := c.Agents(t.Context(), "kbnode"); err == nil || err.Error() != "list agents: there are more than 100 pages" {
		t.Errorf("%d agents, %v", len(got), err)
	}
}
