package node

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

func TestRegistered(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		state slot.State
		want  bool
	}{
		{"registered", slot.State{Agent: systemdtest.Agent("active", "running"), Registered: true}, true},
		{"not yet", slot.State{Agent: systemdtest.Agent("active", "running")}, false},
		{"runs a job", slot.State{Agent: systemdtest.Agent("active", "running"), Job: &slot.Job{ID: "7"}}, true},
		{"stops, and starts again later", slot.State{Agent: systemdtest.Agent("deactivating", "stop-sigterm")}, true},
	} {
		if got := UsesBuildkite(tt.state); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestFailedToStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		unit slot.Unit
		want bool
	}{
		{"runs", systemdtest.Agent("active", "running"), false},
		{"comes up", systemdtest.Agent("activating", "start"), false},
		{"gave up", systemdtest.Agent("failed", "failed"), true},
		{"is started again after a refusal", slot.Unit{Active: "activating", Sub: "auto-restart", ExitStatus: 1}, true},
		{"is started again after a stop", slot.Unit{Active: "activating", Sub: "auto-restart"}, false},
	} {
		if got := refused(slot.State{Agent: tt.unit}); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}
