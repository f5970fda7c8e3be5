package cli

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestBootstrapPrintsTheSpec(t *testing.T) {
	t.Setenv("BUILDKITE_ENV_FILE", put(t, t.TempDir(), "env", "BUILDKITE_JOB_ID=\"0190-job\"\nBARE\nX=\"a\\nb\"\n"))
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

	twin := put(t, t.TempDir(), "env.json", `{"BUILDKITE_JOB_ID":"0190-job","X":"a\nb"}`)
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
		{"another file", put(t, t.TempDir(), "x", "{}}"), []string{"--print-spec"}, 96, "BUILDKITE_ENV_JSON_FILE: it is not what an agent writes"},
		{"a large file", put(t, t.TempDir(), "x", strings.Repeat(" ", job.MaxEnvFile+1)), []string{"--print-spec"}, 96, "more than 8388608 bytes"},
	} {
		t.Setenv("BUILDKITE_ENV_JSON_FILE", tt.file)
		if got := kbnode(t, append([]string{"bootstrap"}, tt.args...)...); got.code != tt.code || !strings.Contains(got.err, tt.says) || got.out != "" {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// TestBootstrapOfASlot ends with the status that says whose fault it is, before a job runs.
func TestBootstrapOfASlot(t *testing.T) {
	t.Setenv("BUILDKITE_ENV_FILE", "")
	for file, code := range map[string]int{"": bootstrap.ExitNode, "/dev/zero": bootstrap.ExitNode, "/nowhere": bootstrap.ExitNode, put(t, t.TempDir(), "x", "{}}"): job.ExitRefused} {
		t.Setenv("BUILDKITE_ENV_JSON_FILE", file)
		if got := kbnode(t, "bootstrap", "--slot", "0"); got.code != code || got.err == "" {
			t.Errorf("%q: %+v", file, got)
		}
	}
}

// TestJobLog passes on a log as it is. What a build says is then no
// longer this process's environment.
func TestJobLog(t *testing.T) {
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value) // put back at the end
	}
	t.Setenv("GODEBUG", "http2debug=1")
	t.Setenv("BUILDKITE_ENV_FILE", put(t, t.TempDir(), "env", "BUILDKITE_JOB_ID=\"0190-job\"\n"))
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

// TestHostileBuilds has real agents receive hostile builds: what they pass on is enough for kbnode to refuse
// each, and what they do not even pass on ends the job, too.
func TestHostileBuilds(t *testing.T) {
	t.Parallel()
	agent := os.Getenv("KBNODE_TEST_AGENT")
	if agent == "" {
		t.Skip("KBNODE_TEST_AGENT does not name a buildkite-agent")
	}
	s := bktest.New(bktest.Options{Pipelines: []bktest.Pipeline{{Slug: "kernelbot", Repo: "https://github.com/gpu-mode/kernelbot"}}})
	must.Do(t, s.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = s.Close() })
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(stop)
	hostileAgents(t, s, agent)

	builds := map[int]jobtest.Build{}
	for _, tt := range jobtest.Hostile {
		if !tt.Sendable() {
			continue
		}
		text, err := json.Marshal(jobtest.Step(tt.Vars))
		must.Do(t, err)
		b, err := s.Submit(bktest.NewBuild{Steps: `steps: [{command: "true", agents: {queue: q}}]`, MetaData: map[string]string{bktest.JobEnvKey: string(text)}})
		must.Do(t, err)
		builds[b.Number] = tt
	}
	for number, tt := range builds {
		t.Run(tt.Name, func(t *testing.T) {
			b, err := s.WaitBuild(ctx, number)
			must.Do(t, err)
			j := b.Jobs[0]
			log := bktest.Plain(s.Log(j.ID))
			status := 0
			switch {
			case tt.Agent != "":
				status = -1
			case tt.Field != "":
				status = job.ExitRefused
			}
			if *j.ExitStatus != status || j.SignalReason != tt.Agent || status == job.ExitRefused && !strings.Contains(log, strings.Trim(strconv.Quote(tt.Field), `"`)) {
				t.Errorf("exit status %d, %q; want %d, %q and %s\n%s", *j.ExitStatus, j.SignalReason, status, tt.Agent, tt.Field, log)
			}
		})
	}
	if _, err := os.Lstat(jobtest.Mark); err == nil {
		t.Error("a command of a build ran on the host")
	}
}

// hostileAgents starts agents that have kbnode only read their jobs.
func hostileAgents(t *testing.T, s *bktest.Server, agent string) {
	t.Helper()
	self, err := os.Executable()
	must.Do(t, err)
	dir := t.TempDir()
	cmd := exec.Command(agent, "start", "--endpoint", s.Endpoint(), "--spawn", "8", "--name", "node-gpu%spawn", "--tags", "queue=q", "--no-color",
		"--build-path", filepath.Join(dir, "b"), "--hooks-path", dir, "--plugins-path", filepath.Join(dir, "p"), "--sockets-path", filepath.Join(dir, "s"),
		"--bootstrap-script", self+" bootstrap --print-spec")
	cmd.Env = []string{"BUILDKITE_AGENT_TOKEN=" + bktest.DefaultAgentToken, "HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"), asKbnode + "=1", "GORACE=atexit_sleep_ms=0"}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the agent: %v\n%.20000s", err, said.String())
		}
	})
}
