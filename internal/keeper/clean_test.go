package keeper

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
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// slotRig is a cleaner with files instead of /proc and cgroups, and with simulated containers
// and a simulated GPU. Nothing in it runs.
type slotRig struct {
	*Keeper
	t         *testing.T
	main      int            // the agent's process
	cgroups   map[int]string // of processes, relative to the cgroup root
	immortal  int            // a process that no signal ends
	frozen    bool           // the agent's unit was frozen at the last kill
	killed    []int
	continued []int
	onKill    func(pid int)
	removed   int
	asked     []string // what was cleaned, in order
	gpu       inventory.Occupancy
	gpuErr    error
	looks     int
	broken    error     // what the engine answers
	until     time.Time // if set, the engine and the GPU work again from then on
}

const (
	agentCgroup = "buildkite.slice/buildkite-gpu0.slice/buildkite-agent-gpu0.service"
	jobCgroup   = "buildkite.slice/buildkite-gpu0.slice/docker-aa.scope"
	otherCgroup = "system.slice/ssh.service"
	agentPID    = 100
	bootstrap   = 101
	hookPID     = 102
)

func testPolicy() plan.JobPolicy {
	return plan.JobPolicy{
		Name: "gpu0", User: "kbnode-gpu0", Slice: "buildkite-gpu0.slice", CPUs: "2-3,10-11",
		Vendor: "nvidia", GPUs: []plan.PolicyGPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", PCI: "0000:1b:00.0"}},
		Socket: "/run/kbnode/gpu0/docker.sock",
	}
}

func newSlotRig(t *testing.T) *slotRig {
	t.Helper()
	r := &slotRig{t: t, main: agentPID, cgroups: map[int]string{}, gpu: inventory.Occupancy{Driver: "580.1", UsedBytes: 4 << 20}}
	dir := t.TempDir()
	policy := testPolicy()
	policy.Socket = filepath.Join(dir, "run/docker.sock")
	procs := newSlotProcs(filepath.Join(dir, "cgroup"), policy)
	procs.proc = filepath.Join(dir, "proc")
	procs.send = r.signal
	log := slog.New(slog.DiscardHandler)
	watch := newGPUWatches(policy, procs, log)[0]
	watch.look = func(context.Context) (inventory.Occupancy, error) {
		r.looks++
		if !r.until.IsZero() && time.Now().After(r.until) {
			r.gpu.Compute = nil
		}
		return r.gpu, r.gpuErr
	}
	r.Keeper = &Keeper{
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
		checkouts: func(context.Context) error { r.asked = append(r.asked, "checkouts"); return nil },
		mainPID:   r.MainPID,
	}
	for _, cgroup := range []string{agentCgroup, jobCgroup} {
		r.put(filepath.Join(procs.root, cgroup, "cgroup.events"), "populated 1\nfrozen 1\n")
		for _, f := range []string{"cgroup.freeze", "cgroup.kill", "cgroup.procs"} {
			r.put(filepath.Join(procs.root, cgroup, f), "")
		}
	}
	r.put(filepath.Join(r.runDir, "socket"), "")
	r.start(agentPID, 1, agentCgroup)
	r.start(bootstrap, agentPID, agentCgroup)
	r.start(hookPID, bootstrap, agentCgroup)
	return r
}

func (r *slotRig) MainPID(context.Context) (int, error) { return r.main, nil }

