package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestBootstrapPrintsTheSpec(t *testing.T) {
	t.Setenv("BUILDKITE_ENV_FILE", must.Write(t, t.TempDir(), "env", "BUILDKITE_JOB_ID=\"0190-job\"\nBARE\nX=\"a\\nb\"\n"))
	t.Setenv("BUILDKITE_JOB_ID", "0190-job")
	t.Setenv("BUILDKITE_COMMAND", "true")
	t.Setenv("BUILDKITE_PLUGINS", `[{"docker#v5.11.0":{"image":"a<b"}}]`)
	t.Setenv("X", "a\nb")
	got := kbnode(t, "bootstrap", "--print-spec")
	if want := "kbnode: image: \"a<b\" is not the name of an image; write one such as ghcr.io/gpu-mode/kernelbot:latest\n"; got.code != 96 || got.err != want || got.out != "" {
		t.Errorf("a refused step: %+v", got)
	}
	t.Setenv("BUILDKITE_PLUGINS", `[{"docker#v5.11.0":{"image":"a","environment":["X"]}}]`)
	want := kbnode(t, "bootstrap", "--print-spec")
	var s job.Spec
	if err := json.Unmarshal([]byte(want.out), &s); err != nil || want.code != 0 || want.err != "" || len(s.Env) != 1 || s.Env[0].Value != "a\nb" {
		t.Fatalf("%v, %+v", err, want)
	}

	twin := must.Write(t, t.TempDir(), "env.json", `{"BUILDKITE_JOB_ID":"0190-job","X":"a\nb"}`)
	t.Setenv("BUILDKITE_ENV_FILE", "")
	t.Setenv("BUILDKITE_ENV_JSON_FILE", twin)
	if got := kbnode(t, "bootstrap", "--print-spec"); got.out != want.out {
		t.Errorf("from JSON: %+v", got)
	}
	for _, tt := range []struct {
		name, file string
		args       []string
		code       int
		says       string
	}{
		{"without the flag", twin, nil, term.ExitUsage, "add --print-spec"},
		{"with an argument", twin, []string{"--print-spec", "x"}, term.ExitUsage, "x"},
		{"no variable", "", []string{"--print-spec"}, term.ExitUsage, "set BUILDKITE_ENV_FILE"},
		{"no file", filepath.Join(t.TempDir(), "none"), []string{"--print-spec"}, term.ExitNo, "no such file"},
		{"a device", "/dev/zero", []string{"--print-spec"}, term.ExitNo, "not a regular file"},
		{"another file", must.Write(t, t.TempDir(), "x", "{}}"), []string{"--print-spec"}, 96, "BUILDKITE_ENV_JSON_FILE: it is not what an agent writes"},
		{"a large file", must.Write(t, t.TempDir(), "x", strings.Repeat(" ", job.MaxEnvFile+1)), []string{"--print-spec"}, 96, "more than 8388608 bytes"},
	} {
		t.Setenv("BUILDKITE_ENV_JSON_FILE", tt.file)
		if got := kbnode(t, append([]string{"bootstrap"}, tt.args...)...); got.code != tt.code || !strings.Contains(got.err, tt.says) || got.out != "" {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// TestBootstrapOfASlot ends with the status that says whose fault it is, before a job runs.
func TestBootstrapOfASlot(t *testing.T) {
	keepEnviron(t)
	t.Setenv("BUILDKITE_ENV_FILE", "")
	for file, code := range map[string]int{"": bootstrap.ExitNode, "/dev/zero": bootstrap.ExitNode, "/nowhere": bootstrap.ExitNode, must.Write(t, t.TempDir(), "x", "{}}"): job.ExitRefused} {
		t.Setenv("BUILDKITE_ENV_JSON_FILE", file)
		if got := kbnode(t, "bootstrap", "--slot", "0"); got.code != code || !strings.Contains(got.out, "+++ kbnode does not run this step\n") {
			t.Errorf("%q: %+v", file, got)
		}
	}
}

// TestLineBreakInAName takes no variable of the operator's for one that Buildkite sent.
func TestLineBreakInAName(t *testing.T) {
	t.Parallel()
	file := must.Write(t, t.TempDir(), "env", "A\nHTTPS_PROXY=\"x\"\n")
	_, err := jobInput([]string{"BUILDKITE_ENV_FILE=" + file, "HTTPS_PROXY=http://me:secret@proxy", "A\nHTTPS_PROXY=x"})
	must.Err(t, err, `"A\nHTTPS_PROXY" is not the name of a variable`)
}

// keepEnviron puts the environment back at the end: a slot's bootstrap clears it.
func keepEnviron(t *testing.T) {
	t.Helper()
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
}

// TestJobLog passes on a log as it is. What a build says is then no
// longer this process's environment.
func TestJobLog(t *testing.T) {
	keepEnviron(t)
	t.Setenv("GODEBUG", "http2debug=1")
	t.Setenv("BUILDKITE_ENV_FILE", must.Write(t, t.TempDir(), "env", "BUILDKITE_JOB_ID=\"0190-job\"\n"))
	t.Setenv("BUILDKITE_JOB_ID", "0190-job")
	t.Setenv("BUILDKITE_COMMAND", "true")
	t.Setenv("BUILDKITE_PLUGINS", `[{"docker#v5.11.0":{"image":"größe"}}]`)
	got := kbnode(t, "bootstrap", "--slot", "0")
	if env := os.Environ(); len(env) > 0 {
		t.Errorf("the environment: %q", env)
	}
	if got.code != 96 || !strings.Contains(got.out, `"größe"`) {
		t.Errorf("%+v", got)
	}
}
