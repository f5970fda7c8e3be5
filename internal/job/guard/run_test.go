package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// jobRig is a service with a job that the agent hands to kbnode.
type jobRig struct {
	*rig
	in    job.Input
	inErr error
	log   syncBuffer
	agent string // a program that notes its arguments and environment
	notes string

	canceled chan struct{} // closed: the agent cancels the job
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// absentPlugin has an image that the node lacks.
var absentPlugin = strings.ReplaceAll(runnerPlugin, `"img"`, `"absent"`)

const runnerPlugin = `[{"github.com/buildkite-plugins/docker-buildkite-plugin#v5.13.0":{"image":"img","tty":false,"environment":["KERNELBOT_RUN_ID"]}}]`

func newJobRig(t *testing.T, sent map[string]string, change ...func(*rig)) *jobRig {
	t.Helper()
	r := &jobRig{rig: newRig(t, change...), notes: filepath.Join(t.TempDir(), "notes")}
	r.agent = filepath.Join(t.TempDir(), "buildkite-agent")
	script := fmt.Sprintf("#!/bin/sh\n{ echo \"args $*\"; pwd; /usr/bin/env; } >%s\necho uploaded\n", r.notes)
	must.Program(t, r.agent, script)
	r.in = job.Input{Repositories: []string{".*"}, Env: map[string]string{
		"BUILDKITE_JOB_ID": "0190", "BUILDKITE_COMMAND": "exec kbnode runner", "BUILDKITE_PLUGINS": runnerPlugin, "BUILDKITE_REPO": "https://github.com/gpu-mode/kernelbot",
		"BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BRANCH": "main", "BUILDKITE_ARTIFACT_PATHS": "result.json;profile_data/**",
		"BUILDKITE_AGENT_ACCESS_TOKEN": "secret-token", "BUILDKITE_REDACTED_VARS": "*_TOKEN", "KERNELBOT_RUN_ID": "17", "LD_PRELOAD": "/x",
	}}
	maps.Copy(r.in.Env, sent)
	for name, value := range r.in.Env {
		if !strings.Contains(name, "TOKEN") {
			r.in.Sent = append(r.in.Sent, job.Var{Name: name, Value: value})
		}
	}
	return r
}

type ended struct {
	status int
	by     os.Signal
}

func (r *jobRig) start(ctx context.Context) <-chan ended {
	done := make(chan ended, 1)
	r.canceled = make(chan struct{})
	canceled := r.canceled
	go func() {
		status, by := bootstrap.Run(ctx, bootstrap.Config{Input: r.in, InputErr: r.inErr, Socket: r.socket, Slot: "gpu0", Log: &r.log, Agent: r.agent, Canceled: canceled})
		done <- ended{status, by}
	}()
	return done
}

// wait returns how the job ended, or fails the test.
func (r *jobRig) wait(t *testing.T, done <-chan ended) ended {
	t.Helper()
	select {
	case e := <-done:
		return e
	case <-time.After(must.Patience):
		t.Fatalf("the job did not end: %s\n%v", r.log.String(), r.engine.requests)
		return ended{}
	}
}

// running starts a job, and returns when it has written its first line.
func (r *jobRig) running(ctx context.Context, t *testing.T) (<-chan ended, stream) {
	t.Helper()
	done := r.start(ctx)
	out := <-r.engine.attached
	must.Until(t, "the first line", func() bool { return strings.Contains(r.log.String(), "hello\n") })
	return done, out
}

// finish ends the container of a job, and returns how the job ended.
func (r *jobRig) finish(t *testing.T, done <-chan ended) ended {
	t.Helper()
	select {
	case out := <-r.engine.attached:
		r.engine.end()
		_ = out.Close()
	case <-time.After(must.Patience):
		t.Fatalf("no container was attached to: %s", r.log.String())
	}
	return r.wait(t, done)
}

// cancel cancels the job that was started last.
func (r *jobRig) cancel() { close(r.canceled) }

// expect checks how a job ended, and what its log says.
func (r *jobRig) expect(t *testing.T, e ended, status int, says string) {
	t.Helper()
	if e.status != status || !strings.Contains(r.log.String(), says) {
		t.Errorf("%+v: %s", e, r.log.String())
	}
}

// checkouts returns the directory of the job that runs.
func (r *jobRig) checkout(t *testing.T) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(r.policy.WorkRoot, runPrefix+"*", "checkout"))
	if err != nil || len(dirs) != 1 {
		t.Fatal(dirs, err)
	}
	return dirs[0]
}

