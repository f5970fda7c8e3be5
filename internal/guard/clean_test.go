package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// slotRig is a cleaner with files instead of /proc and cgroups, and with simulated containers
// and a simulated GPU. Nothing in it runs.
type slotRig struct {
	*cleaner
	t        *testing.T
	procMu   sync.Mutex
	cgroups  map[int]string // of processes, relative to the cgroup root
	immortal int            // a process that no signal ends
	killed   []int
	removed  int
	asked    []string // what was cleaned, in order
	gpu      inventory.Occupancy
	gpuErr   error
	checks   int
	broken   error     // what the engine answers
	until    time.Time // if set, the engine and the GPU work again from then on
}

const (
	agentCgroup  = "buildkite.slice/buildkite-gpu0.slice/buildkite-agent-gpu0.service"
	jobCgroup    = "buildkite.slice/buildkite-gpu0.slice/docker-aa.scope"
	otherCgroup  = "system.slice/ssh.service"
	agentPID     = 100
	bootstrapPID = 101 // the agent's process for a job
)

func newSlotRig(t *testing.T) *slotRig {
	t.Helper()
	r := &slotRig{t: t, cgroups: map[int]string{}, gpu: inventory.Occupancy{Driver: "580.1", UsedBytes: 4 << 20}}
	dir := t.TempDir()
	policy := testPolicy()
	policy.Socket = filepath.Join(dir, "run/docker.sock")
	procs := newSlotProcs(filepath.Join(dir, "cgroup"), policy)
	procs.proc = filepath.Join(dir, "proc")
	procs.kill = r.kill
	log := slog.New(slog.DiscardHandler)
	watch := newGPUWatches(policy, procs, log)[0]
	watch.read = func(context.Context) (inventory.Occupancy, error) {
		r.checks++
		if !r.until.IsZero() && time.Now().After(r.until) {
			r.gpu.Compute = nil
		}
		return r.gpu, r.gpuErr
	}
	r.cleaner = &cleaner{
		runDir: filepath.Dir(policy.Socket), procs: procs, gpu: gpuWatches{watch}, log: log,
		containers: func(context.Context) (int, error) {
			r.asked = append(r.asked, "containers")
			n := r.removed
			r.removed = 0
			if !r.until.IsZero() && time.Now().After(r.until) {
				r.broken = nil
			}
			return n, r.broken
		},
		tidy: func(context.Context) error { r.asked = append(r.asked, "checkouts"); return nil },
	}
	for _, cgroup := range []string{agentCgroup, jobCgroup} {
		for _, f := range []string{"cgroup.kill", "cgroup.procs"} {
			r.put(filepath.Join(procs.root, cgroup, f), "")
		}
	}
	r.put(filepath.Join(r.runDir, "socket"), "")
	r.start(agentPID, agentCgroup)
	r.start(bootstrapPID, agentCgroup)
	return r
}

func (r *slotRig) put(name, text string) {
	r.t.Helper()
	must.Write(r.t, "", name, text)
}

// start creates a process.
func (r *slotRig) start(pid int, cgroup string) {
	r.t.Helper()
	dir := filepath.Join(r.procs.proc, strconv.Itoa(pid))
	r.put(dir+"/cgroup", "0::/"+cgroup+"\n")
	r.put(dir+"/comm", "p"+strconv.Itoa(pid)+"\n")
	r.procMu.Lock()
	r.cgroups[pid] = cgroup
	r.procMu.Unlock()
	r.list(cgroup)
}

