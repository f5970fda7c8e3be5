package bootstrap

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestExitStatus(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]int{0: 0, 1: 1, 3: 3, 96: 96, 124: 124, 125: 1, 126: 126, 128: 128, 137: 137, 255: 255, -1: ExitNode, 256: ExitNode} {
		r := newRig(t, slot.Outcome{ExitCode: code}, "")
		if status, by := Run(t.Context(), r.Config); status != want || by != nil {
			t.Errorf("%d: %d, %v", code, status, by)
		}
	}
}

// TestTitle says what ran, if it ran, also without any output.
func TestTitle(t *testing.T) {
	t.Parallel()
	for o, want := range map[slot.Outcome]bool{
		{}: true, {ExitCode: 1}: true, {Refused: "no"}: false, {NodeFault: "no engine"}: false, {Canceled: true}: false,
	} {
		r := newRig(t, o, "")
		_, _ = Run(t.Context(), r.Config)
		if got := strings.Count(r.log.String(), "+++ true\n") == 1; got != want {
			t.Errorf("%+v: %s", o, r.log.String())
		}
	}
}

// TestIgnoredVariables names what the agent ignored, in one line.
func TestIgnoredVariables(t *testing.T) {
	t.Parallel()
	r := newRig(t, slot.Outcome{}, "")
	r.Input.Env["BUILDKITE_IGNORED_ENV"] = "BUILDKITE_BIN_PATH,BUILDKITE_X\n+++ forged\x1b[2J" + strings.Repeat("y", 1<<20)
	_, _ = Run(t.Context(), r.Config)
	line, _, _ := strings.Cut(r.log.String(), "\n")
	if !strings.HasPrefix(line, "kbnode: Buildkite's agent ignored BUILDKITE_BIN_PATH,BUILDKITE_X") || strings.Contains(line, "\x1b") || len(line) > 2*maxIgnored ||
		strings.Contains(r.log.String(), "\n+++ forged") || strings.Contains(r.log.String(), "yyy\n") {
		t.Errorf("%.3000q", r.log.String())
	}
	r.Input.Env["BUILDKITE_IGNORED_ENV"] = "theirs"
	r.Input.Sent = append(r.Input.Sent, job.Var{Name: "BUILDKITE_IGNORED_ENV", Value: "theirs"})
	r.log.Reset()
	_, _ = Run(t.Context(), r.Config)
	if strings.Contains(r.log.String(), "ignored") {
		t.Error(r.log.String())
	}
}

func TestPatience(t *testing.T) {
	t.Parallel()
	const three, four = "BUILDKITE_SIGNAL_GRACE_PERIOD_SECONDS", "BUILDKITE_CANCEL_SIGNAL_TIMEOUT"
	for _, row := range []struct {
		env  map[string]string
		want time.Duration
	}{
		{nil, defaultPatience},
		{map[string]string{three: "25"}, 25 * time.Second},
		{map[string]string{four: "25s"}, 25 * time.Second},
		{map[string]string{four: "40"}, 40 * time.Second},
		{map[string]string{three: "25", four: "9999h"}, 25 * time.Second},
		{map[string]string{three: "25", four: "2s"}, 2 * time.Second},
		{map[string]string{three: "-1", four: "x"}, defaultPatience},
		{map[string]string{three: "9223372036854775807"}, defaultPatience},
		{map[string]string{three: "9223372036"}, defaultPatience},
	} {
		must.Equal(t, row.want, patience(row.env))
	}
}