// TestRunJob runs a job from the agent's variables to its artifacts.
func TestRunJob(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil, func(r *rig) { r.policy.KeptImage = "img" })
	done := r.start(t.Context())
	out := <-r.engine.attached
	_, err := io.WriteString(out, frame("a secret-")+frame("token\n"))
	dir := r.checkout(t)
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "result.json"), []byte(`{"success": true}`), 0o600),
		os.Mkdir(filepath.Join(dir, "profile_data"), 0o700), os.Symlink("/etc/passwd", filepath.Join(dir, "profile_data", "link")),
		os.WriteFile(filepath.Join(dir, "profile_data", "Result.json"), []byte(`{"success": true}`), 0o600),
		os.WriteFile(filepath.Join(dir, witness.File), []byte(`[{"evaluation": "leaderboard", "reason": "of one that did not end"}]`), 0o600))
	must.Do(t, err)
	r.engine.end()
	_ = out.Close()
	if e := r.wait(t, done); e.status != 7 || e.by != nil {
		t.Errorf("%+v", e)
	}
	if got := r.log.String(); !strings.Contains(got, "+++ exec kbnode runner\nhello\na [REDACTED]\n") || !strings.Contains(got, "~~~ Uploading artifacts\nuploaded\n") ||
		!strings.Contains(got, `kbnode: ["profile_data/Result.json"] is not uploaded: only the job's own`) {
		t.Errorf("the log: %s", got)
	}
	notes, err := os.ReadFile(r.notes)
	must.Do(t, err)
	if got := string(notes); !strings.Contains(got, "args artifact upload result.json;profile_data/**\n") || !strings.Contains(got, "BUILDKITE_AGENT_ACCESS_TOKEN=secret-token\n") ||
		strings.Contains(got, "LD_PRELOAD") || strings.Contains(got, "KERNELBOT_RUN_ID") {
		t.Errorf("the upload: %s", got)
	}
	files := regexp.MustCompile(`(?m)^/.*$`).FindString(string(notes))
	for name, want := range map[string]bool{"result.json": true, "node.json": true, "profile_data/link": false, "profile_data/Result.json": false, witness.File: false} {
		if _, err := os.Lstat(filepath.Join(files, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	var rec noise.Record
	must.Do(t, json.Unmarshal([]byte(must.Read(t, filepath.Join(files, "node.json"))), &rec))
	if c := rec.Protection.Containers; rec.Implausible != nil || rec.Profile != "strict" || rec.Protection.Kernel != "6.12.0" || len(c) != 1 || c[0].Error != "it had ended" {
		t.Errorf("the record: %+v", rec)
	}
	made := r.engine.created[0]
	must.Equal(t, noise.Image{Name: "docker.io/library/img:latest", ID: made.Image, Kept: true}, rec.Image)
	if made.Labels[jobLabel] != "0190" || made.User == "" || !made.HostConfig.ReadonlyRootfs || made.HostConfig.CgroupParent != r.policy.Slice ||
		!slices.Contains(made.Env, "KERNELBOT_RUN_ID=17") || len(made.Cmd) != 4 || made.Cmd[3] != "exec kbnode runner" {
		t.Errorf("the container: %+v %+v", made.Config, made.HostConfig)
	}
	if n := *made.HostConfig.PidsLimit; n != r.policy.PidsLimit-agentTasks {
		t.Errorf("it may have %d of the slot's %d tasks", n, r.policy.PidsLimit)
	}
	if !r.engine.requested("DELETE /v1.45/containers/"+strings.Repeat("0", 61)) && len(r.engine.containers) != 0 {
		t.Errorf("left: %v", r.engine.containers)
	}
	if !r.engine.requested("POST /v1.45/containers/create?name=kbnode-gpu0-") {
		t.Errorf("the slot's container has another name: %q", r.engine.requests)
	}
	// The next job finds nothing of it.
	r.in.Env["BUILDKITE_JOB_ID"] = "0191"
	done = r.start(t.Context())
	<-r.engine.attached
	if _, err := os.Stat(files); err == nil {
		t.Error("the next job finds files of the last")
	}
	r.wait(t, done)
}

// TestRunGoesOn takes up a job where its stream broke off.
func TestRunGoesOn(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.logs = func(write func(string)) {
		write("hello\n")
		write("while no one looked\n")
		<-r.engine.exit
		write("end\n")
	}
	done, out := r.running(t.Context(), t)
	_ = out.Close() // as an engine that is restarted, with live-restore
	must.Until(t, "the log to go on", func() bool { return strings.Contains(r.log.String(), "looked\n") })
	r.engine.end()
	if e := r.wait(t, done); e.status != 7 {
		t.Errorf("%+v", e)
	}
	if got := r.log.String(); strings.Count(got, "hello\n") != 1 || strings.Count(got, "looked\n") != 1 || strings.Count(got, "end\n") != 1 {
		t.Errorf("the log: %s", got)
	}
}

// TestCancelJob ends a job, uploads what it left, and dies of the signal.
func TestCancelJob(t *testing.T) {
	r := newJobRig(t, nil)
	done, out := r.running(t.Context(), t)
	must.Do(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	must.Until(t, "the container to be stopped", func() bool {
		r.engine.mu.Lock()
		defer r.engine.mu.Unlock()
		return slices.ContainsFunc(r.engine.requests, func(s string) bool { return strings.Contains(s, "/stop?signal=SIGTERM&t=20") })
	})
	r.engine.end()
	_ = out.Close()
	if e := r.wait(t, done); e.by != syscall.SIGTERM {
		t.Errorf("%+v", e)
	}
	if notes, err := os.ReadFile(r.notes); err != nil || !strings.Contains(string(notes), "args artifact upload") {
		t.Errorf("the upload: %s, %v", notes, err)
	}
}

// TestJobsThatDoNotStart end with the status that says whose fault it is.
func TestJobsThatDoNotStart(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		sent   map[string]string
		change func(*jobRig)
		status int
		says   string
	}{
		"refused by the spec":        {map[string]string{"BUILDKITE_PLUGINS": `[{"docker#v5.13.0":{"image":"img","privileged":true}}]`}, nil, job.ExitRefused, "privileged"},
		"several things":             {map[string]string{"BUILDKITE_PLUGINS": strings.Replace(runnerPlugin, `"tty":false`, `"tty":false,"privileged":true,"volumes":["/dev/kfd:/dev/kfd"]`, 1)}, nil, job.ExitRefused, "leave it out\nvolumes: \"/dev/kfd:/dev/kfd\": "},
		"variables that are refused": {nil, func(r *jobRig) { r.inErr = &job.Refusal{Field: "BUILDKITE_ENV_FILE", Text: "send fewer"} }, job.ExitRefused, "BUILDKITE_ENV_FILE: send fewer"},
		"an image that is not":       {map[string]string{"BUILDKITE_PLUGINS": `[{"docker#v5.13.0":{"image":"missing"}}]`}, nil, bootstrap.ExitNode, "No such image"},
		"a parked slot": {nil, func(r *jobRig) {
			r.put(t, filepath.Join(filepath.Dir(r.socket), slot.ParkedDir, "x.json"), `{"reason":"its GPU is in use"}`)
		}, bootstrap.ExitNode, "its GPU is in use"},
		"a slot without limits": {nil, func(r *jobRig) { r.limit(t, "memory.max", "max") }, bootstrap.ExitNode, "does not have its limits"},
		"a slot that is gone":   {nil, func(r *jobRig) { r.socket = "/nowhere" }, bootstrap.ExitNode, "does not answer"},
		"a system's user": {map[string]string{"BUILDKITE_COMMAND": "id", "BUILDKITE_PLUGINS": `[{"docker#v5.13.0":{"image":"img","user":"70000","mount-checkout":false}}]`},
			nil, job.ExitRefused, "70000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, row.sent)
			if row.change != nil {
				row.change(r)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if e := r.wait(t, r.start(ctx)); e.status != row.status || !strings.Contains(r.log.String(), row.says) && ctx.Err() == nil {
				t.Errorf("%+v: %s", e, r.log.String())
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(r.policy.Socket), slot.WorkedName)); err != nil && name != "a slot that is gone" {
				t.Error("the agent counts as one that failed")
			}
		})
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