func (r *slotRig) list(cgroup string) {
	r.t.Helper()
	pids := r.in(cgroup)
	r.put(filepath.Join(r.procs.root, cgroup, "cgroup.procs"), strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", "\n"), "[]"))
}

// in returns the processes of a cgroup.
func (r *slotRig) in(cgroup string) (pids []int) {
	r.procMu.Lock()
	defer r.procMu.Unlock()
	for pid, own := range r.cgroups {
		if own == cgroup {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// kill does what the kernel does for cgroup.kill.
func (r *slotRig) kill(dir string) error {
	for _, pid := range r.in(strings.TrimPrefix(dir, r.procs.root+"/")) {
		r.killed = append(r.killed, pid)
		if pid != r.immortal {
			r.exit(pid)
		}
	}
	return killCgroup(dir)
}

// exit ends a process.
func (r *slotRig) exit(pid int) {
	r.t.Helper()
	r.procMu.Lock()
	cgroup := r.cgroups[pid]
	delete(r.cgroups, pid)
	r.procMu.Unlock()
	r.list(cgroup)
	must.Do(r.t, os.RemoveAll(filepath.Join(r.procs.proc, strconv.Itoa(pid))))
}

// agentStarts simulates a new agent, which asks as root before it becomes the agent.
func (r *slotRig) agentStarts(pid int) string {
	r.t.Helper()
	for _, old := range r.in(agentCgroup) {
		r.exit(old) // systemd ended the unit
	}
	r.start(pid, agentCgroup)
	why, err := r.ready(r.t.Context(), pid)
	must.Do(r.t, err)
	return why
}

// ended does what follows a job when the agent has no process for it any more.
func (r *slotRig) ended(ctx context.Context, _ int) (string, error) {
	if r.cgroups[bootstrapPID] != "" {
		r.exit(bootstrapPID)
		defer r.start(bootstrapPID, agentCgroup)
	}
	r.running = true
	if _, err := r.afterJob(ctx); err != nil {
		return "", err
	}
	return r.parked()
}

// want calls a stage and checks that its answer contains piece; "" is clean.
func (r *slotRig) want(stage func(context.Context, int) (string, error), piece string) {
	r.t.Helper()
	why, err := stage(r.t.Context(), bootstrapPID)
	if err != nil || (why == "") != (piece == "") || !strings.Contains(why, piece) {
		r.t.Errorf("it says %q, %v; want %q", why, err, piece)
	}
	onDisk, err := r.parked()
	if err != nil || onDisk != why {
		r.t.Errorf("it says %q, and the disk %q, %v", why, onDisk, err)
	}
}

func TestEndClearsWhatIsLeft(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.start(105, jobCgroup) // of a container that the engine no longer has
	r.start(106, otherCgroup)
	r.removed = 2
	r.want(r.ended, "")
	must.Equal(t, []int{105}, r.killed)
	must.Equal(t, []string{"containers", "checkouts"}, r.asked)
	for cgroup, want := range map[string]string{agentCgroup: "", jobCgroup: "1"} {
		if text, err := os.ReadFile(filepath.Join(r.procs.root, cgroup, "cgroup.kill")); string(text) != want || err != nil {
			t.Errorf("cgroup.kill of %s is %q, %v; want %q", cgroup, text, err, want)
		}
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.want(r.begin, "") // a guard that has just started knows nothing
	if len(r.asked) != 2 || r.checks != 1 {
		t.Errorf("the first job began with %v and %d looks", r.asked, r.checks)
	}
	r.asked, r.checks = nil, 0
	r.want(r.begin, "") // its end was not seen
	if len(r.asked) != 2 || r.checks != 1 {
		t.Errorf("the same agent's next job began with %v and %d looks", r.asked, r.checks)
	}
	must.Equal(t, "", r.agentStarts(200))
	r.start(bootstrapPID, agentCgroup)
	r.asked, r.checks = nil, 0
	r.want(r.begin, "")
	if len(r.asked) != 0 || r.checks != 0 {
		t.Errorf("the first job of an agent began with %v and %d looks", r.asked, r.checks)
	}
	// At its beginning there is a process that no cleanup saw.
	r.want(r.ready, "")
	r.killed = nil
	r.start(105, jobCgroup)
	r.want(r.begin, "")
	must.Equal(t, []int{105}, r.killed)
}

func TestOnlyTheAgentAsks(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.start(103, otherCgroup)
	r.start(104, jobCgroup)
	for _, pid := range []int{0, 1, 99, 103, 104} {
		registered := func(ctx context.Context, pid int) (string, error) { return "", r.registered(ctx, pid) }
		for name, stage := range map[string]func(context.Context, int) (string, error){"ready": r.ready, "begin": r.begin, "registered": registered} {
			_, err := stage(t.Context(), pid)
			if no, ok := errors.AsType[refusal](err); !ok || no.status != 403 {
				t.Errorf("process %d asks %s: %v", pid, name, err)
			}
		}
	}
	if len(r.killed)+len(r.asked) > 0 {
		t.Errorf("it killed %v and cleared %v", r.killed, r.asked)
	}
}

func TestWhatCannotBeClearedParks(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(r *slotRig){
		"a process": func(r *slotRig) {
			r.start(104, jobCgroup)
			r.immortal = 104
			begun := time.Now()
			r.want(r.ended, "process 104 (p104) of a job still runs after SIGKILL")
			if d := time.Since(begun); d > 6*time.Second {
				r.t.Errorf("it took %v", d)
			}
			r.want(r.begin, "process 104 (p104) of a job still runs after SIGKILL")
			r.immortal = 0
			r.want(r.ready, "")
		},
		"containers": func(r *slotRig) {
			r.broken = errors.New("no Docker engine answers")
			r.want(r.ended, "its containers cannot be removed: no Docker engine answers")
			r.broken = nil
			r.want(r.ready, "")
		},
		"an engine that restarts does not": func(r *slotRig) {
			r.broken, r.until = errors.New("no Docker engine answers"), time.Now().Add(2*time.Second)
			r.want(r.ended, "")
		},
		"containers that end slowly, when the next job begins, do not": func(r *slotRig) {
			r.broken, r.until = errors.New("its removal takes its time"), time.Now().Add(100*time.Second)
			r.want(r.begin, "")
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { do(newSlotRig(t)) }) })
	}
}

func TestGPUInUseParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.start(500, otherCgroup)
		r.gpu.Compute = []probe.Process{{PID: 500, UsedBytes: 1}}
		begun := time.Now()
		r.want(r.ended, "GPU-11111111-2222-3333-4444-555555555555 is used by process 500 (p500), which does not belong to a job; stop it")
		if d := time.Since(begun); d < 5*time.Second || d > 6*time.Second {
			t.Errorf("it waited %v", d)
		}
		if len(r.killed) > 0 {
			t.Errorf("killed %v", r.killed)
		}
		// The agent had already taken a job.
		r.want(r.begin, "GPU-11111111-2222-3333-4444-555555555555 is used")
		begun = time.Now()
		r.want(r.ready, "GPU-11111111-2222-3333-4444-555555555555 is used")
		if d := time.Since(begun); d > time.Second {
			t.Errorf("a second wait took %v", d)
		}
		// An unknown state changes nothing.
		r.gpuErr = errors.New("the driver hangs")
		r.want(r.ready, "GPU-11111111-2222-3333-4444-555555555555 is used")
		r.gpuErr = nil
		r.gpu.Compute = nil
		r.want(r.ready, "")
		r.want(r.begin, "")
		r.gpuErr = errors.New("the driver hangs")
		r.want(r.ended, "")

		// The process ends a moment after the job.
		r.gpuErr = nil
		r.gpu.Compute = nil
		r.want(r.ready, "")
		r.want(r.begin, "")
		r.gpu.Compute = []probe.Process{{PID: 500}}
		r.until = time.Now().Add(gpuTime - time.Second)
		r.want(r.ended, "")
	})
}

