// Package keeper clears away what is left of a job before the next one: its processes,
// containers and checkouts, and what it keeps on the GPU. It parks a slot that it cannot clear.
package keeper

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Config configures a Keeper.
type Config struct {
	Policy     plan.JobPolicy
	UID, GID   int    // of the slot's user
	CgroupRoot string // such as /sys/fs/cgroup
	Log        *slog.Logger
	// Containers removes the slot's containers, and returns how many there were.
	Containers func(context.Context) (int, error)
	// Tidy makes the slot's disk ready for the next job.
	Tidy func(context.Context) error
}

// CallerError means that a call came from a process that may not send it.
type CallerError struct{ Text string }

func (e *CallerError) Error() string { return e.Text }

// ErrNoRecord means that no job has begun since the keeper started.
var ErrNoRecord = errors.New("no record: the guard did not see a job begin; it may have started later")

// Keeper removes what jobs leave, as root, and parks the slot with a reason if it cannot. A job is over
// when the agent's unit has no process for it any more.
type Keeper struct {
	runDir string
	procs  slotProcs
	gpu    gpuWatches
	// containers removes the slot's containers; checkouts gives back the checkouts.
	containers func(context.Context) (int, error)
	checkouts  func(context.Context) error
	noise      *recorder // nil keeps no record
	log        *slog.Logger

	mu      sync.Mutex
	starts  starts
	running bool   // a job began, and the slot was not cleared since
	swept   bool   // nothing is left of the last job, except perhaps on the GPU
	looked  bool   // the GPU was checked since
	busy    bool   // the GPU was in use at the last successful check
	sampled func() // waits until nothing samples the GPU any more; nil without a job

	strict, compatible atomic.Bool // the job has made a container of this profile

	startedMu sync.Mutex
	started   []noise.Container // of the job, each kind once
}

// New returns the keeper of one slot.
func New(c Config) *Keeper {
	p := c.Policy
	procs := newSlotProcs(c.CgroupRoot, p)
	return &Keeper{
		runDir: filepath.Dir(p.Socket), procs: procs, gpu: newGPUWatches(p, procs, c.Log), log: c.Log,
		noise:      newRecorder(p, procs),
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

// NoAgent stands for the process of a job that root runs without an agent, such as kbnode selftest's.
// No process has this number.
const NoAgent = -1

// ErrBusy means that the slot is not free for a job of root's.
var ErrBusy = errors.New("the slot has a job, which goes first")

// Ready is called by the agent's unit, as root, before it becomes the agent. It clears the slot, and
// returns why the slot takes no jobs, or "".
func (k *Keeper) Ready(ctx context.Context, pid int) (parked string, err error) {
	return k.do(ctx, pid, k.ready)
}

// Registered records that Buildkite accepted the agent.
func (k *Keeper) Registered(ctx context.Context, pid int) error {
	_, err := k.do(ctx, pid, k.registered)
	return err
}

// Begin is called before a job, by the agent's process for it or for NoAgent. It returns why the slot
// is parked, or "".
func (k *Keeper) Begin(ctx context.Context, pid int) (parked string, err error) {
	if pid == NoAgent {
		return k.do(ctx, pid, k.lend)
	}
	return k.do(ctx, pid, k.begin)
}

// do does one step at a time. What was begun goes on if ctx, the caller's, ends.
func (k *Keeper) do(ctx context.Context, pid int, step func(context.Context, int) (string, error)) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err // the caller went away while it waited
	}
	if pid != NoAgent {
		if err := k.procs.ofAgent(pid); err != nil {
			return "", err
		}
	}
	return step(context.WithoutCancel(ctx), pid)
}
