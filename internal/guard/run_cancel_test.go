package guard

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestCancelBeforeStart ends a job whose image is still pulled.
func TestCancelBeforeStart(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, map[string]string{"BUILDKITE_PLUGINS": absentPlugin})
	pulls := make(chan struct{}, 1)
	r.engine.fault = func(req *http.Request) int {
		if req.URL.Path == "/images/create" {
			pulls <- struct{}{}
			<-req.Context().Done()
		}
		return 0
	}
	done := r.start(t.Context())
	<-pulls
	if status, says := r.ask(t, "POST", slot.CancelPath+"?job=another", ""); status != 404 {
		t.Errorf("of another job: %d %s", status, says)
	}
	r.cancel(t)
	if e := r.wait(t, done); e.status != bootstrap.ExitNode || !strings.Contains(r.log.String(), "canceled before it started") || len(r.engine.created) != 0 {
		t.Errorf("%+v: %s", e, r.log.String())
	}
}

// TestNextJobEndsLast starts a job although one that the agent gave up still runs.
func TestNextJobEndsLast(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done, _ := r.running(ctx, t)
	cancel()
	r.wait(t, done)
	r.in.Env["BUILDKITE_JOB_ID"] = "0191"
	done = r.start(t.Context())
	until(t, "the first container to be stopped", func() bool { return r.engine.asked("/stop?") > 0 })
	r.engine.end()
	out := <-r.engine.attached
	_ = out.Close()
	r.expect(t, r.wait(t, done), 7, "")
}

// TestCancelWhileEngineIsAway asks again.
func TestCancelWhileEngineIsAway(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.fault = func(req *http.Request) int {
		if strings.HasSuffix(req.URL.Path, "/stop") && r.engine.asked("/stop?") < 3 {
			return -1
		}
		return 0
	}
	done, _ := r.running(t.Context(), t)
	r.cancel(t)
	until(t, "the container to be stopped", func() bool { return r.engine.asked("/stop?") == 3 })
	r.engine.end()
	r.expect(t, r.wait(t, done), 7, "")
}

// TestCancelWhileUploading lets the upload end, and dies of the signal.
func TestCancelWhileUploading(t *testing.T) {
	r := newJobRig(t, nil)
	script := "#!/bin/sh\n: >" + r.notes + "\nuntil [ -e " + r.notes + ".go ]; do /bin/sleep 0.05; done\necho uploaded\n"
	must.Do(t, os.WriteFile(r.agent, []byte(script), 0o755))
	done := r.start(t.Context())
	out := <-r.engine.attached
	r.engine.end()
	_ = out.Close()
	until(t, "the upload", func() bool { _, err := os.Stat(r.notes); return err == nil })
	err := syscall.Kill(os.Getpid(), syscall.SIGTERM)
	time.Sleep(200 * time.Millisecond) // the signal arrives
	must.Do(t, errors.Join(err, os.WriteFile(r.notes+".go", nil, 0o600)))
	if e := r.wait(t, done); e.by != syscall.SIGTERM || !strings.Contains(r.log.String(), "uploaded\n") {
		t.Errorf("%+v: %s", e, r.log.String())
	}
}

// TestCanceledBefore ends a job whose cancellation came before anything listened.
func TestCanceledBefore(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.end()
	canceled := make(chan struct{})
	close(canceled)
	_, by := bootstrap.Run(t.Context(), bootstrap.Config{Input: r.in, Socket: r.socket, Log: &r.log, Agent: r.agent, Canceled: canceled})
	if by != syscall.SIGTERM {
		t.Errorf("%v: %s", by, r.log.String())
	}
}
