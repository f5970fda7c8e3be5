package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// waitRegistered waits for the agents, and shows how many have registered.
func waitRegistered(ctx context.Context, s Streams, p *plan.Plan, host *reconcile.Host, deferred []reconcile.Change) error {
	w := newProgress(s)
	err := node.WaitRegistered(ctx, p, host, deferred, func(done, total int) {
		line := fmt.Sprintf("%d of %d agents registered", done, total)
		w.show(line, line)
	}, func(p plan.Slot, why string) {
		w.end(w.line)
		s.warn("slot %s is parked: %s", p.Name, why)
	})
	w.end(w.line)
	if late, ok := errors.AsType[*node.LateError](err); ok {
		s.warn("%v", late)
		return &exitError{code: exitNo}
	}
	return err
}
