package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestImport(t *testing.T) {
	t.Parallel()
	var got string
	e := answering(t, map[string]http.HandlerFunc{"POST /images/create": func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.URL.Query().Get("fromSrc") + " " + r.URL.Query().Get("repo") + " " + string(body)
		_, _ = io.WriteString(w, `{"status":"sha256:1"}`)
	}})
	if err := e.Import(t.Context(), "x:latest", strings.NewReader("archive")); err != nil || got != "- x:latest archive" {
		t.Errorf("imported %q, %v", got, err)
	}
}

// TestOutput reads a container's two streams, live and from its log, to its end.
func TestOutput(t *testing.T) {
	t.Parallel()
	const logged = "\x01\x00\x00\x00\x00\x00\x00\x03out\x02\x00\x00\x00\x00\x00\x00\x03err"
	var stopped string
	e := answering(t, map[string]http.HandlerFunc{
		"POST /containers/c1/wait": says(200, `{"StatusCode":137}`),
		"POST /containers/c9/wait": says(404, `{"message":"none"}`),
		"GET /containers/c1/logs":  says(200, logged),
		"POST /containers/c1/attach": func(w http.ResponseWriter, _ *http.Request) {
			conn, buf, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = buf.WriteString("HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" + "\x01\x00\x00\x00\x00\x00\x00\x03all\x02\x00\x00\x00\x00\x00\x00\x02of")
				_ = errors.Join(buf.Flush(), conn.Close())
			}
		},
		"POST /containers/c1/stop": func(w http.ResponseWriter, r *http.Request) {
			stopped = r.URL.RawQuery
			w.WriteHeader(http.StatusNotModified)
		},
		"POST /containers/c9/stop": says(404, ""),
		"DELETE /containers/c9":    says(404, `{"message":"none"}`),
	})
	for _, row := range []struct {
		tty      bool
		open     func(tty bool) (*Output, error)
		out, err string
	}{
		{open: func(tty bool) (*Output, error) { return e.Attach(t.Context(), "c1", tty) }, out: "all", err: "of"},
		{open: func(tty bool) (*Output, error) { return e.Follow(t.Context(), "c1", tty, time.Minute) }, out: "out", err: "err"},
		{tty: true, open: func(tty bool) (*Output, error) { return e.Follow(t.Context(), "c1", tty, time.Minute) }, out: logged},
	} {
		o, err := row.open(row.tty)
		must.Do(t, err)
		var out, errs strings.Builder
		if err := o.Copy(&out, &errs); err != nil || out.String() != row.out || errs.String() != row.err {
			t.Errorf("%q, %q, %v", out.String(), errs.String(), err)
		}
		o.Close()
	}
	if _, err := e.Attach(t.Context(), "c9", false); err == nil {
		t.Error("attached to no container")
	}
	must.Do(t, e.await(t.Context(), "c1"))
	if err := e.await(t.Context(), "c9"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := e.Stop(t.Context(), "c1", 25*time.Second); err != nil || stopped != "signal=SIGTERM&t=25" {
		t.Errorf("%v, %s", err, stopped)
	}
	must.Do(t, errors.Join(e.Stop(t.Context(), "c9", time.Second), e.Discard(t.Context(), "c9")))
}

// entries returns numbered entries of a JSON object or list.
func entries(n int, format string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return strings.Join(list, ", ")
}

// TestImageConfig reads what an engine says of an image, and no more of it than is bounded.
func TestImageConfig(t *testing.T) {
	t.Parallel()
	answers := map[string]struct {
		status int
		text   string
		want   error
	}{
		"ghcr.io/a/b:1": {200, `{"Config": {"User": "1000", "WorkingDir": "/w", "Volumes": {"/data": {}}}}`, nil},
		"absent":        {404, `{"message": "No such image"}`, ErrNotFound},
		"large":         {200, `{"Id":"sha256:` + hex64("5") + `","Config": {"User": "` + strings.Repeat("x", maxImageConfig) + `"}}`, ErrTooLarge},
		"user":          {200, `{"Config": {"User": "` + strings.Repeat("x", maxForContainers) + `"}}`, ErrTooLarge},
		"labels":        {200, `{"Config": {"Labels": {` + entries(maxEntries+1, `"%d": ""`) + `}}}`, ErrTooLarge},
		"ports":         {200, `{"Config": {"ExposedPorts": {` + entries(maxEntries+1, `"%d/tcp": {}`) + `}}}`, ErrTooLarge},
		"volumes":       {200, `{"Config": {"Volumes": {` + entries(maxEntries+1, `"/%d": {}`) + `}}}`, ErrTooLarge},
		"variables":     {200, `{"Config": {"Env": [` + entries(maxEntries+1, `"A%d=1"`) + `]}}`, ErrTooLarge},
		"check":         {200, `{"Config": {"Healthcheck": {"Test": ["` + strings.Repeat("x", maxForContainers) + `"]}}}`, ErrTooLarge},
		"b:1":           {200, `{"Config": {"User": "1000", "WorkingDir": "/w", "Volumes": {"/data": {}}, "ExposedPorts": {"80/tcp": {}}, "Env": ["A=b"], "Labels": {` + entries(maxEntries, `"%d": ""`) + `}}}`, nil},
		"broken":        {500, `{"message": "out of order"}`, errors.ErrUnsupported}, // an error of no kind
	}
	e := engineOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := answers[strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/images/"), "/json")]
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.text) // the reader hangs up
	}))
	for image, a := range answers {
		got, err := e.ImageConfig(t.Context(), image)
		switch {
		case a.want == nil:
			if _, has := got.Volumes["/data"]; err != nil || got.User != "1000" || got.WorkingDir != "/w" || !has || image == "b:1" && (len(got.ExposedPorts) != 1 || len(got.Env) != 1) {
				t.Errorf("%s: %+v, %v", image, got, err)
			}
		case image == "broken":
			if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "out of order") {
				t.Errorf("%s: %v", image, err)
			}
		case !errors.Is(err, a.want) || image == "large" && got.ID != "sha256:"+hex64("5"): // it is to be removed
			t.Errorf("%s: %s, %v, want %v", image, got.ID, err, a.want)
		}
	}
}

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

// TestSignaled finds a signal that the engine sent to a container, and no one else's.
func TestSignaled(t *testing.T) {
	t.Parallel()
	for events, want := range map[string]bool{
		"": false, `{"Type":"container","Action":"die","Actor":{"ID":"c1"}}`: false, `{"Type":"container","Action":"kill","Actor":{"ID":"c2"}}`: false,
		`{"Type":"container","Action":"kill","Actor":{"ID":"c2"}}{"Type":"container","Action":"kill","Actor":{"ID":"c1"}}`: true,
	} {
		e := answering(t, map[string]http.HandlerFunc{"GET /events": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("until") == "" {
				t.Error("the engine would not end its answer")
			}
			says(200, events)(w, r)
		}})
		if got, err := e.Signaled(t.Context(), "c1"); got != want || err != nil {
			t.Errorf("%s: %t, %v", events, got, err)
		}
	}
	e := answering(t, map[string]http.HandlerFunc{"GET /events": says(500, `{"message":"no"}`)})
	if _, err := e.Signaled(t.Context(), "c1"); err == nil {
		t.Error("no error")
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
