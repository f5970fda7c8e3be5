package environ

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

const entry = "-E kbnode_entry"

type echo struct{ Args, Env, Read []string }

// run runs a program with exactly these variables.
func run(t *testing.T, program string, args, env []string) (e echo) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // GOMAXPROCS makes a program that reads it busy
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append([]string{}, env...)
	out, err := cmd.CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &e)
	}
	if err != nil {
		t.Errorf("%v: %v: %.500s", env, err, out)
	}
	return e
}

// TestEntry starts programs with variables that end a Go program before main, or let it print. They are data where the
// first argument says so, and act as ever elsewhere.
func TestEntry(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "echo")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", entry, "-o", program, "./testdata/echo")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, env := range [][]string{
		nil, {"A=b"}, {"A=b", "C=d"}, {"A=b", "C=d", "E="}, {"GOMAXPROCS=2000000000"}, {"A=1", "GOMEMLIMIT=x"}, {"GODEBUG=fips140=bogus", "B=\n"},
		{"GODEBUG=inittrace=1"}, {"GODEBUG=schedtrace=1,gctrace=1"}, {"GOGC=x", "GOTRACEBACK=crash"}, {"LONG=" + strings.Repeat("x", 130_000), "LD_PRELOAD=/x"},
	} {
		got := run(t, program, []string{"bootstrap", "--slot", "0"}, env)
		must.Equal(t, []string{"bootstrap", "--slot", "0"}, got.Args)
		must.Equal(t, 0, len(got.Env))
		must.Equal(t, len(env), len(got.Read))
		must.Equal(t, strings.Join(env, "\x00"), strings.Join(got.Read, "\x00"))
	}
	for _, args := range [][]string{nil, {"boot"}, {"bootstrap2"}, {"version", "bootstrap"}} {
		got := run(t, program, args, []string{"A=b", "C=d"})
		must.Equal(t, strings.Join(args, " "), strings.Join(got.Args, " "))
		must.Equal(t, []string{"A=b", "C=d"}, got.Env)
		must.Equal(t, got.Env, got.Read)
	}
}

// TestReleases: every kbnode that is built for nodes begins with the entry.
func TestReleases(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../../../Makefile", "../../../.goreleaser.yaml"} {
		must.Contain(t, must.Read(t, file), "-s -w "+entry)
	}
}
