package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// How long a hook waits for the guard. The hook that ends a canceled job is killed with
// the job, and the guard continues alone.
const (
	beginTime = 4 * time.Minute
	endTime   = 25 * time.Second
)

// Hook runs a hook as the slot's user, inside the agent's job.
func Hook(ctx context.Context, name string, k int, log *slog.Logger) error {
	switch name {
	case "agent-startup":
		// If this hook failed, the agent would exit although it can work.
		if _, err := tell(ctx, plan.SocketPath(k), slot.RegisteredPath); err != nil {
			log.Warn("registration not noted; status shows the agent as not registered", "slot", plan.SlotName(k), "err", err)
		}
		return nil
	case "pre-bootstrap":
		return begin(ctx, k, os.Getenv("BUILDKITE_ENV_FILE"))
	case "pre-artifact":
		checkout := os.Getenv("BUILDKITE_BUILD_CHECKOUT_PATH")
		// First, because this ends anything that could put links back.
		rec, recErr := record(ctx, plan.SocketPath(k))
		n, err := artifacts(ctx, k, checkout, os.Getenv("BUILDKITE_ARTIFACT_PATHS"))
		if n > 0 {
			log.Warn("links and special files removed from the checkout", "slot", plan.SlotName(k), "count", n)
		}
		if err == nil {
			err = finished(k, checkout, log)
		}
		if recErr == nil && err == nil {
			recErr = keepRecord(k, checkout, rec)
		}
		if recErr != nil { // the job's result is as good without it
			log.Warn("no node.json", "slot", plan.SlotName(k), "err", recErr)
		}
		return err
	case "pre-exit":
		end(ctx, k, log)
		return nil
	default:
		return fmt.Errorf("%q is not a hook; use agent-startup, pre-bootstrap, pre-artifact or pre-exit", name)
	}
}

// begin lets a job begin if nothing of an earlier one is left and its own variables do
// not affect the host.
func begin(ctx context.Context, k int, envFile string) error {
	ctx, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	if _, err := tell(ctx, plan.SocketPath(k), slot.BeginPath); err != nil {
		return fmt.Errorf("the job is refused: slot %s cannot run it: %w", plan.SlotName(k), err)
	}
	// Only now is no one left who could write more.
	if err := leftovers(k, os.Getuid(), false).remove(); err != nil {
		return fmt.Errorf("the job is refused: %w", err)
	}
	return admit(envFile, plan.AgentDir(k)+"/buildkite-agent.cfg")
}

// end clears away what a job left. Leftovers do not fail the job that has ended: the slot
// is parked, and the job's log says why.
func end(ctx context.Context, k int, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	says, err := tell(ctx, plan.SocketPath(k), slot.EndPath)
	if says != "" {
		log.Warn("job did not end on its own", "slot", plan.SlotName(k), "reason", says)
	}
	if parked, ok := errors.AsType[*parkedError](err); ok {
		log.Warn("slot takes no more jobs", "slot", plan.SlotName(k), "reason", parked.reason)
	} else if err != nil {
		log.Warn("slot may not be clean; it will be before the next job", "slot", plan.SlotName(k), "err", err)
	}
	if err := leftovers(k, os.Getuid(), true).remove(); err != nil {
		log.Warn("files left behind", "slot", plan.SlotName(k), "err", err)
	}
}
