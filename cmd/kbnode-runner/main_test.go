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
		"golang.org/x/sys/unix", own + "cmd/kbnode-runner", own + "internal/node/selftest/probe", own + "internal/machine/host",
		own + "internal/evaluate/runner", own + "internal/evaluate/runner/compile", own + "internal/evaluate/payload", own + "internal/evaluate/result",
		own + "internal/evaluate/witness", own + "internal/std/cpuset", own + "internal/std/limit", own + "internal/std/text", own + "internal/std/tree",
	}
	got := strings.Fields(string(out))
	slices.Sort(want)
	slices.Sort(got)
	must.Equal(t, want, got)
	if out, err := exec.Command("go", "list", "-deps", ".").Output(); err != nil || slices.Contains(strings.Fields(string(out)), "net/http") {
		t.Errorf("an HTTP client is linked, or %v", err)
	}
}