// TestUploadReachesBuildkite gives an upload the operator's proxy, and none that a build sent, nor
// anything else.
func TestUploadReachesBuildkite(t *testing.T) {
	t.Parallel()
	r := newRig(t, slot.Outcome{Files: "/"}, "")
	must.Program(t, r.Agent, "#!/bin/sh\n/usr/bin/env | /usr/bin/sort\n")
	maps.Copy(r.Input.Env, map[string]string{
		"HTTPS_PROXY": "http://proxy:3128", "https_proxy": "http://theirs", "no_proxy": "theirs", "SSL_CERT_FILE": "/etc/ca", "BUILDKITE_AGENT_ACCESS_TOKEN": "shown",
		"BUILDKITE_BIN_PATH": "/theirs", "LD_PRELOAD": "/theirs", "GODEBUG": "theirs", "HOME": "/theirs", "TMPDIR": "/theirs", "RUN": "theirs",
		"BUILDKITE_NO_HTTP2": "theirs", "BUILDKITE_REQUEST_HEADER_HOST": "theirs", "BUILDKITE_REQUEST_HEADER_SHARD": "ours",
	})
	r.Input.Env["BUILDKITE_REDACTED_VARS"] = ""
	r.Input.Sent = append(r.Input.Sent, job.Var{Name: "https_proxy", Value: "http://theirs"}, job.Var{Name: "no_proxy", Value: "theirs"},
		job.Var{Name: "BUILDKITE_NO_HTTP2", Value: "theirs"}, job.Var{Name: "BUILDKITE_REQUEST_HEADER_HOST", Value: "theirs"})
	status, _ := Run(t.Context(), r.Config)
	want := "~~~ Uploading artifacts\nBUILDKITE_AGENT_ACCESS_TOKEN=shown\nBUILDKITE_JOB_ID=0190\nBUILDKITE_REQUEST_HEADER_SHARD=ours\nHOME=/nonexistent\nHTTPS_PROXY=http://proxy:3128\nPATH=/nonexistent\nPWD=/\nSSL_CERT_FILE=/etc/ca\n"
	if got := r.log.String(); status != 0 || !strings.HasSuffix(got, want) {
		t.Errorf("%d: %s", status, got)
	}
}

// TestOwnLines begins lines of its own where a job ended within one.
func TestOwnLines(t *testing.T) {
	t.Parallel()
	for says, want := range map[string]string{"50%": "50%\n^^^ +++\nkbnode: why\n", "50%\n": "50%\n^^^ +++\nkbnode: why\n", "50%\r\n": "50%\r\n^^^ +++\nkbnode: why\n"} {
		r := newRig(t, slot.Outcome{NodeFault: "why"}, says)
		_, _ = Run(t.Context(), r.Config)
		if got := r.log.String(); !strings.HasSuffix(got, "+++ true\n"+want) {
			t.Errorf("%q", got)
		}
	}
}

// TestClosedLog uploads although no one reads the log any more.
func TestClosedLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, slot.Outcome{Files: "/"}, "hello\n")
	closed, log, err := os.Pipe()
	must.Do(t, errors.Join(err, closed.Close()))
	defer func() { _ = log.Close() }()
	r.Log = log
	if status, _ := Run(t.Context(), r.Config); status != 0 {
		t.Error(status)
	}
}

// uploads is a rig of a step that uploads a pipeline, with what its agent does.
func uploads(t *testing.T, pipeline, does string) *rig {
	t.Helper()
	dir := t.TempDir()
	r := newRig(t, slot.Outcome{Files: dir, Pipeline: "p.yml"}, "")
	must.Write(t, dir, "p.yml", pipeline)
	must.Program(t, r.Agent, "#!/bin/sh\n"+does+"\n")
	maps.Copy(r.Input.Env, map[string]string{
		"BUILDKITE_COMMAND": "buildkite-agent pipeline upload", "BUILDKITE_PLUGINS": "", "BUILDKITE_REPO": "https://github.com/a/b", "BUILDKITE_COMMIT": "HEAD",
		"BUILDKITE_BRANCH": "main", "HTTPS_PROXY": "http://me:secret@proxy", "BUILDKITE_AGENT_ACCESS_TOKEN": "secret-token",
	})
	r.Input.Sent, r.Input.Repositories = append(r.Input.Sent, job.Var{Name: "https_proxy", Value: "theirs"}, job.Var{Name: "BRANCH", Value: "main"}), []string{".*"}
	return r
}

