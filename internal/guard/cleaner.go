package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// noAgent stands for the process of a job that root runs without an agent, such as kbnode selftest's.
// No process has this number.
const noAgent = -1

var (
	// errBusy means that the slot is not free for a job of root's.
	errBusy = errors.New("the slot has a job, which goes first")
	// errNoRecord means that no job has begun since the service started.
	errNoRecord = errors.New("no record: the guard did not see a job begin; it may have started later")
)

// cleaner removes what jobs leave, as root, and parks the slot with a reason if it cannot. A job is over
// when the agent's unit has no process for it any more.
type cleaner struct {
	runDir     string
	procs      slotProcs
	gpu        gpuWatches
	containers func(context.Context) (int, error) // removes the slot's containers, and returns how many there were
	tidy       func(context.Context) error        // removes the checkouts, and makes the disk ready for the next job
	noise      *recorder                          // nil keeps no record
	log        *slog.Logger

	mu      sync.Mutex
	starts  starts
	running bool   // a job began, and the slot was not cleared since
	swept   bool   // nothing is left of the last job, except perhaps on the GPU
	checked bool   // the GPU was checked since
	busy    bool   // the GPU was in use at the last successful check
	sampled func() // waits until nothing samples the GPU any more; nil without a job
}

func newKeeper(p plan.JobPolicy, cgroupRoot string, log *slog.Logger) *cleaner {
	procs := newSlotProcs(cgroupRoot, p)
	return &cleaner{
		runDir: filepath.Dir(p.Socket), procs: procs, gpu: newGPUWatches(p, procs, log), noise: newRecorder(p, procs), log: log,
	}
}

// ready is called by the agent's unit, as root, before it becomes the agent, again and again while the
// slot is parked. It clears the slot, and returns why the slot takes no jobs, or "".
func (k *cleaner) ready(ctx context.Context, pid int) (parked string, err error) {
	return k.do(ctx, pid, k.clearForAgent)
}

// registered records for kbnode status that Buildkite accepted the agent.
func (k *cleaner) registered(ctx context.Context, pid int) error {
	_, err := k.do(ctx, pid, func(context.Context, int) (string, error) { return "", slot.Register(k.runDir) })
	return err
}

// begin is called before a job, by the agent's process for it or for noAgent. It returns why the slot
// is parked, or "".
func (k *cleaner) begin(ctx context.Context, pid int) (parked string, err error) {
	if pid == noAgent {
		return k.do(ctx, pid, k.beginRoot)
	}
	return k.do(ctx, pid, k.beginJob)
}

// do does one step at a time. What was begun goes on if ctx, the caller's, ends.
func (k *cleaner) do(ctx context.Context, pid int, step func(context.Context, int) (string, error)) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err // the caller went away while it waited
	}
	if pid != noAgent {
		if err := k.procs.ofAgent(pid); err != nil {
			return "", err
		}
	}
	return step(context.WithoutCancel(ctx), pid)
}

const (
	// calmLife is the shortest life of an agent that works but gets no job. One that ends sooner
	// has failed: its token is refused, or Buildkite sends it away.
	calmLife = time.Minute
	// firstWait follows the second failure in a row. Each further wait is twice as long, up to
	// longestWait.
	firstWait   = 5 * time.Second
	longestWait = time.Minute
)

// starts counts agents that fail in a row. systemd cannot: it also starts the agent again after
// each job.
type starts struct {
	pid      int       // of the process that is about to become the agent
	since    time.Time // when it first asked
	worked   bool      // it was given a job
	failures int       // in a row
	until    time.Time // the next one waits until then
}

// next records who asks. fresh reports whether it is a new process, so that the agent before it
// has ended.
func (s *starts) next(pid int, now time.Time) (fresh bool) {
	if pid == s.pid {
		return false
	}
	switch {
	case s.pid == 0: // the agent before this guard is not known
	case s.worked || now.Sub(s.since) > calmLife:
		s.failures = 0
	default:
		if s.failures++; s.failures > 1 {
			s.until = now.Add(min(firstWait<<min(s.failures-2, 10), longestWait))
		}
	}
	s.pid, s.since, s.worked = pid, now, false
	return true
}

// wait returns why the agent must not start yet, or "". The time that it waits does not count as
// its life.
func (s *starts) wait(now time.Time) string {
	left := s.until.Sub(now)
	if left <= 0 {
		return ""
	}
	s.since = now
	return fmt.Sprintf("the agent exited %d times in a row without a job; it starts again in %s", s.failures, left.Round(time.Second))
}

// endPoll is the time between two checks of whether the agent still runs a job.
const endPoll = 2 * time.Second

// watch clears the slot after each job, however it ended, until ctx is done: when the agent has no
// process for it any more, or there is no agent.
func (k *cleaner) watch(ctx context.Context) {
	k.mu.Lock()
	if runs, err := k.procs.runsJob(); runs || err != nil {
		k.running = true // a restarted guard saw no begin
	}
	k.mu.Unlock()
	for limit.Sleep(ctx, endPoll) == nil {
		k.mu.Lock()
		if k.running {
			if _, err := k.afterJob(ctx); err != nil {
				k.log.Warn("slot not cleaned up", "err", err)
			}
		}
		k.mu.Unlock()
	}
}

// afterJob reports whether the agent runs a job, and clears the slot if that has ended since the last
// check.
func (k *cleaner) afterJob(ctx context.Context) (runs bool, err error) {
	if runs, err = k.procs.runsJob(); runs || err != nil || !k.running {
		return runs, err
	}
	why, err := k.clean(ctx, retryTime)
	if why != "" {
		k.log.Warn("slot takes no jobs", "reason", why)
	}
	return false, err
}
