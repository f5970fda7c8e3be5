package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// LookAgain reads and plans again after a time without the lock. load loads the configuration. Only
// conflicts that were agreed to may be replaced.
func (n *Node) LookAgain(ctx context.Context, host *reconcile.Host, load func() error, agreed []string) (*reconcile.State, []reconcile.Change, error) {
	if err := load(); err != nil {
		return nil, nil, err
	}
	if err := n.Read(ctx); err != nil {
		return nil, nil, err
	}
	if err := n.MakePlan(); err != nil {
		return nil, nil, err
	}
	host.GPUs = n.Inventory.GPUs
	state, err := host.Observe(ctx, n.Plan)
	if err != nil {
		return nil, nil, err
	}
	changes := reconcile.Diff(n.Plan, state)
	return state, changes, onlyAgreed(changes, agreed)
}

func onlyAgreed(changes []reconcile.Change, agreed []string) error {
	more := slices.DeleteFunc(reconcile.Conflicts(changes), func(path string) bool { return slices.Contains(agreed, path) })
	if len(more) > 0 {
		return fmt.Errorf("%s: appeared after you confirmed, and nothing was changed; run kbnode install again", strings.Join(more, ", "))
	}
	return nil
}
