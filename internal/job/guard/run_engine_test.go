package guard

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestLostPlace says so where the engine's log does not have all output any more.
func TestLostPlace(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]string{"the log began another file": {"container.log", "container.log.1.gz"}, "the log is elsewhere": {"x"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil)
			r.engine.logs = func(write func(string)) { write("late\n"); <-r.engine.exit }
			done, out := r.running(t.Context(), t)
			must.Do(t, r.engine.logFiles(jobContainer, files...))
			_ = out.Close()
			must.Until(t, "the log to go on", func() bool {
				return strings.Contains(r.log.String(), "lost its place") && strings.Contains(r.log.String(), "late\n")
			})
			r.engine.end()
			r.wait(t, done)
		})
	}
}

// impatient does not wait long for the engine, or for a canceled job.
func impatient(r *rig) {
	r.adjust = func(g *guard) { g.engineTime, g.stopGrace = time.Second, time.Second }
}

// jobContainer is the first container that the engine makes.
var jobContainer = strings.Repeat("0", 62) + "a1"

// TestEndedByEngine tells a job's own end from one by the engine, whatever its exit status.
func TestEndedByEngine(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*fakeEngine)
		status int
	}{
		"by itself":                  {func(*fakeEngine) {}, 7},
		"an engine that stops":       {func(e *fakeEngine) { e.stops = true }, bootstrap.ExitNode},
		"an engine that was stopped": {func(e *fakeEngine) { e.forgets = true }, bootstrap.ExitNode},
		"by itself, with live-restore, while the engine is away": {func(e *fakeEngine) { e.forgets = true; e.restores.Store(true) }, 7},
		"an engine with live-restore that stops it":              {func(e *fakeEngine) { e.stops = true; e.restores.Store(true) }, bootstrap.ExitNode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil)
			row.change(r.engine)
			if e := r.finish(t, r.start(t.Context())); e.status != row.status || strings.Contains(r.log.String(), "the Docker engine was restarted") != (row.status != 7) {
				t.Errorf("%+v: %s", e, r.log.String())
			}
		})
	}
}

// TestLiveRestoreSince: who restarts the engine to set live-restore ends the job.
func TestLiveRestoreSince(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		r := newJobRig(t, nil)
		r.engine.forgets = true
		r.engine.restores.Store(before)
		done, out := r.running(t.Context(), t)
		r.engine.restores.Store(!before)
		r.engine.end()
		_ = out.Close()
		r.expect(t, r.wait(t, done), bootstrap.ExitNode, "the Docker engine was restarted")
	}
}

// TestEndUnknown says so where no one knows how a container ended, as when the process above it was killed while the
// engine was away.
func TestEndUnknown(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.forgets, r.engine.status = true, exitUnknown
	r.engine.restores.Store(true)
	r.expect(t, r.finish(t, r.start(t.Context())), bootstrap.ExitNode, "does not know how the job ended")
}

// TestOutOfMemory says so although the engine missed it: it loses the kernel's word if the container ends at once.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for kills, want := range map[string]bool{"0": false, "1": true} {
		r := newJobRig(t, nil)
		r.engine.status = exitKilled
		events := func(kills string) { r.limit(t, "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill "+kills) }
		r.limit(t, "cpu.stat", "usage_usec 1\nuser_usec 1\nsystem_usec 0")
		r.limit(t, "memory.stat", "anon 4096\nfile 8192")
		events("0")
		done, out := r.running(t.Context(), t)
		time.Sleep(300 * time.Millisecond) // the first reading
		events(kills)
		r.engine.end()
		_ = out.Close()
		r.expect(t, r.wait(t, done), exitKilled, "")
		if got := strings.Contains(r.log.String(), "used more memory than its slot has"); got != want {
			t.Errorf("%s processes killed: %s", kills, r.log.String())
		}
	}
}

