package bootstrap

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// serve answers as a slot's service would.
func serve(t *testing.T, answer func(w http.ResponseWriter, nth int32)) *client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	must.Do(t, err)
	var n atomic.Int32
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, n.Add(1)) })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	c, err := newClient(socket, &job.Spec{})
	must.Do(t, err)
	return c
}

// TestQuietJob goes on after a restart of the service, although it wrote nothing for long.
func TestQuietJob(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, nth int32) {
		_ = http.NewResponseController(w).Flush()
		if nth == 1 {
			time.Sleep(3 * time.Second)
			panic(http.ErrAbortHandler)
		}
		_ = slot.NewFrames(w, nil).End(slot.Outcome{ExitCode: 3})
	})
	c.away = 2 * time.Second
	if o, err := c.run(t.Context(), func(slot.FrameKind, []byte) {}); err != nil || o.ExitCode != 3 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestServiceThatDies is given up.
func TestServiceThatDies(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, _ int32) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c.away = 100 * time.Millisecond
	if _, err := c.run(t.Context(), func(slot.FrameKind, []byte) {}); err == nil {
		t.Error("it was not given up")
	}
}

// TestCancelAgain cancels a job that the service does not know yet.
func TestCancelAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := serve(t, func(w http.ResponseWriter, nth int32) {
		if nth == 1 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		cancel()
	})
	c.cancel(ctx, "0190")
	if ctx.Err() == nil {
		t.Error("it ended before the service knew the job")
	}
}

// TestRefusalHidesSecrets shows nothing of a secret that a refusal would quote, also cut or with escapes.
func TestRefusalHidesSecrets(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"Secret-Value", "Secret-Value-" + strings.Repeat("0123456789", 20), `Secret-"Value" x`} {
		for _, options := range []string{`"image":"$MY_TOKEN","expand-image-vars":true`, `"image":"a","volumes":["$MY_TOKEN:/x"],"expand-volume-vars":true`, `"image":"a","env-propagation-list":"MY_TOKEN"`} {
			var log bytes.Buffer
			in := job.Input{Env: map[string]string{
				"BUILDKITE_JOB_ID": "0190", "BUILDKITE_COMMAND": "true", "MY_TOKEN": secret, "BUILDKITE_REDACTED_VARS": "*_KEY, *_TOKEN",
				"BUILDKITE_PLUGINS": `[{"docker#v5.13.0":{` + options + `}}]`,
			}, Sent: []job.Var{{Name: "MY_TOKEN", Value: secret}}}
			status, _ := Run(t.Context(), Config{Input: in, Log: &log})
			if got := log.String(); status != job.ExitRefused || strings.Contains(got, "Secret-") || !strings.Contains(got, ": the log hides $MY_TOKEN, so ") {
				t.Errorf("%s: %d: %s", options, status, got)
			}
		}
	}
}
