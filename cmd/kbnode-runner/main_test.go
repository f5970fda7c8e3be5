package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestLinks holds what the program is linked from: each container gets it, and each job starts it. Half
// of it would be an HTTP client.
func TestLinks(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	must.Do(t, err)
	const own = "github.com/gpu-mode/kbnode/"
	want := []string{
		"golang.org/x/sys/unix", own + "internal/limit", own + "internal/text", own + "internal/host", own + "internal/payload", own + "internal/result", own + "internal/tree",
		own + "internal/runner/compile", own + "internal/witness", own + "internal/runner", own + "internal/cpuset", own + "internal/selftest/probe", own + "cmd/kbnode-runner",
	}
	must.Equal(t, want, strings.Fields(string(out)))
	if out, err := exec.Command("go", "list", "-deps", ".").Output(); err != nil || slices.Contains(strings.Fields(string(out)), "net/http") {
		t.Errorf("an HTTP client is linked, or %v", err)
	}
}
