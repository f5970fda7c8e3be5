package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// The guard's files in slot.ParkedDir.
const (
	leftName = "left" // what a job left
	gpuName  = "gpu"  // what uses the GPU
)

const (
	// cleanTime bounds one cleanup; containers have five seconds to stop.
	cleanTime = 3 * time.Minute
	// engineTime is how long to retry an engine that does not answer: it may be restarting.
	engineTime = 5 * time.Second
	// beginTime is engineTime before a job: waiting is better for it than being refused because
	// an earlier job's containers end slowly.
	beginTime = 2 * time.Minute
)

// cleaner removes what jobs leave, as root, and parks the slot with a reason if it cannot. Jobs
// on the host run as the same user that reports their begin and end, so a report can do no more
// than end the slot's own processes sooner. The cleaner trusts two things: that an agent's
// process is gone, and root's report that the next agent is about to start.
type cleaner struct {
	runDir string
	procs  slotProcs
	gpu    gpuWatches
	// containers removes the slot's containers; checkouts gives back the checkouts.
	containers func(context.Context) (int, error)
	checkouts  func(context.Context) error
	mainPID    func(context.Context) (int, error) // of the agent's unit; nil if unknown
	noise      *recorder                          // nil keeps no record
	limit      time.Duration                      // how long a job may run; 0 is no limit
	log        *slog.Logger

	mu      sync.Mutex
	starts  starts
	swept   bool   // nothing is left of the last job, except perhaps on the GPU
	looked  bool   // the GPU was checked since
	busy    bool   // the GPU was in use at the last successful check
	said    string // for the job's log, at its end
	sampled func() // waits until nothing samples the GPU any more; nil without a job

	running            atomic.Bool // a job runs, as far as reported
	strict, compatible atomic.Bool // the job has made a container of this profile

	// A job that began is watched until the agent has no process for it: the one that reports
	// its end may have been killed, or never started.
	watched atomic.Bool
	alone   atomic.Int32 // consecutive checks that found the agent without a job; see endLooks
}

func newCleaner(g *guard, c Config, engine *docker.Engine) *cleaner {
	p := c.Policy
	procs := newSlotProcs(g.cgroupRoot, p)
	return &cleaner{
		runDir: filepath.Dir(p.Socket), procs: procs, gpu: newGPUWatches(p, procs, g.log), mainPID: c.MainPID, log: g.log,
		noise: newRecorder(p, procs), limit: time.Duration(p.TimeLimitSeconds) * time.Second,
		containers: func(ctx context.Context) (int, error) {
			n, err := engine.CleanSlot(ctx, p.Slice, slotLabel+"="+strconv.Itoa(p.Slot))
			if err != nil {
				return n, err
			}
			// Once the containers are gone, the paths held for them are free.
			g.own.clear()
			return n, g.binder.clear()
		},
		checkouts: func(ctx context.Context) error {
			if err := g.disk.tidy(ctx, &g.own); err != nil {
				return err
			}
			err := Reclaim(ctx, p)
			if err == nil {
				return nil
			}
			// Checkouts that cannot be given back in time are too large to keep.
			g.log.Warn("checkouts deleted", "err", err)
			return Wipe(p.WorkRoot)
		},
	}
}

// ready is called by the agent's unit before it becomes the agent, again and again while the
// slot is parked. It returns why the slot takes no jobs, or "".
func (s *cleaner) ready(ctx context.Context, pid int) (string, error) {
	keep, err := s.procs.above(pid)
	if err != nil {
		return "", err
	}
	if s.starts.next(pid, time.Now()) { // not the process that waits while the slot is parked
		s.swept = false
	}
	s.running.Store(false)
	s.watched.Store(false)
	why, err := s.clean(ctx, keep, engineTime)
	if why == "" && err == nil {
		why = s.starts.wait(time.Now())
	}
	return why, err
}

// registered records for kbnode status when Buildkite accepted the agent.
func (s *cleaner) registered(_ context.Context, pid int) (string, error) {
	if _, err := s.procs.above(pid); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(s.runDir, slot.RegisteredName), nil, 0o644); err != nil { //nolint:gosec // an empty file that status reads
		return "", fmt.Errorf("record registration: %w", err)
	}
	return "", nil
}

// begin is called before a job. The slot is clean since the agent's start, or since the guard
// saw that the last job was gone, unless begin is called before that.
func (s *cleaner) begin(ctx context.Context, pid int) (string, error) {
	keep, err := s.procs.above(pid)
	if err != nil {
		return "", err
	}
	within, err1 := s.procs.within(keep)
	beside, err2 := s.procs.beside()
	outside, err3 := s.procs.outside()
	if err := errors.Join(err1, err2, err3); err != nil {
		return "", err
	}
	if n := len(within) + len(beside) + len(outside); n > 0 {
		s.log.Warn("processes outlived their job", "count", n)
		s.swept = false
	}
	why := ""
	if s.swept && s.looked {
		why, err = s.parked()
	} else {
		why, err = s.clean(ctx, keep, beginTime)
	}
	if why == "" && err == nil {
		s.swept, s.looked, s.said = false, false, ""
		s.starts.worked = true
		s.running.Store(true)
		s.alone.Store(-startLooks)
		s.watched.Store(true)
		s.strict.Store(false)
		s.compatible.Store(false)
		s.noise.begin()
	}
	return why, err
}

