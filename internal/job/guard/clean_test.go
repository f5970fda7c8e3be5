package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

// slotRig is a slot with files instead of /proc and cgroups, and with simulated containers
// and a simulated GPU. Nothing in it runs.
type slotRig struct {
	*guard
	t        *testing.T
	procMu   sync.Mutex
	cgroups  map[int]string // of processes, relative to the cgroup root
	immortal int            // a process that no signal ends
	killed   []int
	asked    []string         // what was cleaned, in order
	use      detect.Occupancy // of the GPU
	useErr   error
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
	r := &slotRig{t: t, cgroups: map[int]string{}, use: detect.Occupancy{Driver: "580.1", UsedBytes: 4 << 20}}
	dir := t.TempDir()
	policy := testPolicy()
	policy.Socket, policy.Network = filepath.Join(dir, "run/gpu0/job.sock"), "none"
	procs := newSlotProcs(filepath.Join(dir, "cgroup"), policy)
	procs.proc = filepath.Join(dir, "proc")
	procs.kill = r.kill
	log := slog.New(slog.DiscardHandler)
	watch := newGPUWatches(policy, procs, log)[0]
	watch.read = func(context.Context) (detect.Occupancy, error) {
		r.checks++
		if !r.until.IsZero() && time.Now().After(r.until) {
			r.use.Compute = nil
		}
		return r.use, r.useErr
	}
	r.guard = &guard{policy: policy, procs: procs, gpu: gpuWatches{watch}, log: log, handover: handover, uid: os.Getuid(), gid: os.Getgid()}
	r.token = func() (string, error) { return "secret-token", nil }
	r.remove = func(context.Context) error {
		r.asked = append(r.asked, "container")
		if !r.until.IsZero() && time.Now().After(r.until) {
			r.broken = nil
		}
		return r.broken
	}
	r.tidy = func() error { r.asked = append(r.asked, "checkouts"); return nil }
	for _, cgroup := range []string{agentCgroup, jobCgroup} {
		for _, f := range []string{"cgroup.kill", "cgroup.procs"} {
			r.put(filepath.Join(procs.root, cgroup, f), "")
		}
	}
	r.put(filepath.Join(r.runDir(), "socket"), "")
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

// waits looks again at a slot, as while it is parked.
func (r *slotRig) waits(ctx context.Context) (string, error) { return r.clearOnce(ctx) }

// agentStarts clears the slot before an agent starts.
func (r *slotRig) agentStarts(ctx context.Context) (string, error) {
	return r.ended(ctx)
}

// lock returns the slot's lock file, open for one process.
func (r *slotRig) lock() *os.File {
	r.t.Helper()
	f, err := os.OpenFile(r.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	must.Do(r.t, err)
	r.t.Cleanup(func() { hangUp(f) })
	return f
}

// begins begins a job of the agent's.
func (r *slotRig) begins(ctx context.Context) (string, error) { return r.asJob(ctx, false) }

// lends begins one of root's.
func (r *slotRig) lends(ctx context.Context) (string, error) { return r.asJob(ctx, true) }

func (r *slotRig) asJob(ctx context.Context, root bool) (string, error) {
	who := map[bool]kind{false: holderAgent, true: holderRoot}[root]
	release, err := r.hold(ctx, who)
	if err != nil {
		return "", err
	}
	defer release()
	err = r.begin(ctx, root)
	if err != nil {
		if why, parked := strings.CutPrefix(err.Error(), "the slot is parked: "); parked {
			return why, nil
		}
	}
	return "", err
}

// ended clears the slot after a job.
func (r *slotRig) ended(ctx context.Context) (string, error) {
	if err := r.setCleared(false); err != nil {
		return "", err
	}
	return r.clearOnce(ctx)
}

// want calls a stage and checks that its answer contains piece; "" is clean.
func (r *slotRig) want(stage func(context.Context) (string, error), piece string) {
	r.t.Helper()
	why, err := stage(r.t.Context())
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
	r.want(r.ended, "")
	must.Equal(t, []int{105}, r.killed)
	must.Equal(t, []string{"container", "checkouts"}, r.asked)
	for cgroup, want := range map[string]string{agentCgroup: "", jobCgroup: "1"} {
		if text, err := os.ReadFile(filepath.Join(r.procs.root, cgroup, "cgroup.kill")); string(text) != want || err != nil {
			t.Errorf("cgroup.kill of %s is %q, %v; want %q", cgroup, text, err, want)
		}
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	for _, when := range []string{"after a boot, nothing is known", "the last job's end was not seen"} {
		r.asked, r.checks = nil, 0
		r.want(r.begins, "")
		if len(r.asked) != 2 || r.checks != 1 {
			t.Errorf("%s: %v and %d looks", when, r.asked, r.checks)
		}
	}
	r.want(r.agentStarts, "")
	r.asked, r.checks = nil, 0
	r.want(r.begins, "")
	if len(r.asked) != 0 || r.checks != 0 {
		t.Errorf("the first job of an agent began with %v and %d looks", r.asked, r.checks)
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
			r.want(r.begins, "process 104 (p104) of a job still runs after SIGKILL")
			r.immortal = 0
			r.want(r.waits, "")
		},
		"containers": func(r *slotRig) {
			r.broken = errors.New("no Docker engine answers")
			r.want(r.ended, "its container cannot be removed: no Docker engine answers")
			r.broken = nil
			r.want(r.waits, "")
		},
		"a container that a process holds does not": func(r *slotRig) {
			r.start(105, jobCgroup)
			r.remove = func(context.Context) error {
				if len(r.killed) == 0 {
					return context.DeadlineExceeded
				}
				return nil
			}
			r.want(r.ended, "")
			must.Equal(r.t, []int{105}, r.killed)
		},
		"an engine that restarts does not": func(r *slotRig) {
			r.broken, r.until = errors.New("no Docker engine answers"), time.Now().Add(2*time.Second)
			r.want(r.ended, "")
		},
		"containers that end slowly, when the next job begins, do not": func(r *slotRig) {
			r.broken, r.until = errors.New("its removal takes its time"), time.Now().Add(100*time.Second)
			r.want(r.begins, "")
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
		r.use.Compute = []nvml.Process{{PID: 500, UsedBytes: 1}}
		begun := time.Now()
		r.want(r.ended, "GPU-11111111-2222-3333-4444-555555555555 is used by process 500 (p500), which does not belong to a job; stop it")
		if d := time.Since(begun); d < 5*time.Second || d > 6*time.Second {
			t.Errorf("it waited %v", d)
		}
		if len(r.killed) > 0 {
			t.Errorf("killed %v", r.killed)
		}
		// The agent had already taken a job.
		r.want(r.begins, "GPU-11111111-2222-3333-4444-555555555555 is used")
		begun = time.Now()
		r.want(r.waits, "GPU-11111111-2222-3333-4444-555555555555 is used")
		if d := time.Since(begun); d > time.Second {
			t.Errorf("a second wait took %v", d)
		}
		// An unknown state changes nothing.
		r.useErr = errors.New("the driver hangs")
		r.want(r.waits, "GPU-11111111-2222-3333-4444-555555555555 is used")
		r.useErr = nil
		r.use.Compute = nil
		r.want(r.waits, "")
		r.useErr = errors.New("the driver hangs")
		r.want(r.waits, "") // no job since the last look

		// The process ends a moment after the job.
		r.useErr = nil
		r.use.Compute = nil
		r.want(r.waits, "")
		r.want(r.begins, "")
		r.use.Compute = []nvml.Process{{PID: 500}}
		r.until = time.Now().Add(gpuTime - time.Second)
		r.want(r.ended, "")
	})
}

// TestGPUNotSeenParks: a slot whose GPU could not be looked at after a job, or since the service started, is not clear
// until it could.
func TestGPUNotSeenParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		for _, stage := range []func(context.Context) (string, error){r.begins, r.ended} {
			r.useErr = errors.New("the driver hangs")
			r.want(stage, "it is not known whether a job still uses the GPU")
			r.want(r.waits, "it is not known whether a job still uses the GPU")
			r.want(r.begins, "it is not known whether a job still uses the GPU")
			r.useErr, r.use.Compute = nil, []nvml.Process{{PID: 500}}
			r.want(r.waits, "is held by process 500")
			r.use.Compute = nil
			r.want(r.waits, "")
		}
		r.useErr = fmt.Errorf("check it: %w", detect.ErrUntold) // it never will
		r.want(r.ended, "")
		r.useErr = nil
		// One failure is no more than a late answer.
		read := r.gpu[0].read
		r.gpu[0].read = func(ctx context.Context) (detect.Occupancy, error) {
			r.checks++
			if r.checks%2 == 0 {
				return detect.Occupancy{}, errors.New("once")
			}
			return read(ctx)
		}
		r.want(r.ended, "")
	})
}

