package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
)

var (
	// errBusy means that the slot is not free for a job of root's.
	errBusy = errors.New("the slot has a job, which goes first")
	// errNoRecord means that no job has begun since the service started.
	errNoRecord = errors.New("no record: the guard did not see a job begin; it may have started later")
)

// cleaner removes what jobs leave, as root, and parks the slot with a reason if it cannot. A job is over
// when the agent's unit has no process for it any more.
type cleaner struct {
	runDir    string
	procs     slotProcs
	gpu       gpuWatches
	container func(context.Context) error // removes the slot's containers
	tidy      func() error                // removes the checkouts
	noise     *recorder                   // nil keeps no record
	log       *slog.Logger

	mu      sync.Mutex
	starts  starts
	dirty   bool // something may be left of a job, also of one before this service
	running bool // it is one of the agent's, which perhaps still runs
	busy    bool // the GPU was in use at the last successful check
}

func newCleaner(p plan.JobPolicy, cgroupRoot string, log *slog.Logger) *cleaner {
	procs := newSlotProcs(cgroupRoot, p)
	return &cleaner{
		runDir: filepath.Dir(p.Socket), procs: procs, gpu: newGPUWatches(p, procs, log), noise: newRecorder(p, procs), log: log, dirty: true,
	}
}

// ready is called by the agent's unit, as root, before it becomes the agent, again and again while the
// slot is parked. It clears the slot, and returns why the slot takes no jobs, or "". What was begun goes on
// if ctx, the caller's, ends.
func (k *cleaner) ready(ctx context.Context, pid int) (parked string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err // the caller went away while it waited
	}
	if k.starts.next(pid, time.Now()) { // not the process that waits while the slot is parked
		k.dirty = true
	}
	why, err := k.clean(context.WithoutCancel(ctx), retryTime)
	if why == "" && err == nil {
		why = k.starts.wait(time.Now())
	}
	return why, err
}

// begin is called before a job of the agent's, or of root's, which needs a slot whose agent has none. It
// returns why the slot is parked, or "". It finds the slot clear since the agent's start, or since the end
// of the last job was seen, unless it is called before that.
func (k *cleaner) begin(ctx context.Context, root bool) (parked string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if root {
		if runs, err := k.procs.runsJob(); runs || err != nil {
			return "", cmp.Or(err, errBusy)
		}
	}
	why, err := k.parked()
	if k.dirty {
		why, err = k.clean(context.WithoutCancel(ctx), beginTime)
	}
	if why != "" || err != nil {
		return why, err
	}
	if k.dirty, k.running = true, !root; k.running {
		k.starts.worked = true
		k.noise.begin()
	}
	return "", nil
}

// cleared reports whether nothing can be left of the last job that began.
func (k *cleaner) cleared() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.dirty
}

// registered notes that Buildkite has accepted the agent.
func (k *cleaner) registered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts.registered = true
}

// refused notes that the agent had a job, which never began.
func (k *cleaner) refused() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts.worked = true
}

const (
	// calmLife is the shortest life of an agent that works but gets no job. One that ends sooner
	// has failed: its token is refused, or Buildkite sends it away.
	calmLife = time.Minute
	// firstWait follows the second failure in a row. Each further wait is twice as long, up to
	// longestWait, or longestRegistered if Buildkite accepted the agent: that one may have had a job whose
	// bootstrap did not start, as with a variable that is too long for Linux.
	firstWait   = 5 * time.Second
	longestWait = time.Minute
	// longestRegistered is enough not to ask Buildkite too often.
	longestRegistered = 20 * time.Second
)

// starts counts agents that fail in a row. systemd cannot: it also starts the agent again after
// each job.
type starts struct {
	pid      int       // of the process that is about to become the agent
	since    time.Time // when it first asked
	worked   bool      // it was given a job
	failures int       // in a row
	// registered: Buildkite has accepted it.
	registered bool
	until      time.Time // the next one waits until then
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
			most := longestWait
			if s.registered {
				most = longestRegistered
			}
			s.until = now.Add(min(firstWait<<min(s.failures-2, 10), most))
		}
	}
	s.pid, s.since, s.worked, s.registered = pid, now, false, false
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
		if err := k.clearEnded(ctx); err != nil {
			k.log.Warn("slot not cleaned up", "err", err)
		}
	}
}

// clearEnded clears the slot if its job has ended since the last check.
func (k *cleaner) clearEnded(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running {
		return nil
	}
	if runs, err := k.procs.runsJob(); runs || err != nil {
		return err
	}
	why, err := k.clean(ctx, retryTime)
	if why != "" {
		k.log.Warn("slot takes no jobs", "reason", why)
	}
	return err
}