// TestPipelineRefused ends with the agent's own status, unless it did not end by itself.
func TestPipelineRefused(t *testing.T) {
	t.Parallel()
	for does, want := range map[string]int{"exit 1": 1, "exit 125": 1, "kill -9 $$": ExitNode} {
		if status, _ := Run(t.Context(), uploads(t, "steps: [wait]", does).Config); status != want {
			t.Errorf("%s: %d", does, status)
		}
	}
}

// TestPipelineHasSlot fills in what each job of the slot has, which no build can change, and fails where that cannot be read.
func TestPipelineHasSlot(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"# by kbnode\nKERNELBOT_MEMORY=249036m\nKERNELBOT_CPUS=13\n": `"cpus":"13","image":"main","memory":"249036m"`, "": "read the slot's variables"} {
		r := uploads(t, "steps: [{plugins: [{docker#v5.13.0: {memory: '${KERNELBOT_MEMORY:-64g}', cpus: '$KERNELBOT_CPUS', image: $BRANCH}}]}]", "/bin/cat")
		r.Input.Sent = append(r.Input.Sent, job.Var{Name: "KERNELBOT_MEMORY", Value: "1m"})
		r.SlotVars = filepath.Join(t.TempDir(), "environment")
		if file != "" {
			must.Do(t, os.WriteFile(r.SlotVars, []byte(file), 0o600))
		}
		if status, _ := Run(t.Context(), r.Config); (status == 0) != (file != "") || !strings.Contains(r.log.String(), want) {
			t.Errorf("%d: %s", status, r.log.String())
		}
	}
}

// TestPipelineKeepsSecrets uploads pipelines with what Buildkite sent, and nothing that only the agent knows.
func TestPipelineKeepsSecrets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"steps: [{command: 'echo $BRANCH$$X', env: {A: x}}]":          `{"steps":[{"command":"echo main$X","env":{"A":"x"}}]}`,
		"steps: [{command: 'echo $BUILDKITE_AGENT_ACCESS_TOKEN-'}]":   `"command":"echo -"`,
		`steps: [{command: "echo ${\x48TTPS_PROXY:-x}$https_proxy"}]`: `"command":"echo xtheirs"`,
		"steps: [":                              "",
		"steps: [{command: '${NONE?give it}'}]": "",
	} {
		r := uploads(t, text, "echo $*\n/bin/cat")
		status, _ := Run(t.Context(), r.Config)
		uploaded := strings.Contains(r.log.String(), "pipeline upload --no-interpolation\n")
		if uploaded != (want != "") || !uploaded && status != job.ExitRefused || !strings.Contains(r.log.String(), want) {
			t.Errorf("%s: %d: %s", text, status, r.log.String())
		}
	}
}

// TestUploadFitsTheAgentsPatience ends an upload before the agent kills all of them.
func TestUploadFitsTheAgentsPatience(t *testing.T) {
	t.Parallel()
	r := newRig(t, slot.Outcome{Files: "/", Canceled: true}, "")
	must.Program(t, r.Agent, "#!/bin/sh\nexec /bin/sleep 600\n")
	canceled := make(chan struct{})
	close(canceled)
	r.Canceled = canceled
	r.Input.Env["BUILDKITE_SIGNAL_GRACE_PERIOD_SECONDS"] = "4"
	began := time.Now()
	ctx, stop := r.untilCanceled(t.Context())
	defer stop()
	<-ctx.Done()
	if err := r.upload(ctx, &job.Spec{Kind: job.KindNode}, slot.Outcome{Files: "/"}); err == nil || time.Since(began) > 15*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if by := cancellation(ctx); by == nil || by.by != syscall.SIGTERM {
		t.Errorf("%v", by)
	}
}
