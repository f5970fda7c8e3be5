// Package keeper clears away what is left of a job before the next one: its processes,
// containers and checkouts, and what it keeps on the GPU. It ends a job that does not end by
// itself, and parks a slot that it cannot clear.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Config configures a Keeper.
type Config struct {
	Policy     plan.JobPolicy
	UID, GID   int    // of the slot's user
	CgroupRoot string // such as /sys/fs/cgroup
	Log        *slog.Logger
	// MainPID returns the process of the agent's unit, 0 without one. Nil means unknown.
	MainPID func(context.Context) (int, error)
	// Containers removes the slot's containers, and returns how many there were.
	Containers func(context.Context) (int, error)
	// Tidy makes the slot's disk ready for the next job.
	Tidy func(context.Context) error
}

// CallerError means that a report came from a process that may not send it.
type CallerError struct{ Text string }

func (e *CallerError) Error() string { return e.Text }

// ErrNoRecord means that no job has begun since the keeper started.
var ErrNoRecord = errors.New("no record: the guard did not see a job begin; it may have started later")

// Keeper removes what jobs leave, as root, and parks the slot with a reason if it cannot. Jobs
// on the host run as the same user that reports their begin and end, so a report can do no more
// than end the slot's own processes sooner. The Keeper trusts two things: that an agent's
// process is gone, and root's report that the next agent is about to start.
type Keeper struct {
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

	startedMu sync.Mutex
	started   []noise.Container // of the job, each kind once

	// A job that began is watched until the agent has no process for it: the one that reports
	// its end may have been killed, or never started.
	watched atomic.Bool
	alone   atomic.Int32 // consecutive checks that found the agent without a job; see endLooks
}

// New returns the keeper of one slot.
func New(c Config) *Keeper {
	p := c.Policy
	procs := newSlotProcs(c.CgroupRoot, p)
	procs.uid = c.UID
	return &Keeper{
		runDir: filepath.Dir(p.Socket), procs: procs, gpu: newGPUWatches(p, procs, c.Log), mainPID: c.MainPID, log: c.Log,
		noise: newRecorder(p, procs), limit: time.Duration(p.TimeLimitSeconds) * time.Second,
		containers: c.Containers,
		checkouts: func(ctx context.Context) error {
			if err := c.Tidy(ctx); err != nil {
				return err
			}
			err := disk.Reclaim(ctx, p.WorkRoot, c.UID, c.GID)
			if err == nil {
				return nil
			}
			// Checkouts that cannot be given back in time are too large to keep.
			c.Log.Warn("checkouts deleted", "err", err)
			return disk.Wipe(p.WorkRoot)
		},
	}
}

// Watch ends jobs that take too long or all tasks, and cleans up after those whose end no one
// reports, until ctx is done.
func (k *Keeper) Watch(ctx context.Context) {
	go k.watchTasks(ctx)
	k.watchEnd(ctx)
}

// Thaw continues the agent's unit, which an earlier keeper may have left frozen.
func (k *Keeper) Thaw() error { return k.procs.thaw() }

// NoAgent stands for the process of a job that root runs without an agent, such as kbnode selftest's.
// No process has this number.
const NoAgent = -1

// ErrBusy means that the slot is not free for a job of root's.
var ErrBusy = errors.New("the slot has a job, which goes first")

// Report handles a report of the slot's agent, such as slot.BeginPath, from a process. It
// returns why the slot is parked, or calls answer with a message for the job's log, which may be
// "". What was begun goes on if ctx, the reporter's, ends.
func (k *Keeper) Report(ctx context.Context, report string, pid int, answer func(message string)) (parked string, err error) {
	stage := map[string]func(context.Context, int) (string, error){
		slot.ReadyPath: k.ready, slot.RegisteredPath: k.registered, slot.BeginPath: k.begin, slot.EndPath: k.end,
	}[report]
	if stage == nil {
		return "", fmt.Errorf("%q is not a report", report)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err // the reporter went away while it waited
	}
	ctx = context.WithoutCancel(ctx)
	if parked, err = stage(ctx, pid); parked != "" || err != nil {
		return parked, err
	}
	message := k.said
	k.said = ""
	answer(message)
	if report == slot.EndPath {
		k.endLook(ctx)
	}
	return "", nil
}
