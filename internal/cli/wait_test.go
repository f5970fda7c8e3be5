package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

func isExit(err error, code int) bool {
	var exit *exitError
	return errors.As(err, &exit) && exit.code == code
}

func TestRegistered(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		state  reconcile.SlotState
		marker time.Duration // after the agent's start; 0 means no marker
		want   bool
	}{
		{"said so since it started", reconcile.SlotState{Agent: agentAt("active", "running")}, time.Second, true},
		{"the marker is of an earlier start", reconcile.SlotState{Agent: agentAt("active", "running")}, -time.Hour, false},
		{"no marker yet", reconcile.SlotState{Agent: agentAt("active", "running")}, 0, false},
		{"said so and ended", reconcile.SlotState{Agent: agentAt("failed", "failed")}, time.Second, false},
		{"runs a job", reconcile.SlotState{Agent: agentAt("active", "running"), Job: &agent.Job{ID: "7"}}, 0, true},
		{"stops, and starts again later", reconcile.SlotState{Agent: agentAt("deactivating", "stop-sigterm")}, 0, true},
	} {
		root := t.TempDir()
		if tt.marker != 0 {
			at := started.Add(tt.marker)
			if err := os.Chtimes(put(t, root, agent.RegisteredMarker(3), ""), at, at); err != nil {
				t.Fatal(err)
			}
		}
		if got := registered(root, 3, tt.state); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
		if registered(filepath.Join(root, "other"), 3, reconcile.SlotState{Agent: agentAt("active", "running")}) {
			t.Errorf("%s: registered in a tree without a marker", tt.name)
		}
	}
}

func TestFailedToStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		unit reconcile.UnitState
		want bool
	}{
		{"runs", agentAt("active", "running"), false},
		{"comes up", agentAt("activating", "start"), false},
		{"gave up", agentAt("failed", "failed"), true},
		{"is started again after a refusal", reconcile.UnitState{Active: "activating", Sub: "auto-restart", ExitStatus: 1}, true},
		{"is started again after a stop", reconcile.UnitState{Active: "activating", Sub: "auto-restart"}, false},
	} {
		if got := failedToStart(reconcile.SlotState{Agent: tt.unit}); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}
