package docker

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"
)

// TestAwaitOwnEnd tells a container's own end from one by the engine.
func TestAwaitOwnEnd(t *testing.T) {
	t.Parallel()
	event := func(action, id string) string {
		return `{"Type":"container","Action":"` + action + `","Actor":{"ID":"` + id + `"}}` + "\n"
	}
	for name, row := range map[string]struct {
		events string
		stays  bool // the engine does not hang up
		own    bool
	}{
		"its own":                 {event("die", "c1"), true, true},
		"a signal":                {event("kill", "c1") + event("die", "c1"), true, false},
		"a signal to another one": {event("kill", "c2") + event("die", "c1"), true, true},
		"an engine that is gone":  {"", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.45") })
			mux.HandleFunc("GET /v1.45/events", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, row.events)
				_ = http.NewResponseController(w).Flush()
				if row.stays {
					<-r.Context().Done()
				}
			})
			mux.HandleFunc("POST /v1.45/containers/c1/wait", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"StatusCode":143}`) })
			mux.HandleFunc("POST /v1.45/containers/c2/wait", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			e := engineOf(t, mux)
			if own, err := e.AwaitOwnEnd(t.Context(), "c1"); own != row.own || err != nil {
				t.Errorf("own is %v, %v", own, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if own, err := e.AwaitOwnEnd(ctx, "c2"); own || err == nil {
				t.Errorf("one that runs: %v, %v", own, err)
			}
		})
	}
}

// TestFollowHungEngine gives up an engine that does not begin.
func TestFollowHungEngine(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.45") })
	mux.HandleFunc("GET /v1.45/containers/c1/logs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if _, err := engineOf(t, mux).Follow(t.Context(), "c1", false, 50*time.Millisecond); err == nil {
		t.Error("no error")
	}
}
