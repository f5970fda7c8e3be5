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

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// guard's files in slot.ParkedDir.
const (
	leftName = "left" // what a job left
	gpuName  = "gpu"  // what uses the GPU
)

const (
	// cleanTime bounds one try to remove containers, which have five seconds to stop. Each step has a limit of its
	// own: what takes long leaves the others their time.
	cleanTime = 3 * time.Minute
	// retryTime is how long to retry an engine that does not answer: it may be restarting.
	retryTime = 5 * time.Second
	// beginTime is retryTime before a job: waiting is better for it than being refused because
	// an earlier job's containers end slowly.
	beginTime = 2 * time.Minute
)

// unknownGPU is why a slot takes no jobs whose GPU could not be looked at since the last one.
const unknownGPU = "it is not known whether a job still uses the GPU, because its driver does not say; the slot takes jobs again when it does; if it does not, reboot"

// clean removes what is left, checks the GPU, and returns why the slot is parked, or "". It retries the engine for the
// given time. What was begun goes on if ctx ends.
func (g *guard) clean(ctx context.Context, engine time.Duration) (string, error) {
	ctx = context.WithoutCancel(ctx)
	begins := !g.cleared()
	if begins {
		why := ""
		err := g.sweep(ctx, engine)
		if err != nil {
			why = err.Error()
		}
		if noteErr := g.note(leftName, why); noteErr != nil {
			return "", noteErr
		}
		if err != nil {
			return g.parked()
		}
		settled, err := g.settleHooks(ctx, true) // before the look at the GPU, which they may use
		if err != nil {
			return "", err
		}
		if !settled {
			return g.parked()
		}
	}
	_, err := os.Lstat(filepath.Join(g.runDir(), slot.ParkedDir, gpuName+".json"))
	busy, patience := err == nil, gpuTime
	if busy {
		patience = 0 // an earlier check waited already
	}
	what, known := g.gpu.settle(ctx, patience)
	// An unknown state ends no known reason. After a job it is one.
	if !known && begins && !busy {
		what, known = unknownGPU, true
	}
	if known {
		if err := g.note(gpuName, what); err != nil {
			return "", err
		}
	}
	if begins {
		if err := g.setCleared(true); err != nil {
			return "", err
		}
	}
	return g.parked()
}

// sweep removes the slot's containers, ends what is left of one, and removes the checkouts. The order
// matters: what could make processes goes first, unless a process keeps the engine from removing it.
func (g *guard) sweep(ctx context.Context, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	remove := func() error {
		ctx, cancel := context.WithTimeout(ctx, cleanTime)
		defer cancel()
		return g.remove(ctx)
	}
	err := remove()
	if err != nil {
		err = g.procs.freeing(remove)
	}
	for err != nil && time.Now().Before(deadline) && limit.Sleep(ctx, gpuPoll) == nil {
		err = remove()
	}
	if err != nil {
		return fmt.Errorf("its container cannot be removed: %w", err)
	}
	ended, err := g.procs.endBeside(ctx)
	if err != nil {
		return err
	}
	if ended > 0 {
		g.log.Info("leftovers removed", "processes", ended)
	}
	return g.tidy()
}

// note records a reason to park, or removes it if there is none.
func (g *guard) note(name, why string) error {
	if why == "" {
		return unpark(g.runDir(), name)
	}
	fresh, err := park(g.runDir(), name, why)
	if fresh {
		g.log.Warn("slot parked", "reason", why)
	}
	return err
}

// parked returns all reasons why the slot takes no jobs, including those of others.
func (g *guard) parked() (string, error) {
	all, err := slot.ReadParked(g.runDir())
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
