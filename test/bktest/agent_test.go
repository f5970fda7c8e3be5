package bktest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
)

// realAgent starts the buildkite-agent that KBNODE_TEST_AGENT names.
func realAgent(t *testing.T, s *bktest.Server, token, tags string) *agentProcess {
	t.Helper()
	binary := os.Getenv("KBNODE_TEST_AGENT")
	if binary == "" {
		t.Skip("KBNODE_TEST_AGENT does not name a buildkite-agent")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin") // a job calls the agent by this name
	for _, d := range []string{bin, filepath.Join(dir, "hooks")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(binary, filepath.Join(bin, "buildkite-agent")); err != nil {
		t.Fatal(err)
	}
	// Not CommandContext: an agent is stopped by asking it, in Cleanup.
	p := &agentProcess{cmd: exec.Command(filepath.Join(bin, "buildkite-agent"), "start",
		"--endpoint", s.Endpoint(), "--name", "node-gpu3", "--tags", tags, "--no-color",
		"--build-path", filepath.Join(dir, "builds"), "--hooks-path", filepath.Join(dir, "hooks"),
		"--plugins-path", filepath.Join(dir, "plugins"), "--sockets-path", filepath.Join(dir, "s")), exited: make(chan struct{})}
	p.cmd.Env = []string{
		"BUILDKITE_AGENT_TOKEN=" + token, "HOME=" + dir, "TMPDIR=" + dir,
		"PATH=" + bin + ":" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1",
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGQUIT) // cancels the remaining job, if any
		select {
		case <-p.exited:
		case <-time.After(20 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
		if t.Failed() {
			t.Logf("the agent said:\n%s", p.out.String())
		}
	})
	return p
}

type agentProcess struct {
	cmd    *exec.Cmd
	out    buffer
	exited chan struct{}
	err    error // valid once exited is closed
}

func (p *agentProcess) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

func (p *agentProcess) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-p.exited:
		return p.err
	case <-time.After(60 * time.Second):
		t.Fatalf("the agent does not exit; it said:\n%s", p.out.String())
		return nil
	}
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestRealAgentIsCanceled(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{})
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	realAgent(t, s, bktest.DefaultAgentToken, "queue=q")
	b, err := s.Submit(bktest.NewBuild{Steps: `steps: [{command: "echo started; sleep 300", agents: {queue: q}}]`})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitFor(ctx, b.Number, func(b bktest.Build) bool { return b.Jobs[0].State == "running" }); err != nil {
		t.Fatal(err)
	}
	rest(t, s, "PUT", builds+"/1/cancel", nil)
	b, err = s.WaitBuild(ctx, b.Number)
	if err != nil {
		t.Fatal(err)
	}
	if b.State != "canceled" || b.Jobs[0].State != "canceled" || *b.Jobs[0].ExitStatus == 0 {
		t.Errorf("build is %s, job %s with status %d", b.State, b.Jobs[0].State, *b.Jobs[0].ExitStatus)
	}
}

func TestRealAgentTimesOut(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{Minute: time.Second})
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	realAgent(t, s, bktest.DefaultAgentToken, "queue=q")
	b, err := s.Submit(bktest.NewBuild{Steps: `steps: [{command: sleep 300, timeout_in_minutes: 1, agents: {queue: q}}]`})
	if err != nil {
		t.Fatal(err)
	}
	if b, err = s.WaitBuild(ctx, b.Number); err != nil {
		t.Fatal(err)
	}
	if b.State != "failed" || b.Jobs[0].State != "timed_out" {
		t.Errorf("build is %s, job %s", b.State, b.Jobs[0].State)
	}
}

func TestRealAgentWithAWrongToken(t *testing.T) {
	t.Parallel()
	s := listen(t, bktest.Options{})
	p := realAgent(t, s, "not-the-token", "queue=q")
	var exit *exec.ExitError
	if err := p.wait(t); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("exit: %v; want status 1", err)
	}
	if out := p.out.String(); !strings.Contains(out, "401 Unauthorized: Invalid access token") {
		t.Errorf("the agent said:\n%s", out)
	}
}