// TestSlowClearing looks at the GPU, however long the steps before took.
func TestSlowClearing(t *testing.T) {
	t.Parallel()
	for what, slow := range map[string]func(r *slotRig){
		"a million directories": func(r *slotRig) { r.tidy = func() error { time.Sleep(time.Hour); return nil } },
		"a slow engine": func(r *slotRig) {
			r.remove = func(context.Context) error { time.Sleep(cleanTime + time.Second); return nil }
		},
		"an engine that answers at last, with a process left": func(r *slotRig) {
			r.start(104, jobCgroup)
			r.remove = func(context.Context) error { time.Sleep(cleanTime + time.Second); return nil }
		},
		"a container that only a second try removes": func(r *slotRig) {
			tries := 0
			r.remove = func(ctx context.Context) error {
				tries++
				if tries == 1 {
					<-ctx.Done()
				}
				return ctx.Err()
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t)
				slow(r)
				read := r.gpu[0].read
				r.gpu[0].read = func(ctx context.Context) (detect.Occupancy, error) {
					o, err := read(ctx)
					return o, errors.Join(err, ctx.Err())
				}
				r.use.Compute = []nvml.Process{{PID: 500}}
				r.want(r.ended, "is held by process 500")
				r.use.Compute = nil
				r.want(r.waits, "")
			})
		})
	}
}

