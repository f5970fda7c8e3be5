package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/test/bktest"
)

func listen(t *testing.T, o bktest.Options) *bktest.Server {
	t.Helper()
	s := bktest.New(o)
	if err := s.Listen("127.0.0.1:0", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// bkstub runs a command against s.
func bkstub(t *testing.T, s *bktest.Server, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append(args[:1:1], append([]string{"--url", s.URL()}, args[1:]...)...), &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func register(t *testing.T, s *bktest.Server, name, queue string) {
	t.Helper()
	post := func(path, token, body string) (answer struct {
		Token string `json:"access_token"`
	}) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Endpoint()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Token "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", path, resp, err)
		}
		err = errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close())
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	a := post("/register", bktest.DefaultAgentToken, `{"name":"`+name+`","meta_data":["queue=`+queue+`"]}`)
	post("/connect", a.Token, "")
}

func TestSubmit(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{Pipelines: []bktest.Pipeline{{Slug: "kernelbot", Steps: samplePipeline}}})
	config := write(t, "c.json", `{"lang": "py"}`)
	big := write(t, "big", strings.Repeat("A", 150_000)+"\n")
	env := func(args ...string) map[string]string {
		code, out, errs := bkstub(t, s, append([]string{"submit", "--queue", "b200"}, args...)...)
		all := s.Builds()
		if code != 0 || strings.TrimSpace(out) != strconv.Itoa(len(all)) {
			t.Fatalf("%v: exit %d %s %s", args, code, out, errs)
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
	if diff := cmp.Diff([]string{"exec kbnode runner", "queue=b200", "result.json;profile_data/**"},
		[]string{job.Command, job.AgentQueryRules[0], job.ArtifactPaths}); diff != "" {
		t.Error(diff)
	}
	if doc, err := payload.Inflate(env("--config", config, "--payload-env", "SUBMISSION_PAYLOAD")["SUBMISSION_PAYLOAD"]); doc != `{"lang": "py"}` {
		t.Errorf("from a file: %q, %v", doc, err)
	}
	got = env("--payload", big)
	if n := len(got["KERNELBOT_PAYLOAD_0"]) + len(got["KERNELBOT_PAYLOAD_1"]); n != 150_000 {
		t.Errorf("%d bytes of payload in two pieces", n)
	}
	if _, has := env("--steps", write(t, "s.yml", "steps: [{command: x}]"))["KERNELBOT_PAYLOAD"]; has {
		t.Error("steps of one's own come with the built-in submission")
	}

	hostile := make(chan string, 1)
	if err := s.Employ(t.Context(), bktest.Worker{Name: "worker", Tags: []string{"queue=jobs"}, Do: func(_ context.Context, w *bktest.Work) { hostile <- w.Env["BUILDKITE_REPO"] }}); err != nil {
		t.Fatal(err)
	}
	env("--steps", write(t, "s.yml", "steps: [{command: x, agents: {queue: jobs}}]"), "--job-env", write(t, "env", `{"BUILDKITE_REPO":"ext::x"}`))
	if got := <-hostile; got != "ext::x" {
		t.Errorf("the job has repository %q", got)
	}

	code, _, errs := bkstub(t, s, "cancel", "1")
	if code != 0 {
		t.Errorf("cancel: %s", errs)
	}
	if code, _, errs := bkstub(t, s, "wait", "1"); code != 1 || !strings.Contains(errs, "build 1: canceled; waits for an agent with queue=b200") {
		t.Errorf("wait: exit %d %s", code, errs)
	}
	if code, _, errs := bkstub(t, s, "wait", "2", "--timeout", "1ms"); code != 1 || !strings.Contains(errs, "still scheduled") {
		t.Errorf("wait in vain: exit %d %s", code, errs)
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{})
	register(t, s, "n-gpu1", "b200")
	register(t, s, "n-gpu0", "b200")
	register(t, s, "other", "h100")
	code, out, errs := bkstub(t, s, "agents", "--queue", "b200")
	want := "NAME    QUEUE  STATE      JOB\nn-gpu0  b200   connected  -\nn-gpu1  b200   connected  -\n"
	if diff := cmp.Diff(want, out); code != 0 || diff != "" {
		t.Errorf("exit %d %s %s", code, errs, diff)
	}
	if code, _, errs := bkstub(t, s, "wait-agents", "--count", "3", "--timeout", "10s"); code != 0 || !strings.Contains(errs, "3 of 3") {
		t.Errorf("exit %d %s", code, errs)
	}
	if code, _, errs := bkstub(t, s, "wait-agents", "--count", "3", "--queue", "b200", "--timeout", "1ms"); code != 1 || !strings.Contains(errs, "of 3 agents connected after 1ms") {
		t.Errorf("exit %d %s", code, errs)
	}
	_, out, _ = bkstub(t, s, "agents", "--json")
	var lines []agentLine
	if err := json.Unmarshal([]byte(out), &lines); err != nil || len(lines) != 3 || lines[2].Queue != "h100" || lines[2].Busy {
		t.Errorf("%v in %s", err, out)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{})
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no queue":           {[]string{"submit"}, 2, "no queue"},
		"odd environment":    {[]string{"submit", "--queue", "q", "--env", "X"}, 2, "write NAME=VALUE"},
		"two payloads":       {[]string{"submit", "--queue", "q", "--payload", "a", "--config", "b"}, 2, "give one"},
		"a missing file":     {[]string{"submit", "--queue", "q", "--steps", "/nonexistent"}, 1, "/nonexistent"},
		"no such flag":       {[]string{"agents", "--nope"}, 2, "-nope"},
		"no number":          {[]string{"wait"}, 2, "see bkstub wait --help"},
		"odd number":         {[]string{"log", "x"}, 2, `"x" is not the number`},
		"no such build":      {[]string{"log", "7"}, 1, "read build 7: the API token has no access"},
		"a wrong token":      {[]string{"agents", "--api-token", "x"}, 1, "refuses the API token"},
		"no steps to run":    {[]string{"submit", "--queue", "q"}, 1, "no steps"},
		"an unknown command": {[]string{"nope"}, 2, "want one of serve, submit"},
	} {
		if code, _, errs := bkstub(t, s, tt.args...); code != tt.code || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: exit %d, %s; want %d, %s", name, code, errs, tt.code, tt.want)
		}
	}
}

