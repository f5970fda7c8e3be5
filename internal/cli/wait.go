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
	w := &waiting{s: s, width: cursor(s.Err)}
	err := node.WaitRegistered(ctx, p, host, deferred, w)
	w.end()
	if late, ok := errors.AsType[*node.LateError](err); ok {
		s.warn("%v", late)
		return &exitError{code: exitNo}
	}
	return err
}

// waiting shows how many agents have registered, on one line of a terminal.
type waiting struct {
	s     Streams
	width int
	open  bool // the line is being rewritten
}

func (w *waiting) end() {
	if w.open {
		printf(w.s.Err, "\n")
		w.open = false
	}
}

// Registered implements node.Waiting.
func (w *waiting) Registered(done, total int) {
	if w.width > 0 {
		w.open = true
		rewriteLine(w.s.Err, w.width, fmt.Sprintf("  %d of %d agents registered", done, total))
		return
	}
	w.s.progress("%d of %d agents registered", done, total)
}

// Parked implements node.Waiting.
func (w *waiting) Parked(p plan.Slot, why string) {
	w.end()
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