// end is called after a job, so that the job's log can say what is left of it. The caller may be
// the job itself, which goes on, so all of this is done again when the agent's process for the
// job, or the agent, is gone.
func (s *cleaner) end(ctx context.Context, pid int) (string, error) {
	keep, err := s.procs.above(pid)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	why, err := "", s.clear(ctx, keep, engineTime)
	s.swept = false
	if err == nil {
		why, err = s.parked()
	}
	return why, err
}

// endLook checks the GPU after the end of a job was answered: the driver takes longer than all
// the rest, and the job need not wait.
func (s *cleaner) endLook(ctx context.Context) {
	if _, err := s.look(ctx, gpuTime); err != nil {
		s.log.Warn("gpu not checked", "err", err)
	}
}

// ended does everything that follows a job whose end no one reported.
func (s *cleaner) ended(ctx context.Context, keep func(pid int) bool) (string, error) {
	s.swept = false
	return s.clean(ctx, keep, engineTime)
}

// clean removes what is left, checks the GPU, and returns why the slot is parked, or "". It
// retries the engine for the given time.
func (s *cleaner) clean(ctx context.Context, keep func(pid int) bool, engine time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	if !s.swept {
		if err := s.clear(ctx, keep, engine); err != nil {
			return "", err
		}
	}
	if !s.swept {
		return s.parked()
	}
	return s.look(ctx, gpuTime)
}

// clear removes what is left, and parks the slot if it cannot.
func (s *cleaner) clear(ctx context.Context, keep func(pid int) bool, engine time.Duration) error {
	s.running.Store(false)
	s.swept, s.looked = false, false
	s.sampled = s.noise.end()
	err := s.sweep(ctx, keep, engine)
	s.swept = err == nil
	return s.note(leftName, err)
}

// look checks the GPU, which has patience to become idle, and returns why the slot is parked, or
// "".
func (s *cleaner) look(ctx context.Context, patience time.Duration) (string, error) {
	if s.busy {
		patience = 0 // an earlier check waited already
	}
	s.looked = false
	if s.sampled != nil {
		s.sampled()
	}
	what, known := s.gpu.settle(ctx, patience)
	s.looked = true
	// An unknown state neither parks the slot nor ends a known reason.
	if known {
		s.busy = what != ""
		var err error
		if s.busy {
			err = errors.New(what)
		}
		if err := s.note(gpuName, err); err != nil {
			return "", err
		}
	}
	return s.parked()
}

// sweep ends the slot's processes except those to keep, removes its containers, and gives the
// checkouts back. The order matters: what could make containers goes first.
func (s *cleaner) sweep(ctx context.Context, keep func(pid int) bool, engine time.Duration) error {
	ended, err := s.procs.endWithin(ctx, keep)
	if err != nil {
		return err
	}
	removed, err := s.removeContainers(ctx, engine)
	if err != nil {
		return fmt.Errorf("its containers cannot be removed: %w", err)
	}
	beside, err := s.procs.endBeside(ctx)
	if err != nil {
		return err
	}
	outside, err := s.procs.endOutside(ctx)
	if err != nil {
		return err
	}
	if ended += beside + outside; ended+removed > 0 {
		s.log.Info("leftovers removed", "processes", ended, "containers", removed)
	}
	return s.checkouts(ctx)
}

func (s *cleaner) removeContainers(ctx context.Context, patience time.Duration) (n int, err error) {
	deadline := time.Now().Add(patience)
	for {
		if n, err = s.containers(ctx); err == nil || time.Now().After(deadline) {
			return n, err
		}
		if err := pause(ctx, gpuPoll); err != nil {
			return n, err
		}
	}
}

// note records a reason to park, or removes it if why is nil.
func (s *cleaner) note(name string, why error) error {
	if why == nil {
		return unpark(s.runDir, name)
	}
	fresh, err := park(s.runDir, name, why.Error())
	if fresh {
		s.log.Warn("slot parked", "reason", why)
	}
	return err
}

// parked returns all reasons why the slot takes no jobs, including those of others.
func (s *cleaner) parked() (string, error) {
	all, err := slot.ReadParked(s.runDir)
	var reasons []string
	for _, p := range all {
		reasons = append(reasons, p.Reason)
	}
	return strings.Join(reasons, "; "), err
}

// clear forgets all containers.
func (o *owners) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byID = nil
}
