package guard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/job/checkout"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestCancelBeforeStart ends a job whose image is still pulled.
func TestCancelBeforeStart(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, map[string]string{"BUILDKITE_PLUGINS": absentPlugin})
	pulls := make(chan struct{}, 1)
	r.engine.fault = func(req *http.Request) int {
		if req.URL.Path == "/images/create" {
			pulls <- struct{}{}
			<-req.Context().Done()
		}
		return 0
	}
	done := r.start(t.Context())
	<-pulls
	r.cancel()
	if e := r.wait(t, done); e.status != bootstrap.ExitNode || !strings.Contains(r.log.String(), "canceled before it started") || len(r.engine.created) != 0 {
		t.Errorf("%+v: %s", e, r.log.String())
	}
}

// TestNextJobEndsLast starts a job although one that the agent gave up still runs.
func TestNextJobEndsLast(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done, _ := r.running(ctx, t)
	cancel()
	r.wait(t, done)
	r.in.Env["BUILDKITE_JOB_ID"] = "0191"
	done = r.start(t.Context())
	must.Until(t, "the first container to be stopped", func() bool { return r.engine.asked(jobContainer+"/stop?") > 0 })
	r.engine.end()
	out := <-r.engine.attached
	_ = out.Close()
	r.expect(t, r.wait(t, done), 7, "")
}

// TestAgentLost starts no container whose agent was lost while the engine made it. The next one is clear of it.
func TestAgentLost(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	made := make(chan struct{})
	r.engine.fault = func(req *http.Request) int {
		if strings.HasSuffix(req.URL.Path, "/containers/create") {
			<-made
		}
		return 0
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := r.start(ctx)
	must.Until(t, "the container to be made", func() bool { return r.engine.asked("/containers/create?") > 0 })
	cancel()
	r.wait(t, done)
	r.ended.Wait()
	close(made)
	r.engine.add(jobContainer, r.guard(t).newName(), r.policy.Slice) // of whose making no one heard
	if why, err := r.guard(t).clearOnce(t.Context()); why != "" || err != nil {
		t.Errorf("%q, %v", why, err)
	}
	if !r.engine.requested("DELETE /v1.45/containers/"+jobContainer) || r.engine.asked("/start") > 0 {
		t.Errorf("asked %q", r.engine.requests)
	}
}

// TestCancelWhileEngineIsAway asks again.
func TestCancelWhileEngineIsAway(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.fault = func(req *http.Request) int {
		if strings.HasSuffix(req.URL.Path, "/stop") && r.engine.asked(jobContainer+"/stop?") < 3 {
			return -1
		}
		return 0
	}
	done, _ := r.running(t.Context(), t)
	r.cancel()
	must.Until(t, "the container to be stopped", func() bool { return r.engine.asked(jobContainer+"/stop?") == 3 })
	r.engine.end()
	r.expect(t, r.wait(t, done), 7, "")
}

// TestCancelOfADeafJob tells a job that does not end at SIGTERM from an engine that does not answer.
func TestCancelOfADeafJob(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		inspects bool
		status   int
		says     string
	}{
		"an engine that answers": {true, 137, "kbnode: the job was killed: it did not end within 1s after SIGTERM"},
		"an engine that hangs":   {false, bootstrap.ExitNode, "kbnode: the Docker engine does not answer, so the job may still run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil, impatient)
			var stopped atomic.Bool
			r.engine.fault = func(req *http.Request) int {
				if stop := strings.HasSuffix(req.URL.Path, jobContainer+"/stop"); stop || stopped.Load() && !row.inspects {
					stopped.Store(true)
					<-req.Context().Done()
				}
				return 0
			}
			done, out := r.running(t.Context(), t)
			r.cancel()
			e := r.wait(t, done)
			_ = out.Close()
			r.expect(t, e, row.status, row.says)
		})
	}
}

// TestCancelWhileUploading lets the upload end, and dies of the signal.
func TestCancelWhileUploading(t *testing.T) {
	r := newJobRig(t, nil)
	script := "#!/bin/sh\n: >" + r.notes + "\nuntil [ -e " + r.notes + ".go ]; do /bin/sleep 0.05; done\necho uploaded\n"
	must.Program(t, r.agent, script)
	done := r.start(t.Context())
	out := <-r.engine.attached
	r.engine.end()
	_ = out.Close()
	must.Until(t, "the upload", func() bool { _, err := os.Stat(r.notes); return err == nil })
	err := syscall.Kill(os.Getpid(), syscall.SIGTERM)
	time.Sleep(200 * time.Millisecond) // the signal arrives
	must.Do(t, errors.Join(err, os.WriteFile(r.notes+".go", nil, 0o600)))
	if e := r.wait(t, done); e.by != syscall.SIGTERM || !strings.Contains(r.log.String(), "uploaded\n") {
		t.Errorf("%+v: %s", e, r.log.String())
	}
}

