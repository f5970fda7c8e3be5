package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

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
