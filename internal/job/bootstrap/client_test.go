package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// answers listens in place of a slot, and answers each connection.
func answers(t *testing.T, answer func(conn net.Conn, nth int32)) (socket string) {
	t.Helper()
	dir := t.TempDir()
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for n := int32(1); ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // of a test
				answer(conn, n)
			}()
		}
	}()
	return socket
}

func try(ctx, canceled context.Context, t *testing.T, socket string, away time.Duration) (slot.Outcome, error) {
	t.Helper()
	return runSpec(ctx, canceled, socket, away, &job.Spec{}, func(slot.FrameKind, []byte) {})
}

// TestSlotTakesItsTime asks again where nothing was read of the request, as while the job before ends.
func TestSlotTakesItsTime(t *testing.T) {
	t.Parallel()
	socket := answers(t, func(conn net.Conn, nth int32) {
		if nth < 3 { // as systemd does when too many processes run
			return
		}
		kind, _, err := slot.ReadRequest(conn, job.MaxSpec)
		frames := slot.NewFrames(conn)
		if err != nil || kind != slot.RequestRun || frames.Taken() != nil {
			t.Errorf("%c, %v", kind, err)
		}
		_ = frames.End(slot.Outcome{ExitCode: 3})
	})
	if o, err := try(t.Context(), t.Context(), t, socket, time.Minute); err != nil || o.ExitCode != 3 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := try(t.Context(), t.Context(), t, socket+"none", 0); !errors.Is(err, errGone) {
		t.Errorf("a slot that is gone: %v", err)
	}
}

// TestProcessThatDies: a job is not run again of which its process has read the spec.
func TestProcessThatDies(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	socket := answers(t, func(conn net.Conn, _ int32) {
		asked.Add(1)
		_, _, _ = slot.ReadRequest(conn, job.MaxSpec)
		_ = slot.NewFrames(conn).Taken()
	})
	_, err := try(t.Context(), t.Context(), t, socket, time.Minute)
	must.Err(t, err, "the slot's process has ended before its job")
	must.Equal(t, int32(1), asked.Load())
}

// TestCancel ends the slot's side of the connection, and waits for the outcome.
func TestCancel(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	socket := answers(t, func(conn net.Conn, _ int32) {
		_, _, _ = slot.ReadRequest(conn, job.MaxSpec)
		frames := slot.NewFrames(conn)
		_ = frames.Taken()
		cancel()
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("the slot reads %d bytes, %v", n, err)
		}
		_ = frames.End(slot.Outcome{ExitCode: 143, Canceled: true})
	})
	if o, err := try(t.Context(), canceled, t, socket, time.Minute); err != nil || o.ExitCode != 143 {
		t.Errorf("%+v, %v", o, err)
	}
	_, err := try(t.Context(), canceled, t, socket+"none", time.Minute)
	must.Err(t, err, "canceled before it started")
}

// TestCheck says whether a job could start.
func TestCheck(t *testing.T) {
	t.Parallel()
	says := slot.Outcome{}
	socket := answers(t, func(conn net.Conn, _ int32) {
		if kind, body, err := slot.ReadRequest(conn, 0); err != nil || kind != slot.RequestCheck || len(body) > 0 {
			t.Errorf("%c %q, %v", kind, body, err)
		}
		_ = slot.NewFrames(conn).End(says)
	})
	must.Do(t, Check(t.Context(), socket))
	says.NodeFault = "the slot has no limits"
	if no, ok := errors.AsType[*NotReadyError](Check(t.Context(), socket)); !ok || no.Reason != says.NodeFault {
		t.Errorf("%v", no)
	}
	must.Do(t, Check(t.Context(), answers(t, func(conn net.Conn, n int32) {
		if n == 1 { // it ends with what it was asked unread, as a socket that is restarted
			return
		}
		_, _, _ = slot.ReadRequest(conn, 0)
		_ = slot.NewFrames(conn).End(slot.Outcome{})
	})))
	must.Err(t, Clear(t.Context(), answers(t, func(conn net.Conn, _ int32) {
		if kind, body, err := slot.ReadRequest(conn, 10); err != nil || kind != slot.RequestClear || string(body) != slot.ClearStart {
			t.Errorf("%c %s, %v", kind, body, err)
		}
		_ = slot.NewFrames(conn).End(slot.Outcome{Refused: "only root"})
	})), "clear the slot: only root")
	if _, ok := errors.AsType[*NotReadyError](Check(t.Context(), socket+"none")); ok {
		t.Error("a slot that is gone has answered")
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