func TestOthersPark(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.want(r.waits, "")
	r.put(filepath.Join(r.runDir(), slot.ParkedDir, "operator.json"), `{"reason":"maintenance","since":"2026-03-01T12:00:00Z"}`)
	r.put(filepath.Join(r.runDir(), slot.ParkedDir, ".operator.json123"), "half")
	r.want(r.begins, "maintenance")
	r.want(r.waits, "maintenance")
	must.Do(t, os.Remove(filepath.Join(r.runDir(), slot.ParkedDir, "operator.json")))
	r.want(r.waits, "")
	r.put(filepath.Join(r.runDir(), slot.ParkedDir, "x.json"), "rubbish")
	if why, err := r.waits(t.Context()); err == nil || !strings.Contains(err.Error(), "x.json") {
		t.Errorf("a reason that is none: %q, %v", why, err)
	}
}

// TestOneStepAtATime: what was begun is done even if no one waits for it, and who waits for the slot can give up.
func TestOneStepAtATime(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	remove := r.remove
	r.remove = func(ctx context.Context) error {
		close(entered)
		<-leave
		return errors.Join(remove(ctx), ctx.Err())
	}
	ctx, cancel := context.WithCancel(t.Context())
	begin := func() chan error {
		done := make(chan error)
		go func() {
			why, err := r.begins(ctx)
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
	if err := <-late; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is killed while it waits: %v", err)
	}
	close(leave)
	if err := <-killed; err != nil {
		t.Errorf("a caller that is killed: %v", err)
	}
	must.Equal(t, []string{"container", "checkouts"}, r.asked)
}

// TestHold gives a slot to one process at a time, whatever its holder does.
func TestHold(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	r.handover = 200 * time.Millisecond
	asked := make(chan int, 1)
	release, err := r.hold(t.Context(), holderRoot)
	must.Do(t, err)
	if _, err := r.hold(t.Context(), holderRoot); !errors.Is(err, errBusy) {
		t.Errorf("root's second: %v", err)
	}
	r.signal = func(_ *os.File, h holder, by syscall.Signal) {
		must.Equal(t, syscall.SIGTERM, by)
		asked <- h.pid
		release()
	}
	release2, err := r.hold(t.Context(), holderAgent)
	must.Do(t, err)
	must.Equal(t, os.Getpid(), <-asked)
	r.signal = func(_ *os.File, _ holder, by syscall.Signal) { // one that hangs
		must.Equal(t, syscall.SIGKILL, by)
		release2()
	}
	release, err = r.hold(t.Context(), holderClear)
	must.Do(t, err)
	release()
	// Another one takes the slot while someone waits: it has its time, too.
	lock := r.lock()
	must.Do(t, holder{holderAgent, 11}.lock(lock))
	taken := make(chan error, 1)
	time.AfterFunc(r.handover/2, func() { taken <- holder{holderAgent, 12}.lock(lock) })
	r.signal = func(_ *os.File, h holder, _ syscall.Signal) {
		must.Equal(t, 12, h.pid)
		must.Do(t, <-taken)
		unlock(lock)
	}
	begun := time.Now()
	release2, err = r.hold(t.Context(), holderAgent)
	must.Do(t, err)
	if d := time.Since(begun); d < r.handover*3/2 {
		t.Errorf("the second holder had %v", d-r.handover/2)
	}
	release2()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		release, err := r.hold(t.Context(), holderAgent)
		must.Do(t, err)
		defer release()
		r.signal = func(*os.File, holder, syscall.Signal) {} // a driver holds it
		begun := time.Now()
		r.want(r.waits, "process "+strconv.Itoa(os.Getpid())+" still holds the slot after SIGKILL; if a driver holds it, only a reboot frees it")
		if d := time.Since(begun); d > handover+10*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestHolder sees who holds a slot from the moment of its taking to that of its release.
func TestHolder(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	holds := func(want holder) {
		t.Helper()
		if h := r.holder(); h != want {
			t.Errorf("%+v instead of %+v", h, want)
		}
	}
	holds(holder{})
	for _, k := range []kind{holderAgent, holderRoot, holderClear} {
		release, err := r.hold(t.Context(), k)
		must.Do(t, err)
		holds(holder{k, os.Getpid()})
		release()
		holds(holder{})
	}
	lock := r.lock()
	must.Do(t, holder{holderClear, 11}.lock(lock))
	child, err := unix.Dup(int(lock.Fd())) // of one that has not executed its program yet
	must.Do(t, err)
	defer func() { _ = unix.Close(child) }()
	unlock(lock)
	holds(holder{})
}

// TestSignalHolder ends a process that holds a slot, and no other with a PID that one had which holds it no longer.
func TestSignalHolder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		now    func(pid int) holder // who holds the slot
		signal bool
	}{
		{"holds it", func(pid int) holder { return holder{holderAgent, pid} }, true},
		{"released it", func(int) holder { return holder{} }, false},
		{"another holds it", func(int) holder { return holder{holderAgent, os.Getpid()} }, false},
		{"holds it for another purpose", func(pid int) holder { return holder{holderClear, pid} }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newSlotRig(t)
			process := exec.Command("cat")
			in, err := process.StdinPipe()
			must.Do(t, err)
			must.Do(t, process.Start())
			pid := process.Process.Pid
			if now := tt.now(pid); now != (holder{}) {
				must.Do(t, now.lock(r.lock()))
			}
			signalHolder(r.lock(), holder{holderAgent, pid}, syscall.SIGTERM)
			if !tt.signal {
				must.Do(t, in.Close())
			}
			_ = process.Wait()
			must.Equal(t, tt.signal, !process.ProcessState.Exited())
		})
	}
}