// asRoot is a rig of root's, whose agent has no job.
func asRoot(r *rig) {
	r.root = os.Getuid()
	if err := os.RemoveAll(filepath.Join(r.cgroup, "buildkite-agent-gpu0.service")); err != nil {
		panic(err)
	}
}

func rootSpec(id string) *job.Spec {
	return &job.Spec{
		Kind: job.KindPlugin, JobID: id, Image: "img", Pull: job.PullMissing, Profile: "compatible", Network: job.NetworkBridge, Mounts: []job.Mount{{Source: ".", Target: "/work"}},
		Checkout: job.Checkout{Mode: job.CheckoutNone},
	}
}

// TestRootRuns an image that jobs may not use, without an agent. The slot's user may not.
func TestRootRuns(t *testing.T) {
	t.Parallel()
	r := ready(t, asRoot, func(r *rig) { r.policy.Images = []string{"^other$"} })
	if o := r.try(t); why(o) != "" || o.ExitCode != 7 || r.engine.created[0].Image != "sha256:"+strings.Repeat("1", 64) {
		t.Errorf("%+v", o)
	}
	r = ready(t, func(r *rig) { r.policy.Images = []string{"^other$"} })
	if o := r.try(t); !strings.Contains(o.Refused, `image "img" is not among`) {
		t.Errorf("%+v", o)
	}
}

// TestRootIsCanceled cancels root's job when who asked for it has no more time.
func TestRootIsCanceled(t *testing.T) {
	t.Parallel()
	r := newRig(t, asRoot)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if o, err := bootstrap.RunSpec(ctx, r.socket, rootSpec("x"), func(slot.FrameKind, []byte) { cancel() }); err != nil || !o.Canceled {
			t.Errorf("%+v, %v", o, err)
		}
	}()
	out := <-r.engine.attached
	must.Until(t, "the container to be stopped", func() bool { return r.engine.asked(jobContainer+"/stop?") > 0 })
	r.engine.end()
	_ = out.Close()
	<-done
}

// TestRootHasItsTime: job.time_limit is for jobs.
func TestRootHasItsTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, asRoot, func(r *rig) { r.policy.TimeLimitSeconds = 1 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		if o, err := bootstrap.RunSpec(t.Context(), r.socket, rootSpec("x"), func(slot.FrameKind, []byte) {}); err != nil || o.Canceled || o.ExitCode != 7 {
			t.Errorf("%+v, %v", o, err)
		}
	}()
	out := <-r.engine.attached
	time.Sleep(1200 * time.Millisecond) // more than the limit
	r.engine.end()
	_ = out.Close()
	<-done
}

// TestRootIsClearedAway: root's job whose container someone removes, as the cleaner does for an agent
// that starts, counts as canceled.
func TestRootIsClearedAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, asRoot)
	o, err := bootstrap.RunSpec(t.Context(), r.socket, rootSpec("x"), func(kind slot.FrameKind, _ []byte) {
		if kind != slot.FrameStdout {
			return
		}
		r.engine.mu.Lock()
		clear(r.engine.containers)
		r.engine.mu.Unlock()
		r.engine.end()
		_ = (<-r.engine.attached).Close()
	})
	if err != nil || !o.Canceled || !strings.Contains(o.NodeFault, "was removed") {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestRootGivesWay: a job ends root's, and root's ends none.
func TestRootGivesWay(t *testing.T) {
	t.Parallel()
	t.Run("root's job", func(t *testing.T) {
		t.Parallel()
		r := newJobRig(t, nil, asRoot)
		first, runs := make(chan slot.Outcome), make(chan struct{}, 9)
		go func() {
			o, err := bootstrap.RunSpec(t.Context(), r.socket, rootSpec("x"), func(slot.FrameKind, []byte) { runs <- struct{}{} })
			must.Do(t, err)
			first <- o
		}()
		out := <-r.engine.attached
		<-runs
		r.change(func(r *rig) { r.root = -1 })
		done := r.start(t.Context())
		must.Until(t, "root's job to be stopped", func() bool { return r.engine.asked(jobContainer+"/stop?") > 0 })
		r.engine.end()
		_ = out.Close()
		if o := <-first; !o.Canceled {
			t.Errorf("root's job: %+v", o)
		}
		_ = (<-r.engine.attached).Close()
		r.expect(t, r.wait(t, done), 7, "")
	})
	t.Run("a job", func(t *testing.T) {
		t.Parallel()
		r := newJobRig(t, nil, func(r *rig) {
			r.put(t, filepath.Join(r.cgroup, "buildkite-agent-gpu0.service", "cgroup.procs"), "1")
		})
		done, out := r.running(t.Context(), t)
		r.change(func(r *rig) { r.root = os.Getuid() })
		if o := r.try(t); !o.Canceled || o.NodeFault != errBusy.Error() {
			t.Errorf("root's: %+v", o)
		}
		r.engine.end()
		_ = out.Close()
		r.expect(t, r.wait(t, done), 7, "")
	})
}

// TestKilledProcess: a job whose process is killed is the node's fault, and its container is gone when the slot is clear.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newJobRig(t, nil)
	r.socket = filepath.Join(dir, "gpu0", "job.sock")
	must.Do(t, os.MkdirAll(filepath.Join(dir, "gpu0"), 0o700))
	l, err := net.Listen("unix", r.socket)
	must.Do(t, err)
	defer hangUp(l)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _, _ = slot.ReadRequest(conn, job.MaxSpec)
		_ = slot.NewFrames(conn).Taken()
		hangUp(conn) // the kernel does so for a process that ends
	}()
	r.expect(t, r.wait(t, r.start(t.Context())), bootstrap.ExitNode, "the slot's process has ended before its job")
	r.engine.add(jobContainer, r.guard(t).newName(), r.policy.Slice)
	if why, err := r.guard(t).clearOnce(t.Context()); why != "" || err != nil || len(r.engine.containers) > 0 {
		t.Errorf("%q, %v, left %v", why, err, r.engine.containers)
	}
}

