package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// rig is a slot in front of a fake engine, with files instead of /proc and cgroups. Each connection to its socket gets a
// guard of its own, as from systemd.
type rig struct {
	engine  *fakeEngine
	policy  plan.JobPolicy
	noted   string // lines of the last job's log
	proc    string
	cgroup  string // directory of the slice
	socket  string
	network *fakeNetwork
	adjust  func(*guard)
	root    int            // user ID
	jobs    int            // that were tried
	ended   sync.WaitGroup // connections that were answered

	mu    sync.Mutex
	kills []func() // end the process of each connection, as SIGTERM does
}

func newRig(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{engine: newFakeEngine(t), policy: testPolicy(), root: -1, adjust: func(*guard) {}}
	r.policy.DockerSocket = r.engine.socket
	r.policy.WorkRoot = filepath.Join(dir, "work")
	r.policy.Socket = filepath.Join(dir, "run", "gpu0", "job.sock")
	r.socket = r.policy.Socket
	r.proc = filepath.Join(dir, "proc")
	r.cgroup = filepath.Join(dir, "cgroup", "buildkite.slice", "buildkite-gpu0.slice")
	r.put(t, filepath.Join(r.proc, "sys/kernel/osrelease"), "6.12.0\n")
	r.put(t, filepath.Join(r.policy.WorkRoot, "checkout"), "of an earlier job")
	r.put(t, filepath.Join(r.cgroup, "buildkite-agent-gpu0.service", "cgroup.procs"), "1\n2") // it has a job
	r.limit(t, "cpuset.cpus.effective", r.policy.CPUs)
	r.limit(t, "cpuset.mems.effective", r.policy.MemoryNodes)
	r.limit(t, "memory.max", "34359738368")
	r.limit(t, "memory.swap.max", "0")
	must.Do(t, os.MkdirAll(filepath.Dir(r.socket), 0o700))
	r.network = &fakeNetwork{}
	for _, f := range change {
		f(r)
	}
	r.serve(t)
	return r
}

// guard returns a process of the slot.
func (r *rig) guard(t testing.TB) *guard {
	t.Helper()
	engine, err := docker.New(r.engine.socket)
	must.Do(t, err)
	t.Cleanup(func() { hangUp(engine) })
	g := newGuard(r.policy, os.Getuid(), os.Getgid(), filepath.Dir(filepath.Dir(r.cgroup)), engine, slog.New(slog.DiscardHandler))
	r.mu.Lock()
	root, adjust := r.root, r.adjust
	r.mu.Unlock()
	g.root, g.network = root, r.network.slot()
	g.procs.proc, g.gpu, g.noise.Samples = r.proc, nil, nil
	g.token = func() (string, error) { return "secret-token", nil }
	g.signal = func(*os.File, holder, syscall.Signal) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, kill := range r.kills[:len(r.kills)-1] { // who waits is the last
			kill()
		}
	}
	adjust(g)
	return g
}

// change changes what the slot's next processes get.
func (r *rig) change(change func(*rig)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

// serve answers connections, each for itself.
func (r *rig) serve(t testing.TB) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket, Net: "unix"})
	must.Do(t, err)
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			g := r.guard(t)
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			r.mu.Lock()
			r.kills = append(r.kills, cancel)
			r.mu.Unlock()
			r.ended.Go(func() {
				defer hangUp(conn)
				defer cancel()
				_ = g.answer(ctx, conn) // the client may be gone
			})
		}
	}()
	t.Cleanup(func() {
		hangUp(l)
		r.mu.Lock()
		for _, kill := range r.kills {
			kill()
		}
		r.mu.Unlock()
		r.ended.Wait()
	})
}

func (r *rig) put(t testing.TB, file, text string) {
	t.Helper()
	must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text+"\n"), 0o600)))
}

func (r *rig) limit(t testing.TB, file, value string) {
	t.Helper()
	r.put(t, filepath.Join(r.cgroup, file), value)
}

// ask sends one request and returns the outcome.
func (r *rig) ask(t testing.TB, kind byte, body string) slot.Outcome {
	t.Helper()
	conn, err := net.Dial("unix", r.socket)
	must.Do(t, err)
	defer hangUp(conn)
	_ = slot.WriteRequest(conn, kind, []byte(body)) // one that is too long may be answered before
	o, err := slot.ReadFrames(conn, func(slot.FrameKind, []byte) {})
	must.Do(t, err)
	return o
}

// ready is a rig whose jobs begin, and whose containers end at once.
func ready(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	r := newRig(t, change...)
	close(r.engine.exit)
	go func() {
		for {
			select {
			case s := <-r.engine.attached:
				_ = s.Close()
			case <-t.Context().Done():
				return
			}
		}
	}()
	return r
}

