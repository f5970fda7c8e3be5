package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// waitRegistered waits for the agents, and shows how many have registered.
func waitRegistered(ctx context.Context, s Streams, p *plan.Plan, host *reconcile.Host, deferred []reconcile.Change) error {
	w := &waiting{progress: newProgress(s)}
	err := node.WaitRegistered(ctx, p, host, deferred, w)
	w.end(w.line)
	if late, ok := errors.AsType[*node.LateError](err); ok {
		s.warn("%v", late)
		return &exitError{code: exitNo}
	}
	return err
}

// waiting shows how many agents have registered.
type waiting struct{ *progress }

// Registered implements node.Waiting.
func (w *waiting) Registered(done, total int) {
	line := fmt.Sprintf("%d of %d agents registered", done, total)
	w.show(line, line)
}

// Parked implements node.Waiting.
func (w *waiting) Parked(p plan.Slot, why string) {
	w.end(w.line)
	w.s.warn("slot %s is parked: %s", p.Name, why)
}

// Failed implements node.Waiting.
func (w *waiting) Failed(err error) { w.s.logger().Debug("agents not checked", "err", err) }

func slotNames(slots []plan.Slot) string {
	names := make([]string, len(slots))
	for i, s := range slots {
		names[i] = s.Name
	}
	return strings.Join(names, ", ")
}