// TestLend lets root use a slot whose agent has no job. What it leaves goes before the agent's next job.
func TestLend(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t)
	if _, err := r.lends(t.Context()); !errors.Is(err, errBusy) || len(r.asked) > 0 {
		t.Errorf("with a job: %v, cleared %v", err, r.asked)
	}
	r.exit(bootstrapPID)
	r.want(r.agentStarts, "")
	if _, err := park(r.runDir(), "x", "it is parked"); err != nil {
		t.Fatal(err)
	}
	r.want(r.lends, "it is parked")
	must.Do(t, unpark(r.runDir(), "x"))
	r.asked = nil
	r.want(r.lends, "")
	if len(r.asked) > 0 || r.cleared() {
		t.Errorf("cleared %v, %t", r.asked, r.cleared())
	}
	r.start(104, jobCgroup)
	r.want(r.begins, "")
	must.Equal(t, []int{104}, r.killed)
}

// TestLendLooksAgain: a job of root's looks again at a slot that is parked, as nothing else does while its agent is stopped.
func TestLendLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.exit(bootstrapPID)
		r.start(500, otherCgroup)
		r.use.Compute = []nvml.Process{{PID: 500, UsedBytes: 1}}
		r.want(r.ended, "is used by process 500")
		r.want(r.lends, "is used by process 500")
		r.use.Compute = nil
		r.want(r.begins, "is used by process 500")
		r.want(r.lends, "")
	})
}

// TestClearWaits: an agent does not start while its slot is parked. Its start is counted once.
func TestClearWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		_, err := park(r.runDir(), "x", "it is parked")
		must.Do(t, err)
		for _, when := range []string{slot.ClearStart, slot.ClearAgain, slot.ClearAgain} {
			begun := time.Now()
			why, err := r.clear(t.Context(), when)
			if d := time.Since(begun); err != nil || why != "it is parked" || d < parkedTime || d > parkedTime+2*parkedPoll {
				t.Errorf("%q, %v after %v", why, err, d)
			}
		}
		time.AfterFunc(parkedPoll/2, func() { must.Do(t, unpark(r.runDir(), "x")) })
		if why, err := r.clear(t.Context(), slot.ClearAgain); why != "" || err != nil {
			t.Errorf("%q, %v", why, err)
		}
		_, err = park(r.runDir(), "x", "it is parked")
		must.Do(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(parkedPoll, cancel)
		if _, err := r.clear(ctx, slot.ClearAgain); !errors.Is(err, context.Canceled) {
			t.Errorf("its unit is stopped: %v", err)
		}
	})
}
