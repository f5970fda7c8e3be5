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

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/test/bktest"
)

// TestHostileBuilds has real agents receive hostile builds: what they pass on is enough for kbnode to refuse
// each, and what they do not even pass on ends the job, too.
func TestHostileBuilds(t *testing.T) {
	t.Parallel()
	agent := os.Getenv("KBNODE_TEST_AGENT")
	if agent == "" {
		t.Skip("KBNODE_TEST_AGENT does not name a buildkite-agent")
	}
	s := bktest.New(bktest.Options{Pipelines: []bktest.Pipeline{{Slug: "kernelbot", Repo: "https://github.com/gpu-mode/kernelbot"}}})
	if err := s.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Submit(bktest.NewBuild{Steps: `steps: [{command: "true", agents: {queue: q}}]`, MetaData: map[string]string{bktest.JobEnvKey: string(text)}})
		if err != nil {
			t.Fatal(err)
		}
		builds[b.Number] = tt
	}
	for number, tt := range builds {
		t.Run(tt.Name, func(t *testing.T) {
			b, err := s.WaitBuild(ctx, number)
			if err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(agent, "start", "--endpoint", s.Endpoint(), "--spawn", "8", "--name", "node-gpu%spawn", "--tags", "queue=q", "--no-color",
		"--build-path", filepath.Join(dir, "b"), "--hooks-path", dir, "--plugins-path", filepath.Join(dir, "p"), "--sockets-path", filepath.Join(dir, "s"),
		"--bootstrap-script", self+" bootstrap --print-spec")
	cmd.Env = []string{"BUILDKITE_AGENT_TOKEN=" + bktest.DefaultAgentToken, "HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"), asKbnode + "=1", "GORACE=atexit_sleep_ms=0"}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the agent: %v\n%.20000s", err, said.String())
		}
	})
}
