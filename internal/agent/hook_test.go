package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestHookNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "environment", "post-exit", "../pre-exit"} {
		if err := Hook(t.Context(), name, 0, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "use agent-startup, pre-bootstrap, pre-artifact or pre-exit") {
			t.Errorf("hook %q: %v", name, err)
		}
	}
}

// fakeGuard answers what a slot's agent sends.
func fakeGuard(t *testing.T, socket string, status int, message string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/kbnode/end" {
			t.Errorf("asked %s %s", r.Method, r.URL.Path)
		}
		w.WriteHeader(status)
		if message != "" {
			_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

func TestTell(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, message string
		status        int
		parked        bool
		want          string
	}{
		{"clean", "", http.StatusNoContent, false, ""},
		{"clean, with a message", "the job was terminated", http.StatusOK, false, ""},
		{"parked", "the GPU is in use", http.StatusConflict, true, "the GPU is in use"},
		{"refused", "kbnode: only the slot's own agent may do this", http.StatusForbidden, false, "403 Forbidden: kbnode: only"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			fakeGuard(t, socket, row.status, row.message)
			says, err := tell(t.Context(), socket, "/kbnode/end")
			if err == nil && says != row.message {
				t.Errorf("it says %q", says)
			}
			if _, parked := errors.AsType[*parkedError](err); parked != row.parked || (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("a guard that starts again", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(t.TempDir(), "s")
		time.AfterFunc(300*time.Millisecond, func() { fakeGuard(t, socket, http.StatusNoContent, "") })
		if _, err := tell(t.Context(), socket, "/kbnode/end"); err != nil {
			t.Error(err)
		}
	})
	t.Run("no guard", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := tell(ctx, filepath.Join(t.TempDir(), "s"), "/kbnode/end"); err == nil {
			t.Error("it answers")
		}
	})
}