func TestOthersPark(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.want(r.ready, "")
	r.put(filepath.Join(r.runDir, slot.ParkedDir, "operator.json"), `{"reason":"maintenance","since":"2026-03-01T12:00:00Z"}`)
	r.put(filepath.Join(r.runDir, slot.ParkedDir, ".operator.json123"), "half")
	r.want(r.begin, "maintenance")
	r.want(r.ready, "maintenance")
	must.Do(t, os.Remove(filepath.Join(r.runDir, slot.ParkedDir, "operator.json")))
	r.want(r.ready, "")
	r.put(filepath.Join(r.runDir, slot.ParkedDir, "x.json"), "rubbish")
	if why, err := r.ready(t.Context(), bootstrapPID); err == nil || !strings.Contains(err.Error(), "x.json") {
		t.Errorf("a reason that is none: %q, %v", why, err)
	}
}

// TestOneStepAtATime: what was begun is done even if no one waits for it, and one step at a time.
func TestOneStepAtATime(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	containers := r.containers
	r.containers = func(ctx context.Context) (int, error) {
		close(entered)
		<-leave
		n, err := containers(ctx)
		return n, errors.Join(err, ctx.Err())
	}
	ctx, cancel := context.WithCancel(t.Context())
	begin := func() chan error {
		done := make(chan error)
		go func() {
			why, err := r.begin(ctx, bootstrapPID)
			if why != "" {
				err = errors.Join(err, errors.New(why))
			}
			done <- err
		}()
		return done
	}
	killed := begin()
	<-entered
	late := begin()
	cancel()
	close(leave)
	if err := <-killed; err != nil {
		t.Errorf("a caller that is killed: %v", err)
	}
	if err := <-late; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is killed while it waits: %v", err)
	}
	must.Equal(t, []string{"containers", "checkouts"}, r.asked)
}

// TestLend lets root use a slot whose agent has no job. What it leaves goes before the agent's next job.
func TestLend(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.swept, r.checked = true, true
	if _, err := r.begin(t.Context(), noAgent); !errors.Is(err, errBusy) || !r.swept {
		t.Errorf("with a job: %v", err)
	}
	r.exit(bootstrapPID)
	r.start(104, jobCgroup)
	if _, err := park(r.runDir, "x", "it is parked"); err != nil {
		t.Fatal(err)
	}
	if why, err := r.begin(t.Context(), noAgent); why != "it is parked" || err != nil {
		t.Errorf("parked: %q, %v", why, err)
	}
	must.Do(t, unpark(r.runDir, "x"))
	if why, err := r.begin(t.Context(), noAgent); why != "" || err != nil || r.swept || r.running {
		t.Errorf("it says %q, %v; cleared before the next job: %t", why, err, !r.swept)
	}
	if _, err := r.noiseRecord(t.Context(), noAgent); !errors.Is(err, errNoRecord) {
		t.Error(err)
	}
	if len(r.killed)+len(r.asked) > 0 {
		t.Errorf("ended %v, asked for %v", r.killed, r.asked)
	}
	// Of a job that ended just before, nothing is cleared later, while root uses the slot.
	r.running = true
	if why, err := r.begin(t.Context(), noAgent); why != "" || err != nil || r.running || !slices.Equal(r.killed, []int{104}) {
		t.Errorf("after a job: %q, %v, killed %v", why, err, r.killed)
	}
}
