package docker

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

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
	must.Do(t, e.await(t.Context(), "c1", container.WaitConditionNotRunning))
	if err := e.await(t.Context(), "c9", container.WaitConditionNotRunning); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := e.Stop(t.Context(), "c1", 25*time.Second); err != nil || stopped != "t=25" {
		t.Errorf("%v, %s", err, stopped)
	}
	must.Do(t, errors.Join(e.Stop(t.Context(), "c9", time.Second), e.Discard(t.Context(), "c9")))
}