// TestStopped ends a job of root's whose process systemd stops. One of the agent's goes on: the agent ends it.
func TestStopped(t *testing.T) {
	t.Parallel()
	for name, uid := range map[string]int{"root": os.Getuid(), "the agent": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil, func(r *rig) { r.root = uid })
			if uid != -1 {
				r.put(t, filepath.Join(r.cgroup, "buildkite-agent-gpu0.service", "cgroup.procs"), "1") // the agent has no job
			}
			done, out := r.running(t.Context(), t)
			must.Do(t, os.WriteFile(filepath.Join(r.checkout(t), "result.json"), []byte("{}"), 0o600))
			r.mu.Lock()
			r.kills[0]()
			r.mu.Unlock()
			if uid != -1 {
				must.Until(t, "the container to be stopped", func() bool { return r.engine.asked(jobContainer+"/stop?") > 0 })
			} else {
				time.Sleep(100 * time.Millisecond)
			}
			r.engine.end()
			_ = out.Close()
			r.expect(t, r.wait(t, done), 7, "uploaded")
			if uid == -1 && r.engine.asked(jobContainer+"/stop?") > 0 {
				t.Error("the container was stopped")
			}
		})
	}
}

// TestCheckoutFaults says what a node does not check out, and whose fault it is.
func TestCheckoutFaults(t *testing.T) {
	t.Parallel()
	there := func(dir string) func() (checkout.Mirrors, error) {
		return func() (checkout.Mirrors, error) { return checkout.Mirrors{Dir: dir}, nil }
	}
	for name, row := range map[string]struct {
		allowed []string
		mirrors func() (checkout.Mirrors, error)
		status  int
		says    string
	}{
		"not allowed":        {[]string{`^https://github\.com/other/.*$`}, nil, job.ExitRefused, "add it to agent.allowed_repositories"},
		"nothing allowed":    {nil, nil, job.ExitRefused, "add it to agent.allowed_repositories"},
		"no user for git":    {[]string{".*"}, func() (checkout.Mirrors, error) { return userMirrors("kbnode-no-such-user") }, bootstrap.ExitNode, "look up user kbnode-no-such-user"},
		"root as git's user": {[]string{".*"}, func() (checkout.Mirrors, error) { return userMirrors("root") }, bootstrap.ExitNode, "user root is root"},
		"no mirrors":         {[]string{".*"}, there(filepath.Join(t.TempDir(), "none")), bootstrap.ExitNode, "run kbnode reconcile"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, map[string]string{"BUILDKITE_COMMAND": "true"}, func(r *rig) {
				r.policy.Repositories = row.allowed
				r.adjust = func(g *guard) { g.mirrors = row.mirrors }
			})
			r.in.Repositories = []string{".*"}
			if e := r.wait(t, r.start(t.Context())); e.status != row.status || !strings.Contains(r.log.String(), row.says) || len(r.engine.created) != 0 {
				t.Errorf("%+v: %s", e, r.log.String())
			}
		})
	}
	for _, err := range []error{&checkout.RefusedError{Reason: "x"}, errors.Join(errors.New("y"), &checkout.RefusedError{Reason: "x"})} {
		if out := notStarted(err); out.Refused != "x" || out.NodeFault != "" {
			t.Errorf("%v: %+v", err, out)
		}
	}
	if uid, _, err := slot.LookupUser(plan.GitUser); err == nil {
		if m, err := nodeMirrors(); err != nil || m.UID != uid || m.Dir != plan.MirrorsDir {
			t.Errorf("%+v, %v", m, err)
		}
	}
}
