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
			e := answering(t, map[string]http.HandlerFunc{
				"GET /events": func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, row.events)
					_ = http.NewResponseController(w).Flush()
					if row.stays {
						<-r.Context().Done()
					}
				},
				"POST /containers/c1/wait": says(200, `{"StatusCode":143}`),
				"POST /containers/c2/wait": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			})
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
	e := answering(t, map[string]http.HandlerFunc{"GET /containers/c1/logs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }})
	if _, err := e.Follow(t.Context(), "c1", false, 50*time.Millisecond); err == nil {
		t.Error("no error")
	}
}
