package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// rig runs jobs of one step, whose service keeps the specs and answers with the same end.
type rig struct {
	Config
	log   bytes.Buffer
	mu    sync.Mutex
	specs []*job.Spec
}

func newRig(t *testing.T, end slot.Outcome, says string) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{}
	socket := answers(t, func(conn net.Conn, _ int32) {
		_, body, _ := slot.ReadRequest(conn, job.MaxSpec)
		spec, err := job.Parse(body)
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.specs = append(r.specs, spec)
		frames := slot.NewFrames(conn)
		if says != "" {
			_, _ = io.WriteString(frames.Writer(slot.FrameStdout), says)
		}
		_ = frames.End(end)
	})
	r.Config = Config{
		Socket: socket, Slot: "gpu0", Log: &r.log, Agent: filepath.Join(dir, "buildkite-agent"),
		Hooks: filepath.Join(dir, "hooks"), SlotVars: filepath.Join(dir, "environment"), Home: "/home/slot", hookOwner: os.Getuid(),
		Input: job.Input{Env: map[string]string{
			"BUILDKITE_JOB_ID": "0190", "BUILDKITE_COMMAND": "true", "BUILDKITE_ARTIFACT_PATHS": "result.json", "BUILDKITE_REDACTED_VARS": "*_TOKEN",
			"BUILDKITE_PLUGINS": `[{"docker#v5.13.0":{"image":"img","environment":["RUN=theirs"]}}]`,
		}, Sent: []job.Var{{Name: "RUN", Value: "theirs"}}},
	}
	err := errors.Join(os.Mkdir(r.Hooks, 0o755), os.WriteFile(r.SlotVars, []byte("# "+plan.Marker+"\nKERNELBOT_CPUS=4\n"), 0o600))
	must.Do(t, err)
	must.Program(t, r.Agent, "#!/bin/sh\necho uploaded\n")
	return r
}

// hook writes a hook.
func (r *rig) hook(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(r.Hooks, name)
	must.Program(t, path, "#!/bin/bash\n"+text+"\n")
	return path
}

func TestEnvironmentHook(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		hook   string
		env    string // of the container
		status int
		says   string
		hides  string
	}{
		"exports":             {hook: "export A=1 RUN=ours KERNELBOT_CPUS=9 LD_PRELOAD=/x KBNODE_PROFILE=strict; B=2; export PATH=/x HOME=/y; f() { :; }; export -f f; cd /tmp", env: "RUN=ours A=1"},
		"nothing new":         {hook: "export KERNELBOT_CPUS", env: "RUN=theirs"},
		"lines and quotes":    {hook: `export A=$'x\n"y=z'`, env: "RUN=theirs A=x\n\"y=z"},
		"an early end":        {hook: "export A=1; exit 0", env: "RUN=theirs A=1"},
		"its environment":     {hook: "env -u _ -u SHLVL | sort; pwd; echo args $#", env: "RUN=theirs", says: "HOME=/home/slot\nKERNELBOT_CPUS=4\nPATH=" + hookPath + "\nPWD=/\n/\nargs 0\n"},
		"no input":            {hook: "read -r line || echo none", env: "RUN=theirs", says: "none\n"},
		"a secret":            {hook: "export MY_TOKEN=hook-secret; echo a $MY_TOKEN >&2", env: "RUN=theirs MY_TOKEN=hook-secret", says: "a [REDACTED]\n", hides: "hook-secret"},
		"a fault":             {hook: "echo why; exit 3", status: ExitNode, says: "why\n^^^ +++\nkbnode: run the node's hook environment: exit status 3; fix it on the node\n"},
		"a fault of set -e":   {hook: "set -e; false; export A=1", status: ExitNode, says: "exit status 1"},
		"too slow":            {hook: "sleep 600 & echo $! >$PIDS; sleep 600", status: ExitNode, says: "it took too long"},
		"another program":     {hook: "exec true", status: ExitNode, says: "its exports are lost"},
		"much output":         {hook: "head -c 1000000 /dev/zero | tr '\\0' x", env: "RUN=theirs", says: strings.Repeat("x", maxHookLog) + "\n…\n+++ true"},
		"too much":            {hook: "for ((i = 0; i < 30; i++)); do printf -v v '%0100000d' 0; export V$i=$v; done", status: ExitNode, says: "exports more than Linux takes"},
		"not text":            {hook: `export A=$'\xff'`, status: ExitNode, says: "not UTF-8"},
		"stays in background": {hook: "sleep 600 & export A=1", env: "RUN=theirs A=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, slot.Outcome{}, "hook-secret\n")
			pids := filepath.Join(t.TempDir(), "pid")
			r.hook(t, hookEnvironment, strings.ReplaceAll(row.hook, "$PIDS", pids))
			r.hookLimit = 20 * time.Second
			if name == "too slow" {
				r.hookLimit = 300 * time.Millisecond
			}
			status, _ := Run(t.Context(), r.Config)
			if got := r.log.String(); status != row.status || !strings.Contains(got, row.says) || row.hides != "" && strings.Contains(got, row.hides) {
				t.Errorf("%d: %.2000s", status, got)
			}
			if row.status != 0 {
				must.Equal(t, 0, len(r.specs))
			} else if got := envOf(r); got != row.env {
				t.Errorf("the container has %q", got)
			}
			if pid, err := os.ReadFile(pids); err == nil {
				waitDead(t, strings.TrimSpace(string(pid)))
			}
		})
	}
}