// try runs a job to its end.
func (r *rig) try(t testing.TB, change ...func(*job.Spec)) slot.Outcome {
	t.Helper()
	r.jobs++
	spec := rootSpec(fmt.Sprintf("job-%d", r.jobs))
	for _, f := range change {
		f(spec)
	}
	r.noted = ""
	o, err := bootstrap.RunSpec(t.Context(), r.socket, spec, func(kind slot.FrameKind, text []byte) {
		if kind == slot.FrameNote {
			r.noted += string(text)
		}
	})
	must.Do(t, err)
	return o
}

// why is why a job did not run; "" if it did.
func why(o slot.Outcome) string { return o.Refused + o.NodeFault }

// TestRequests that the slot does not know, or that are not for it.
func TestRequests(t *testing.T) {
	t.Parallel()
	r := ready(t)
	for _, row := range []struct {
		kind byte
		body string
		says string
	}{
		{slot.RequestRun, "{}", "another version"},
		{slot.RequestRun, "no JSON", "another version"},
		{slot.RequestRun, strings.Repeat("x", job.MaxSpec+1), "spec:"},
		{slot.RequestCheck, "", ""},
		{'x', "", "knows no request 'x'"},
	} {
		if o := r.ask(t, row.kind, row.body); !strings.Contains(why(o), row.says) || (why(o) == "") != (row.says == "") {
			t.Errorf("%c %.20s: %+v", row.kind, row.body, o)
		}
	}
	if len(r.engine.created) != 0 {
		t.Errorf("the engine made %+v", r.engine.created)
	}
}

func TestNoContainerWithoutLimits(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		spoil func(*testing.T, *rig)
		want  string
	}{
		"other CPUs":          {func(t *testing.T, r *rig) { r.limit(t, "cpuset.cpus.effective", "0-15") }, `cpuset.cpus.effective of buildkite-gpu0.slice is "0-15", planned is "2-3,10-11"`},
		"other memory":        {func(t *testing.T, r *rig) { r.limit(t, "cpuset.mems.effective", "0-1") }, "cpuset.mems.effective"},
		"no memory limit":     {func(t *testing.T, r *rig) { r.limit(t, "memory.max", "max") }, "memory.max of buildkite-gpu0.slice is max"},
		"swap":                {func(t *testing.T, r *rig) { r.limit(t, "memory.swap.max", "max") }, "memory.swap.max"},
		"no slice":            {func(t *testing.T, r *rig) { must.Do(t, os.RemoveAll(r.cgroup)) }, "no such file"},
		"the cgroupfs driver": {func(_ *testing.T, r *rig) { r.engine.driver = "cgroupfs" }, `cgroup driver "cgroupfs"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ready(t)
			row.spoil(t, r)
			if o := r.ask(t, slot.RequestCheck, ""); !strings.Contains(o.NodeFault, row.want) {
				t.Errorf("%+v, want %q", o, row.want)
			}
			if o := r.try(t); !strings.Contains(o.NodeFault, row.want) {
				t.Errorf("%+v, want %q", o, row.want)
			}
			must.Equal(t, 0, len(r.engine.created))
		})
	}
}

func TestStartEndsTogether(t *testing.T) {
	t.Parallel()
	r := ready(t)
	// A container that has already ended has no cgroup.
	if o := r.try(t); why(o) != "" {
		t.Fatalf("%+v", o)
	}
	file := filepath.Join(r.cgroup, fmt.Sprintf("docker-%064x.scope", 0xa2), "memory.oom.group")
	r.put(t, file, "0")
	if o := r.try(t); why(o) != "" {
		t.Fatalf("%+v", o)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "1\n" {
		t.Errorf("memory.oom.group is %q, %v", got, err)
	}
}

func TestBadPolicy(t *testing.T) {
	t.Parallel()
	_, err := open(plan.JobPolicy{Name: "gpu0", Slice: "a/b.slice", WorkRoot: "/"}, slog.New(slog.DiscardHandler))
	for _, want := range []string{"no slice", "no cpus", "no memory_bytes", "no pids_limit", "no work_root", "no socket"} {
		must.Err(t, err, want)
	}
}

// TestCreateWithoutTheEnginesCPUs: an engine started while the slots' CPUs are a partition knows
// only the others.
func TestCreateWithoutTheEnginesCPUs(t *testing.T) {
	t.Parallel()
	r := ready(t)
	r.engine.online = "0,5"
	if o := r.try(t); why(o) != "" {
		t.Fatalf("%+v", o)
	}
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	if h := r.engine.created[0].HostConfig; h.CpusetCpus != "" || h.CpusetMems != "" || h.CgroupParent != r.policy.Slice {
		t.Errorf("CPUs %q, memory nodes %q, slice %q", h.CpusetCpus, h.CpusetMems, h.CgroupParent)
	}
}