// lockedBuffer is a buffer that a command may write to while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestServeAndRunWithTheRealAgent(t *testing.T) {
	t.Parallel()
	agent := os.Getenv("KBNODE_TEST_AGENT")
	if agent == "" {
		t.Skip("KBNODE_TEST_AGENT does not name a buildkite-agent")
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	pipeline := write(t, "mine.yml", `
steps:
  - command: "echo run $$KERNELBOT_RUN_ID; echo '{\"n\": 1}' > result.json; exit 3"
    agents: {queue: "${KERNELBOT_QUEUE}"}
    artifact_paths: result.json
`)
	var served lockedBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--addr", "127.0.0.1:0", "--pipeline", pipeline}, &served, &served)
	}()
	where := regexp.MustCompile(`serving (\S+);`)
	for where.FindStringSubmatch(served.String()) == nil {
		select {
		case code := <-ended:
			t.Fatalf("serve: exit %d %s", code, served.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	url := where.FindStringSubmatch(served.String())[1]

	dir := t.TempDir()
	if err := os.Symlink(agent, filepath.Join(dir, "buildkite-agent")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "buildkite-agent"), "start", "--endpoint", url+"/v3", "--tags", "queue=q",
		"--name", "node-gpu0", "--build-path", filepath.Join(dir, "b"), "--hooks-path", dir, "--plugins-path", filepath.Join(dir, "p"), "--sockets-path", filepath.Join(dir, "s"))
	cmd.Env = []string{"BUILDKITE_AGENT_TOKEN=" + bktest.DefaultAgentToken, "HOME=" + dir, "PATH=" + dir + ":" + os.Getenv("PATH")}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	var out, errs bytes.Buffer
	if code := run(ctx, []string{"wait-agents", "--url", url, "--queue", "q"}, &out, &errs); code != 0 {
		t.Errorf("wait-agents: exit %d %s", code, errs.String())
	}
	out.Reset()
	code := run(ctx, []string{"submit", "--url", url, "--pipeline", "mine", "--queue", "q", "--env", "KERNELBOT_RUN_ID=r1", "--wait"}, &out, &errs)
	if code != 1 || !strings.Contains(out.String(), "run r1") || !strings.HasSuffix(out.String(), "--- result.json\n{\"n\": 1}\n") {
		t.Errorf("submit: exit %d\n%s\n%s", code, out.String(), errs.String())
	}
	if !strings.Contains(errs.String(), "build 1: failed; job failed on node-gpu0 with exit status 3") {
		t.Errorf("progress: %s", errs.String())
	}
	out.Reset()
	if code := run(ctx, []string{"artifact", "1", "result.json", "--url", url, "--pipeline", "mine"}, &out, &errs); code != 0 || out.String() != "{\"n\": 1}\n" {
		t.Errorf("artifact: exit %d %q", code, out.String())
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agent: %v", err)
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("serve: exit %d %s", code, served.String())
	}
}

func TestPatient(t *testing.T) {
	for slow, want := range map[string]time.Duration{"": time.Minute, "0.5": time.Minute, "2.50": 150 * time.Second, "much": time.Minute} {
		t.Setenv("BKSTUB_SLOWNESS", slow)
		if got := patient(time.Minute); got != want {
			t.Errorf("BKSTUB_SLOWNESS=%s: %v, want %v", slow, got, want)
		}
	}
}