func (r *slotRig) put(name, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// start creates a process.
func (r *slotRig) start(pid, parent int, cgroup string) {
	r.t.Helper()
	dir := filepath.Join(r.procs.proc, strconv.Itoa(pid))
	r.put(dir+"/cgroup", "0::/"+cgroup+"\n")
	r.put(dir+"/comm", "p"+strconv.Itoa(pid)+"\n")
	r.put(dir+"/status", fmt.Sprintf("Name:\tx\nPPid:\t%d\n", parent))
	r.cgroups[pid] = cgroup
	r.list(cgroup)
}

func (r *slotRig) list(cgroup string) {
	r.t.Helper()
	var pids []int
	for pid, in := range r.cgroups {
		if in == cgroup {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	r.put(filepath.Join(r.procs.root, cgroup, "cgroup.procs"), strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", "\n"), "[]"))
}

// signal does what SIGKILL does.
func (r *slotRig) signal(pid int, sig unix.Signal) error {
	if sig == unix.SIGCONT {
		r.continued = append(r.continued, pid)
		r.state(pid, "S (sleeping)")
		return nil
	}
	text, err := os.ReadFile(filepath.Join(r.procs.root, agentCgroup, "cgroup.freeze"))
	if err != nil {
		return err
	}
	r.frozen = string(text) == "1"
	r.killed = append(r.killed, pid)
	if r.onKill != nil {
		r.onKill(pid)
	}
	if pid == r.immortal {
		return nil
	}
	cgroup := r.cgroups[pid]
	delete(r.cgroups, pid)
	r.list(cgroup)
	return os.RemoveAll(filepath.Join(r.procs.proc, strconv.Itoa(pid)))
}

// state sets the state of a process that the kernel reports.
func (r *slotRig) state(pid int, state string) {
	r.t.Helper()
	r.status(pid, "State:", state)
}

// status changes a line of a process's status.
func (r *slotRig) status(pid int, name, value string) {
	r.t.Helper()
	file := filepath.Join(r.procs.proc, strconv.Itoa(pid), "status")
	text, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(line string) bool { return strings.HasPrefix(line, name) })
	r.put(file, strings.Join(lines, "")+name+"\t"+value+"\n")
}

// agentStarts simulates a new agent: root's process, which asks before it becomes the agent.
func (r *slotRig) agentStarts(pid int) string {
	r.t.Helper()
	for old, cgroup := range r.cgroups {
		if cgroup == agentCgroup {
			r.kill(old) // systemd ended the unit
		}
	}
	r.main = pid
	r.start(pid, 1, agentCgroup)
	r.status(pid, "Uid:", "0 0 0 0")
	why, err := r.ready(r.t.Context(), pid)
	if err != nil {
		r.t.Fatal(err)
	}
	r.status(pid, "Uid:", "990 990 990 990")
	return why
}

// endAndLook ends a job and does what follows the answer.
func (r *slotRig) endAndLook(ctx context.Context, pid int) (string, error) {
	why, err := r.end(ctx, pid)
	if why != "" || err != nil {
		return why, err
	}
	r.endLook(ctx)
	return r.parked()
}

// want calls a stage and checks that its answer contains piece; "" is clean.
func (r *slotRig) want(stage func(context.Context, int) (string, error), piece string) {
	r.t.Helper()
	why, err := stage(r.t.Context(), hookPID)
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
	r.start(103, bootstrap, agentCgroup) // a command that goes on
	r.start(104, 1, agentCgroup)         // a daemon
	r.start(105, 1, jobCgroup)           // of a container that the engine no longer has
	r.start(106, 1, otherCgroup)
	r.removed = 2
	r.want(r.end, "")
	if diff := cmp.Diff([]int{103, 104, 105}, r.killed); diff != "" {
		t.Errorf("killed: %s", diff)
	}
	if diff := cmp.Diff([]string{"containers", "checkouts"}, r.asked); diff != "" {
		t.Error(diff)
	}
	for file, want := range map[string]string{agentCgroup + "/cgroup.freeze": "0", jobCgroup + "/cgroup.kill": "1"} {
		if text, err := os.ReadFile(filepath.Join(r.procs.root, file)); string(text) != want || err != nil {
			t.Errorf("%s is %q, %v; want %q", file, text, err, want)
		}
	}
}

// TestEndAnswersFirst: a job does not wait for the driver, and what follows its end comes before
// the next job.
func TestEndAnswersFirst(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.want(r.ready, "")
	r.looks = 0
	r.want(r.end, "")
	if r.looks != 0 {
		t.Errorf("a job waited for %d looks at the GPU", r.looks)
	}
	r.want(r.begin, "")
	if r.looks != 1 {
		t.Errorf("the next one began after %d looks", r.looks)
	}
}

// TestStraysStandStill: a process that forks faster than it is killed is frozen meanwhile.
func TestStraysStandStill(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.start(103, bootstrap, agentCgroup)
	r.want(r.end, "")
	if !r.frozen {
		t.Error("processes were killed while their unit could run")
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.want(r.begin, "") // a guard that has just started knows nothing
	if len(r.asked) != 2 || r.looks != 1 {
		t.Errorf("the first job began with %v and %d looks", r.asked, r.looks)
	}
	for name, end := range map[string]func(){"was told": func() { r.want(r.end, "") }, "was not told": func() {}} {
		end()
		r.asked, r.looks = nil, 0
		r.want(r.begin, "")
		if len(r.asked) != 2 || r.looks != 1 {
			t.Errorf("after an end that %s the same agent's next job began with %v and %d looks", name, r.asked, r.looks)
		}
	}
	if why := r.agentStarts(200); why != "" {
		t.Error(why)
	}
	r.start(bootstrap, 200, agentCgroup)
	r.start(hookPID, bootstrap, agentCgroup)
	r.asked, r.looks = nil, 0
	r.want(r.begin, "")
	if len(r.asked) != 0 || r.looks != 0 {
		t.Errorf("the first job of an agent began with %v and %d looks", r.asked, r.looks)
	}
	// At its beginning there is a process that no cleanup saw.
	r.want(r.ready, "")
	r.killed = nil
	r.start(104, 1, agentCgroup)
	r.start(105, 1, jobCgroup)
	r.want(r.begin, "")
	if diff := cmp.Diff([]int{104, 105}, r.killed); diff != "" {
		t.Errorf("killed: %s", diff)
	}
}

func TestOnlyTheAgentAsks(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.start(103, 1, otherCgroup)
	r.start(104, 1, jobCgroup)
	r.start(105, 105, agentCgroup) // its own parent
	for _, pid := range []int{0, 1, 99, 103, 104, 105} {
		for name, stage := range map[string]func(context.Context, int) (string, error){"ready": r.ready, "begin": r.begin, "end": r.end} {
			if _, err := stage(t.Context(), pid); !wrongCaller(err) {
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
	t.Run("a process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newSlotRig(t)
			r.start(104, 1, agentCgroup)
			r.immortal = 104
			begun := time.Now()
			r.want(r.end, "process 104 (p104) of a job still runs after SIGKILL")
			if d := time.Since(begun); d > 6*time.Second {
				t.Errorf("it took %v", d)
			}
			r.want(r.begin, "process 104 (p104) of a job still runs after SIGKILL")
			r.immortal = 0
			r.want(r.ready, "")
		})
	})
	t.Run("containers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newSlotRig(t)
			r.broken = errors.New("no Docker engine answers")
			r.want(r.end, "its containers cannot be removed: no Docker engine answers")
			r.broken = nil
			r.want(r.ready, "")
		})
	})
	t.Run("an engine that restarts does not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newSlotRig(t)
			r.broken = errors.New("no Docker engine answers")
			r.until = time.Now().Add(2 * time.Second)
			r.want(r.end, "")
		})
	})
	t.Run("containers that end slowly, when the next job begins, do not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newSlotRig(t)
			r.broken = errors.New("its removal takes its time")
			r.until = time.Now().Add(100 * time.Second)
			r.want(r.begin, "")
		})
	})
}

func TestGPUInUseParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.start(500, 1, otherCgroup)
		r.gpu.Compute = []inventory.GPUProcess{{PID: 500, UsedBytes: 1}}
		begun := time.Now()
		r.want(r.endAndLook, "GPU-11111111-2222-3333-4444-555555555555 is used by process 500 (p500), which does not belong to a job; stop it")
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
		r.want(r.endAndLook, "")

		// The process ends a moment after the job.
		r.gpuErr = nil
		r.gpu.Compute = nil
		r.want(r.ready, "")
		r.want(r.begin, "")
		r.gpu.Compute = []inventory.GPUProcess{{PID: 500}}
		r.until = time.Now().Add(gpuTime - time.Second)
		r.want(r.endAndLook, "")
	})
}

// TestRegistered: the agent's hook leaves a mark, and a process that is not below the agent leaves none.
func TestRegistered(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.start(990, 1, "user.slice")
	if _, err := r.registered(t.Context(), 990); err == nil {
		t.Error("a process of nobody registers the agent")
	}
	mark := filepath.Join(r.runDir, slot.RegisteredName)
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before the agent has registered: %v", err)
	}
	r.want(r.registered, "")
	if _, err := os.Stat(mark); err != nil {
		t.Error(err)
	}
}

func TestOthersPark(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.want(r.ready, "")
	r.put(filepath.Join(r.runDir, slot.ParkedDir, "operator.json"), `{"reason":"maintenance","since":"2026-03-01T12:00:00Z"}`)
	r.put(filepath.Join(r.runDir, slot.ParkedDir, ".operator.json123"), "half")
	r.want(r.begin, "maintenance")
	r.want(r.ready, "maintenance")
	if err := os.Remove(filepath.Join(r.runDir, slot.ParkedDir, "operator.json")); err != nil {
		t.Fatal(err)
	}
	r.want(r.ready, "")
	r.put(filepath.Join(r.runDir, slot.ParkedDir, "x.json"), "rubbish")
	if why, err := r.ready(t.Context(), hookPID); err == nil || !strings.Contains(err.Error(), "x.json") {
		t.Errorf("a reason that is none: %q, %v", why, err)
	}
}

