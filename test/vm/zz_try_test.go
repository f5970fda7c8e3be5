//go:build vm

package vm_test

import (
	"os"
	"testing"

	"github.com/gpu-mode/kbnode/test/vm"
)

func TestZZTry(t *testing.T) {
	m := vm.Fork(t)
	m.Put("/root/token", 0o600, "BUILDKITE_AGENT_TOKEN=bktest-agent-token\n")
	script, _ := os.ReadFile("/tmp/try.sh")
	r := m.Try(string(script))
	t.Logf("rc=%d\n%s\n--- stderr\n%s", r.Code, r.Stdout, r.Stderr)
}
