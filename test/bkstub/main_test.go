package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

func listen(t *testing.T, o bktest.Options) *bktest.Server {
	t.Helper()
	s := bktest.New(o)
	must.Do(t, s.Listen("127.0.0.1:0"))
	t.Cleanup(func() {
		must.Do(t, s.Close())
	})
	return s
}

// bkstub runs a command against s.
func bkstub(t *testing.T, s *bktest.Server, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = run(t.Context(), append(args[:1:1], append([]string{"--url", s.URL()}, args[1:]...)...), &out, &errs)
	return out.String(), errs.String(), err
}

func TestSubmit(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{Steps: samplePipeline})
	env := func(args ...string) map[string]string {
		out, errs, err := bkstub(t, s, append([]string{"submit", "--queue", "b200"}, args...)...)
		all := s.Builds()
		if err != nil || strings.TrimSpace(out) != strconv.Itoa(len(all)) {
			t.Fatalf("%v: %v %s %s", args, err, out, errs)
		}
		return all[len(all)-1].Env
	}

	got := env("--env", "EXTRA=a=b")
	doc, err := payload.Inflate(got["KERNELBOT_PAYLOAD"])
	if err != nil || !strings.Contains(doc, "POPCORN_FD") {
		t.Errorf("built-in submission: %v %.100s", err, doc)
	}
	if got["KERNELBOT_QUEUE"] != "b200" || got["EXTRA"] != "a=b" || !strings.HasPrefix(got["KERNELBOT_RUN_ID"], "run-") {
		t.Errorf("environment: %v", got)
	}
	job := s.Builds()[0].Jobs[0]
	must.Equal(t, []string{"exec kbnode runner", "queue=b200", "result.json;profile_data/**"}, []string{job.Command, job.AgentQueryRules[0], job.ArtifactPaths})
	if doc, err := payload.Inflate(env("--config", must.Write(t, t.TempDir(), "c.json", `{"lang": "py"}`))["KERNELBOT_PAYLOAD"]); doc != `{"lang": "py"}` {
		t.Errorf("from a file: %q, %v", doc, err)
	}
	if _, has := env("--steps", must.Write(t, t.TempDir(), "s.yml", "steps: [{command: x}]"))["KERNELBOT_PAYLOAD"]; has {
		t.Error("steps of one's own come with the built-in submission")
	}

	hostile := make(chan string, 1)
	must.Do(t, s.Employ(t.Context(), bktest.Worker{Name: "worker", Tags: []string{"queue=jobs"}, Do: func(_ context.Context, w *bktest.Work) { hostile <- w.Env["BUILDKITE_REPO"] }}))
	env("--steps", must.Write(t, t.TempDir(), "s.yml", "steps: [{command: x, agents: {queue: jobs}}]"), "--job-env", must.Write(t, t.TempDir(), "env", `{"BUILDKITE_REPO":"ext::x"}`))
	must.Equal(t, "ext::x", <-hostile)
	_, _, err = bkstub(t, s, "wait-agents", "--count", "1", "--queue", "jobs")
	must.Do(t, err)
	_, _, err = bkstub(t, s, "wait-agents", "--count", "1", "--queue", "b200", "--timeout", "1ms")
	must.Err(t, err, "0 of 1 agents connected after 1ms")

	_, _, err = bkstub(t, s, "cancel", "1")
	must.Do(t, err)
	if _, errs, err := bkstub(t, s, "wait", "1"); !errors.Is(err, errNotPassed) || !strings.Contains(errs, "build 1: canceled; waits for an agent with queue=b200") {
		t.Errorf("wait: %v %s", err, errs)
	}
	_, _, err = bkstub(t, s, "wait", "2", "--timeout", "1ms")
	must.Err(t, err, "still scheduled")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{})
	for want, args := range map[string][]string{
		`"queue" not set`:       {"submit"},
		"write NAME=VALUE":      {"submit", "--queue", "q", "--env", "X"},
		"/nonexistent":          {"submit", "--queue", "q", "--steps", "/nonexistent"},
		"accepts 1 arg":         {"wait"},
		`"x" is not the number`: {"log", "x"},
		"read build 7: the API": {"log", "7"},
		"no steps":              {"submit", "--queue", "q"},
	} {
		if _, errs, err := bkstub(t, s, args...); err == nil || !strings.Contains(errs, want) {
			t.Errorf("%v: %v, %s; want %s", args, err, errs, want)
		}
	}
}