// TestReport: what was begun is done even if no one waits for it, and one report at a time.
func TestReport(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	containers := r.containers
	r.containers = func(ctx context.Context) (int, error) {
		close(entered)
		<-leave
		return containers(ctx)
	}
	ctx, cancel := context.WithCancel(t.Context())
	killed := make(chan error)
	go func() {
		_, err := r.Report(ctx, slot.EndPath, hookPID, func(string) {})
		killed <- err
	}()
	<-entered
	late := make(chan error)
	go func() {
		_, err := r.Report(ctx, slot.EndPath, hookPID, func(string) { t.Error("a reporter that is gone is answered") })
		late <- err
	}()
	cancel()
	close(leave)
	if err := <-killed; err != nil {
		t.Errorf("a hook that is killed: %v", err)
	}
	if err := <-late; !errors.Is(err, context.Canceled) {
		t.Errorf("a hook that is killed while it waits: %v", err)
	}
	r.containers = containers
	answered := 0
	if parked, err := r.Report(t.Context(), slot.BeginPath, hookPID, func(string) { answered++ }); parked != "" || err != nil || answered != 1 {
		t.Errorf("the next job: %q, %v, %d answers", parked, err, answered)
	}
	if diff := cmp.Diff([]string{"containers", "checkouts", "containers", "checkouts"}, r.asked); diff != "" {
		t.Errorf("cleared: %s", diff)
	}
	// The end of a job is answered while the driver is still being asked, and the next job
	// waits.
	for _, said := range []string{""} {
		asked, done := make(chan struct{}), make(chan struct{})
		look := r.Keeper.gpu[0].look
		r.Keeper.gpu[0].look = func(ctx context.Context) (inventory.Occupancy, error) { <-asked; return look(ctx) }
		message := make(chan string)
		go func() {
			defer close(done)
			if parked, err := r.Report(t.Context(), slot.EndPath, hookPID, func(m string) { message <- m }); parked != "" || err != nil {
				t.Errorf("the end: %q, %v", parked, err)
			}
		}()
		if got := <-message; got != said {
			t.Errorf("the job's log has %q, want %q", got, said)
		}
		if r.mu.TryLock() {
			t.Error("the next job could begin unlooked")
		}
		close(asked)
		<-done
		r.Keeper.gpu[0].look = look
	}
	r.put(filepath.Join(r.runDir, slot.ParkedDir, "operator.json"), `{"reason":"maintenance"}`)
	if parked, err := r.Report(t.Context(), slot.ReadyPath, hookPID, func(string) { t.Error("a parked slot is ready") }); parked != "maintenance" || err != nil {
		t.Errorf("a parked slot: %q, %v", parked, err)
	}
	if _, err := r.Report(t.Context(), "/_ping", hookPID, func(string) {}); err == nil {
		t.Error("Docker's path is a report")
	}
}

// TestLend lets root use a slot whose agent has no job, and ends nothing.
func TestLend(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.swept, r.looked = true, true
	begin := func() (string, error) { return r.Report(t.Context(), slot.BeginPath, NoAgent, func(string) {}) }
	if _, err := begin(); !errors.Is(err, ErrBusy) || !r.swept {
		t.Errorf("with a job: %v", err)
	}
	for _, pid := range []int{hookPID, bootstrap} {
		delete(r.cgroups, pid)
	}
	r.list(agentCgroup)
	r.start(104, 1, jobCgroup)
	if _, err := park(r.runDir, "x", "it is parked"); err != nil {
		t.Fatal(err)
	}
	if why, err := begin(); why != "it is parked" || err != nil {
		t.Errorf("parked: %q, %v", why, err)
	}
	if err := unpark(r.runDir, "x"); err != nil {
		t.Fatal(err)
	}
	if why, err := begin(); why != "" || err != nil || r.swept || r.watched.Load() {
		t.Errorf("it says %q, %v; cleared before the next job: %t", why, err, !r.swept)
	}
	if _, err := r.Record(t.Context(), NoAgent); !errors.Is(err, ErrNoRecord) {
		t.Error(err)
	}
	if len(r.killed)+len(r.asked) > 0 {
		t.Errorf("ended %v, asked for %v", r.killed, r.asked)
	}
}
