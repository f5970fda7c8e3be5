package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/bootstrap"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// rig is a guard in front of a fake engine, with files instead of /proc and cgroups.
type rig struct {
	engine  *fakeEngine
	policy  plan.JobPolicy
	noted   string // lines of the last job's log
	proc    string
	cgroup  string // directory of the slice
	socket  string
	network *fakeNetwork
	adjust  func(*guard)
	guard   *guard // the one that serves
	root    int    // user ID
	jobs    int    // that were tried
	stop    context.CancelFunc
	done    chan error
	client  *http.Client
}

func newRig(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{engine: newFakeEngine(t), policy: testPolicy(), done: make(chan error, 1), root: -1, adjust: func(*guard) {}}
	r.policy.DockerSocket = r.engine.socket
	r.policy.WorkRoot = filepath.Join(dir, "work")
	r.policy.Socket = filepath.Join(dir, "run", "gpu0", "docker.sock")
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
	r.client = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", r.socket) }}}
	r.network = &fakeNetwork{}
	for _, f := range change {
		f(r)
	}
	r.serve(t)
	return r
}

// serve starts a guard and waits until it answers.
func (r *rig) serve(t testing.TB) {
	t.Helper()
	engine, err := docker.New(r.engine.socket)
	must.Do(t, err)
	t.Cleanup(func() { hangUp(engine) })
	g := newGuard(r.policy, os.Getuid(), os.Getgid(), filepath.Dir(filepath.Dir(r.cgroup)), engine, slog.New(slog.DiscardHandler))
	g.root, g.network = r.root, r.network.slot()
	g.cleaner.procs.proc, g.cleaner.gpu, g.cleaner.noise.config.Samples = r.proc, nil, nil
	r.adjust(g)
	r.guard = g
	l, err := listen(r.socket, g.uid, g.gid)
	must.Do(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.done <- g.serveOn(ctx, l) }()
	t.Cleanup(cancel)
	for deadline := time.Now().Add(must.Patience); r.policy.Network != "none" && !r.network.asked() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

func (r *rig) put(t testing.TB, file, text string) {
	t.Helper()
	must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text+"\n"), 0o600)))
}

func (r *rig) limit(t testing.TB, file, value string) {
	t.Helper()
	r.put(t, filepath.Join(r.cgroup, file), value)
}

// ask sends one request and returns the status and the message of an error.
func (r *rig) ask(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://slot"+path, strings.NewReader(body))
	must.Do(t, err)
	resp, err := r.client.Do(req)
	must.Do(t, err)
	defer hangUp(resp.Body)
	var says struct{ Message string }
	_ = json.NewDecoder(resp.Body).Decode(&says) // none without an error
	return resp.StatusCode, says.Message
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

// TestRequests that the service does not know, or that are not for it.
func TestRequests(t *testing.T) {
	t.Parallel()
	r := ready(t)
	for _, row := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", slot.RunPath, "{}", 503, "another version"},
		{"POST", slot.RunPath, "no JSON", 503, "another version"},
		{"POST", slot.RunPath, strings.Repeat("x", job.MaxSpec+1), 403, "spec:"},
		{"POST", slot.RunPath + "?stdout=-1", "{}", 503, "another version"},
		{"POST", slot.CancelPath + "?job=0190", "", 404, "does not run job 0190"},
		{"POST", slot.CancelPath, "", 404, "does not run job"},
		{"GET", slot.RunPath, "", 404, "does not know GET"},
		{"POST", "/v1.45/containers/create", `{"Image":"img","HostConfig":{"Privileged":true}}`, 404, "does not know POST"},
		{"GET", slot.CheckPath, "", 204, ""},
		{"POST", slot.CheckPath, "", 404, "does not know POST"},
		{"GET", "/_ping", "", 404, "does not know GET"},
		{"GET", "/info", "", 404, "does not know GET"},
		{"POST", "/kbnode/end", "", 404, "does not know POST"},
	} {
		if status, says := r.ask(t, row.method, row.path, row.body); status != row.status || !strings.Contains(says, row.says) {
			t.Errorf("%s %s: %d %s", row.method, row.path, status, says)
		}
	}
	spec, err := rootSpec("0190").Marshal()
	must.Do(t, err)
	if status, says := r.ask(t, "POST", slot.RunPath+"?stdout=-1", string(spec)); status != 400 || !strings.Contains(says, "stdout") {
		t.Errorf("a count that is none: %d %s", status, says)
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
			if status, says := r.ask(t, "GET", slot.CheckPath, ""); status != 503 || !strings.Contains(says, row.want) {
				t.Errorf("%d %s, want %q", status, says, row.want)
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

func TestServeRefusesPolicy(t *testing.T) {
	t.Parallel()
	err := Serve(t.Context(), plan.JobPolicy{Name: "gpu0", Slice: "a/b.slice", WorkRoot: "/"}, slog.New(slog.DiscardHandler))
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
