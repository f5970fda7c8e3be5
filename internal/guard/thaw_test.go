package guard

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// TestThawAtStart: a guard that was killed in the middle of a cleaning left the agent's
// unit frozen, and nobody else would let it go on.
func TestThawAtStart(t *testing.T) {
	t.Parallel()
	var freeze string
	r := newRig(t, func(r *rig) {
		freeze = filepath.Join(r.cgroup, plan.AgentUnit(r.policy.Slot), "cgroup.freeze")
		if err := os.Mkdir(filepath.Dir(freeze), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(freeze, []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if status, answer := r.ask(t, "GET", "/_ping", ""); status != http.StatusOK {
		t.Fatalf("answers %d %s", status, answer)
	}
	if text, err := os.ReadFile(freeze); strings.TrimSpace(string(text)) != "0" || err != nil {
		t.Errorf("the agent's unit is still frozen: %q, %v", text, err)
	}
}
