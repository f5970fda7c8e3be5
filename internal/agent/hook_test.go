package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// fakeGuard answers what a slot's agent sends.
func fakeGuard(t *testing.T, socket string, status int, message string) {
	t.Helper()
	must.Serve(t, socket, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/kbnode/ready" {
			t.Errorf("asked %s %s", r.Method, r.URL.Path)
		}
		w.WriteHeader(status)
		if message != "" {
			_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
		}
	})
}

func TestNotifyGuard(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, message string
		status        int
		parked        bool
		want          string
	}{
		{"clean", "", http.StatusNoContent, false, ""},
		{"nothing that it says", "welcome", http.StatusOK, false, "200 OK: welcome"},
		{"parked", "the GPU is in use", http.StatusConflict, true, "the GPU is in use"},
		{"refused", "kbnode: only the slot's own agent may do this", http.StatusForbidden, false, "403 Forbidden: only"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			fakeGuard(t, socket, row.status, row.message)
			err := notifyGuard(t.Context(), socket, "/kbnode/ready")
			if _, parked := errors.AsType[*parkedError](err); parked != row.parked || (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("a guard that starts again", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(t.TempDir(), "s")
		time.AfterFunc(300*time.Millisecond, func() { fakeGuard(t, socket, http.StatusNoContent, "") })
		must.Err(t, notifyGuard(t.Context(), socket, "/kbnode/ready"), "")
	})
	t.Run("no guard", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := notifyGuard(ctx, filepath.Join(t.TempDir(), "s"), "/kbnode/ready"); err == nil {
			t.Error("it answers")
		}
	})
}

// TestOldHooks: a job whose hooks an earlier kbnode wrote does not begin during an upgrade, and one that
// runs uploads nothing from elsewhere.
func TestOldHooks(t *testing.T) {
	elsewhere := t.TempDir()
	must.Do(t, os.Symlink("/proc/self/environ", filepath.Join(elsewhere, "result.json")))
	t.Setenv("BUILDKITE_BUILD_CHECKOUT_PATH", elsewhere)
	t.Setenv("BUILDKITE_ARTIFACT_PATHS", "*")
	for name, want := range map[string]string{
		"pre-bootstrap": "this node is being upgraded; run the job again",
		"pre-artifact":  "nothing is uploaded: " + elsewhere + " is not below /var/lib/buildkite-agent/gpu-0/builds",
		"pre-exit":      "",
		"":              "use agent-startup",
		"environment":   "use agent-startup",
		"../pre-exit":   "use agent-startup",
	} {
		err := Hook(t.Context(), name, 0, slog.New(slog.DiscardHandler))
		must.Err(t, err, want)
	}
	t.Setenv(bootstrapVar, "kbnode")
	if err := Hook(t.Context(), "pre-bootstrap", 0, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("an agent that has changed over: %v", err)
	}
	if _, err := checkoutDir(0, ""); err == nil {
		t.Error("no checkout is taken for one")
	}
}