// TestKilledShim tells a container that the engine ended because the process above it was killed from one that ended
// first.
func TestKilledShim(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"the container": true, "the shim": false, "a program of that name": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			forged := strings.HasPrefix(name, "a program")
			process := func() *exec.Cmd {
				p := exec.CommandContext(t.Context(), "sleep", "600")
				must.Do(t, p.Start())
				return p
			}
			shim, program := process(), process()
			scope := filepath.Join(r.cgroup, "docker-"+jobContainer+".scope")
			r.put(t, filepath.Join(scope, "cgroup.procs"), fmt.Sprint(program.Process.Pid))
			r.put(t, filepath.Join(r.proc, fmt.Sprint(program.Process.Pid), "status"), fmt.Sprintf("Name:\tx\nPPid:\t%d\n", shim.Process.Pid))
			r.put(t, filepath.Join(r.proc, fmt.Sprint(shim.Process.Pid), "comm"), "containerd-shim")
			if forged {
				r.put(t, filepath.Join(r.proc, fmt.Sprint(shim.Process.Pid), "cgroup"), "0::/buildkite.slice/buildkite-gpu0.slice/docker-"+jobContainer+".scope")
			}
			g := r.guard(t)
			orphaned := g.procs.watchShim(jobContainer)
			before, after := shim, program
			if first && !forged {
				before, after = program, shim
			}
			must.Do(t, before.Process.Kill())
			_ = before.Wait()
			if first {
				time.Sleep(100 * time.Millisecond)
			} else {
				must.Until(t, "the shim's end", orphaned)
			}
			must.Do(t, after.Process.Kill())
			_ = after.Wait()
			r.engine.add(jobContainer, g.newName(), r.policy.Slice)
			r.engine.status = exitKilled
			r.engine.end()
			o := g.awaitOrCancel(t.Context(), &jobRun{spec: rootSpec("x")}, &running{id: jobContainer, orphaned: orphaned})
			if got := strings.Contains(o.NodeFault, "containerd-shim, was killed"); got == first || first && o.ExitCode != exitKilled {
				t.Errorf("%+v", o)
			}
		})
	}
}

// TestTimeLimit ends a job as a cancellation does, and its log says why. The clock also runs while its
// image is pulled.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		plugins string
		limit   int64
		code    int
		status  int
		says    string
	}{
		"runs":                 {runnerPlugin, 1, 7, 7, "1s"},
		"runs and ends with 0": {runnerPlugin, 1, 0, 143, "1s"},
		"starts":               {absentPlugin, 1, 7, bootstrap.ExitNode, "1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, map[string]string{"BUILDKITE_PLUGINS": row.plugins}, func(r *rig) { r.policy.TimeLimitSeconds = row.limit })
			r.engine.fault = func(req *http.Request) int {
				if req.URL.Path == "/images/create" {
					<-req.Context().Done()
				}
				return 0
			}
			r.engine.status = row.code
			done := r.start(t.Context())
			if row.plugins == runnerPlugin {
				out := <-r.engine.attached
				must.Until(t, "the container to be stopped", func() bool { return r.engine.asked(jobContainer+"/stop?") > 0 })
				r.engine.end()
				_ = out.Close()
			}
			r.expect(t, r.wait(t, done), row.status, "kbnode: the job was terminated: it ran longer than the "+row.says+" that job.time_limit allows")
		})
	}
}

// TestHungEngine ends jobs as the node's fault at whatever the engine does not answer.
func TestHungEngine(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"GET /images/docker.io/library/img:latest/json", "GET /info", "POST /containers/create", "POST /attach", "GET a1/json", "POST /start"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil, impatient)
			method, suffix, _ := strings.Cut(path, " ")
			r.engine.fault = func(req *http.Request) int {
				if req.Method == method && strings.HasSuffix(req.URL.Path, suffix) {
					<-req.Context().Done()
				}
				return 0
			}
			r.expect(t, r.wait(t, r.start(t.Context())), bootstrap.ExitNode, "does not answer within")
		})
	}
}

// TestCancelHungEngine answers a cancellation although the engine does not.
func TestCancelHungEngine(t *testing.T) {
	t.Parallel()
	for _, hangs := range []string{"all", "/start"} {
		t.Run(hangs, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil, func(r *rig) {
				if hangs == "all" {
					impatient(r)
				}
			})
			stopped := make(chan struct{})
			r.engine.fault = func(req *http.Request) int {
				if hung := hangs == "all" && isClosed(stopped) || strings.HasSuffix(req.URL.Path, hangs); hung {
					<-req.Context().Done()
				}
				return 0
			}
			done := r.start(t.Context())
			<-r.engine.attached
			if hangs == "all" {
				must.Until(t, "the first line", func() bool { return strings.Contains(r.log.String(), "hello\n") })
			} else {
				must.Until(t, "the start", func() bool { return r.engine.requested("POST /v1.45/containers/" + jobContainer + hangs) })
			}
			close(stopped)
			r.cancel()
			r.expect(t, r.wait(t, done), bootstrap.ExitNode, "")
		})
	}
}

// TestLiveRestore goes on with a job whose engine was away.
func TestLiveRestore(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	var waits atomic.Int32
	r.engine.fault = func(req *http.Request) int {
		wait := strings.HasSuffix(req.URL.Path, "/wait")
		if wait && waits.Add(1) == 1 || waits.Load() == 1 && strings.HasSuffix(req.URL.Path, jobContainer+"/json") {
			return -1
		}
		return 0
	}
	done := r.start(t.Context())
	out := <-r.engine.attached
	must.Until(t, "the engine to be back", func() bool { return waits.Load() > 1 })
	r.engine.end()
	_ = out.Close()
	r.expect(t, r.wait(t, done), 7, "")
}