func envOf(r *rig) string {
	if len(r.specs) != 1 {
		return fmt.Sprintf("%d specs", len(r.specs))
	}
	var env []string
	for _, v := range r.specs[0].Env {
		env = append(env, v.Name+"="+v.Value)
	}
	return strings.Join(env, " ")
}

// waitDead waits until a process is not there or is dead.
func waitDead(t *testing.T, pid string) {
	t.Helper()
	for deadline := time.Now().Add(must.Patience); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			n, _ := strconv.Atoi(pid)
			_ = syscall.Kill(n, syscall.SIGKILL)
			t.Fatalf("process %s lives", pid)
		}
	}
}

// TestHooksOfOthers runs no hook that others than root can change.
func TestHooksOfOthers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(r *rig, path string) error{
		"writable by a group":  func(_ *rig, path string) error { return os.Chmod(path, 0o770) },
		"writable by all":      func(_ *rig, path string) error { return os.Chmod(path, 0o702) },
		"a writable directory": func(r *rig, _ string) error { return os.Chmod(r.Hooks, 0o777) },
		"another's":            func(r *rig, _ string) error { r.hookOwner++; return nil },
		"a link": func(_ *rig, path string) error {
			return errors.Join(os.Rename(path, path+"x"), os.Symlink(path+"x", path))
		},
		"a pipe": func(_ *rig, path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) },
		"a directory of a link": func(r *rig, _ string) error {
			return errors.Join(os.Rename(r.Hooks, r.Hooks+"x"), os.Symlink(r.Hooks+"x", r.Hooks))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, slot.Outcome{}, "")
			must.Do(t, change(r, r.hook(t, hookEnvironment, "echo it ran")))
			status, _ := Run(t.Context(), r.Config)
			if got := r.log.String(); status != ExitNode || !strings.Contains(got, "must be root's own, and no one else may write to it") || strings.Contains(got, "it ran") || len(r.specs) != 0 {
				t.Errorf("%d: %s", status, got)
			}
		})
	}
}

// TestPreExitHook runs it after the upload, and keeps the job's status.
func TestPreExitHook(t *testing.T) {
	t.Parallel()
	r := newRig(t, slot.Outcome{ExitCode: 7, Files: "/"}, "")
	r.hook(t, hookEnvironment, "export MY_TOKEN=hook-secret")
	r.hook(t, hookPreExit, "echo after hook-secret $MY_TOKEN; exit 5")
	r.hook(t, "pre-command", "echo never")
	status, _ := Run(t.Context(), r.Config)
	want := "~~~ Uploading artifacts\nuploaded\nafter [REDACTED]\nkbnode: run the node's hook pre-exit: exit status 5; the job's status stays\n"
	if got := r.log.String(); status != 7 || !strings.HasSuffix(got, want) || strings.Contains(got, "never") {
		t.Errorf("%d: %s", status, got)
	}
}

// TestPreExitWithoutJob runs it where the environment could not be made, and not for a refused step.
func TestPreExitWithoutJob(t *testing.T) {
	t.Parallel()
	for step, want := range map[string]bool{"true": true, "": false} {
		r := newRig(t, slot.Outcome{}, "")
		r.hook(t, hookEnvironment, "false")
		r.hook(t, hookPreExit, "echo after")
		r.Input.Env["BUILDKITE_COMMAND"] = step
		if step == "" {
			r.Input.Env["BUILDKITE_PLUGINS"] = ""
		}
		_, _ = Run(t.Context(), r.Config)
		if got := r.log.String(); strings.Contains(got, "after") != want {
			t.Errorf("%q: %s", step, got)
		}
	}
}