func TestServeAndRunWithTheRealAgent(t *testing.T) {
	t.Parallel()
	agent := os.Getenv("KBNODE_TEST_AGENT")
	if agent == "" {
		t.Skip("KBNODE_TEST_AGENT does not name a buildkite-agent")
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	steps := must.Write(t, t.TempDir(), "mine.yml", `
steps:
  - command: "echo run $$KERNELBOT_RUN_ID; echo '{\"n\": 1}' > result.json; exit 3"
    agents: {queue: "${KERNELBOT_QUEUE}"}
    artifact_paths: result.json
`)
	repo := t.TempDir()
	git := exec.CommandContext(ctx, "sh", "-ec", "git init -q -b main; git -c user.name=x -c user.email=x@example.com commit -q --allow-empty -m x")
	git.Dir = repo
	must.Do(t, git.Run())
	served, log := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--addr", "127.0.0.1:0", "--repo", repo}, log, log)
	}()
	line, err := bufio.NewReader(served).ReadString(';')
	must.Do(t, err)
	go func() { _, _ = io.Copy(io.Discard, served) }()
	url := strings.TrimSuffix(line[strings.LastIndex(line, " ")+1:], ";")

	dir := t.TempDir()
	must.Do(t, os.Symlink(agent, filepath.Join(dir, "buildkite-agent")))
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "buildkite-agent"), "start", "--endpoint", url+"/v3", "--tags", "queue=q",
		"--name", "node-gpu0", "--build-path", filepath.Join(dir, "b"), "--hooks-path", dir, "--plugins-path", filepath.Join(dir, "p"), "--sockets-path", filepath.Join(dir, "s"))
	cmd.Env = []string{"BUILDKITE_AGENT_TOKEN=" + bktest.DefaultAgentToken, "HOME=" + dir, "PATH=" + dir + ":" + os.Getenv("PATH")}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	must.Do(t, cmd.Start())

	var out, errs bytes.Buffer
	must.Do(t, run(ctx, []string{"wait-agents", "--url", url, "--queue", "q"}, &out, &errs))
	err = run(ctx, []string{"submit", "--url", url, "--steps", steps, "--queue", "q", "--env", "KERNELBOT_RUN_ID=r1", "--wait"}, &out, &errs)
	if !errors.Is(err, errNotPassed) || !strings.Contains(out.String(), "run r1") || !strings.HasSuffix(out.String(), "--- result.json\n{\"n\": 1}\n") {
		t.Errorf("submit: %v\n%s\n%s", err, out.String(), errs.String())
	}
	must.Contain(t, errs.String(), "build 1: failed; job failed on node-gpu0 with exit status 3")
	out.Reset()
	if err := run(ctx, []string{"artifact", "1", "result.json", "--url", url}, &out, &errs); err != nil || out.String() != "{\"n\": 1}\n" {
		t.Errorf("artifact: %v %q", err, out.String())
	}
	must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
	must.Do(t, cmd.Wait())
	stop()
	must.Do(t, <-ended)
}

func TestPatient(t *testing.T) {
	for slow, want := range map[string]time.Duration{"": time.Minute, "0.5": time.Minute, "2.50": 150 * time.Second, "much": time.Minute} {
		t.Setenv("BKSTUB_SLOWNESS", slow)
		if got := patient(time.Minute); got != want {
			t.Errorf("BKSTUB_SLOWNESS=%s: %v, want %v", slow, got, want)
		}
	}
}
