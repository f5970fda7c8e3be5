package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// The service's files in slot.ParkedDir.
const (
	leftName = "left" // what a job left
	gpuName  = "gpu"  // what uses the GPU
)

const (
	// cleanTime bounds one cleanup; containers have five seconds to stop.
	cleanTime = 3 * time.Minute
	// retryTime is how long to retry an engine that does not answer: it may be restarting.
	retryTime = 5 * time.Second
	// beginTime is retryTime before a job: waiting is better for it than being refused because
	// an earlier job's containers end slowly.
	beginTime = 2 * time.Minute
)

func (k *cleaner) clearForAgent(ctx context.Context, pid int) (string, error) {
	if k.starts.next(pid, time.Now()) { // not the process that waits while the slot is parked
		k.swept = false
	}
	why, err := k.clean(ctx, retryTime)
	if why == "" && err == nil {
		why = k.starts.wait(time.Now())
	}
	return why, err
}

// beginJob finds the slot clean since the agent's start, or since the guard saw that the last job was
// gone, unless it is called before that.
func (k *cleaner) beginJob(ctx context.Context, _ int) (string, error) {
	beside, err := k.procs.outsideAgent()
	if err != nil {
		return "", err
	}
	if n := len(beside); n > 0 {
		k.log.Warn("processes outlived their job", "count", n)
		k.swept = false
	}
	why := ""
	if k.swept && k.checked {
		why, err = k.parked()
	} else {
		why, err = k.clean(ctx, beginTime)
	}
	if why == "" && err == nil {
		k.swept, k.checked = false, false
		k.starts.worked = true
		k.running = true
		k.noise.begin()
	}
	return why, err
}

// beginRoot gives a slot whose agent has no job to root. What root runs is cleared away before the agent's
// next job.
func (k *cleaner) beginRoot(ctx context.Context, _ int) (string, error) {
	runs, err := k.afterJob(ctx)
	if runs && err == nil {
		err = errBusy
	}
	if err != nil {
		return "", err
	}
	why, err := k.parked()
	if why == "" && err == nil {
		k.swept, k.checked = false, false
	}
	return why, err
}

// clean removes what is left, checks the GPU, and returns why the slot is parked, or "". It
// retries the engine for the given time.
func (k *cleaner) clean(ctx context.Context, engine time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	k.running = false
	if !k.swept {
		k.checked = false
		k.sampled = k.noise.end()
		err := k.sweep(ctx, engine)
		k.swept = err == nil
		why := ""
		if err != nil {
			why = err.Error()
		}
		if err := k.note(leftName, why); err != nil {
			return "", err
		}
	}
	if !k.swept {
		return k.parked()
	}
	return k.checkGPU(ctx, gpuTime)
}

// checkGPU checks the GPU, which has patience to become idle, and returns why the slot is parked, or
// "".
func (k *cleaner) checkGPU(ctx context.Context, patience time.Duration) (string, error) {
	if k.busy {
		patience = 0 // an earlier check waited already
	}
	k.checked = false
	if k.sampled != nil {
		k.sampled()
	}
	what, known := k.gpu.settle(ctx, patience)
	k.checked = true
	// An unknown state neither parks the slot nor ends a known reason.
	if known {
		k.busy = what != ""
		if err := k.note(gpuName, what); err != nil {
			return "", err
		}
	}
	return k.parked()
}

// sweep removes the slot's containers, ends what is left of them, and removes the checkouts. The order
// matters: what could make processes goes first.
func (k *cleaner) sweep(ctx context.Context, engine time.Duration) error {
	removed, err := k.removeContainers(ctx, engine)
	if err != nil {
		return fmt.Errorf("its containers cannot be removed: %w", err)
	}
	ended, err := k.procs.endBeside(ctx)
	if err != nil {
		return err
	}
	if ended+removed > 0 {
		k.log.Info("leftovers removed", "processes", ended, "containers", removed)
	}
	return k.tidy(ctx)
}

func (k *cleaner) removeContainers(ctx context.Context, patience time.Duration) (n int, err error) {
	deadline := time.Now().Add(patience)
	for {
		if n, err = k.containers(ctx); err == nil || time.Now().After(deadline) {
			return n, err
		}
		if err := limit.Sleep(ctx, gpuPoll); err != nil {
			return n, err
		}
	}
}

// note records a reason to park, or removes it if there is none.
func (k *cleaner) note(name, why string) error {
	if why == "" {
		return unpark(k.runDir, name)
	}
	fresh, err := park(k.runDir, name, why)
	if fresh {
		k.log.Warn("slot parked", "reason", why)
	}
	return err
}

// parked returns all reasons why the slot takes no jobs, including those of others.
func (k *cleaner) parked() (string, error) {
	all, err := slot.ReadParked(k.runDir)
	var reasons []string
	for _, p := range all {
		reasons = append(reasons, p.Reason)
	}
	return strings.Join(reasons, "; "), err
}

// park records a reason. fresh is false if the same reason was there. A reason that only changes
// its words keeps its time.
func park(runDir, name, reason string) (fresh bool, err error) {
	file := filepath.Join(runDir, slot.ParkedDir, name+".json")
	p := slot.Parked{Reason: reason, Since: time.Now().UTC().Truncate(time.Second)}
	if before, err := slot.ReadReason(file); err == nil {
		if before.Reason == reason {
			return false, nil
		}
		p.Since = before.Since
	}
	text, err := json.Marshal(p)
	if err == nil {
		// Status reads it without root.
		err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Chmod(filepath.Dir(file), 0o755)) //nolint:gosec // see above
	}
	if err == nil {
		err = renameio.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return false, fmt.Errorf("write why the slot is parked: %w", err)
	}
	return true, nil
}

// unpark removes a reason.
func unpark(runDir, name string) error {
	if err := ignoreAbsent(os.Remove(filepath.Join(runDir, slot.ParkedDir, name+".json"))); err != nil {
		return fmt.Errorf("remove why the slot was parked: %w", err)
	}
	return nil
}
