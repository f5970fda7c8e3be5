package agent

import (
	"context"
	"log/slog"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// Hook runs a hook of slot k's agent, as the slot's user.
func Hook(ctx context.Context, name string, k int, log *slog.Logger) error {
	if name != "agent-startup" {
		return oldHook(ctx, name, k)
	}
	// If this hook failed, the agent would exit although it can work.
	if err := notifyGuard(ctx, plan.SocketPath(k), slot.RegisteredPath); err != nil {
		log.Warn("registration not noted; status shows the agent as not registered", "slot", plan.SlotName(k), "err", err)
	}
	return nil
}
