package doctor

import (
	"context"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// ofLimits reports whether a change is of the limits of a running slice.
func (m *Machine) ofLimits(c reconcile.Change) bool {
	return (c.Kind == reconcile.Set || c.Kind == reconcile.Partition) && m.State.Units[c.Subject].Running()
}

func slotLimits(_ context.Context, m *Machine) Answer {
	all := m.drift(func(c reconcile.Change) bool { return c.Kind == reconcile.Set && m.ofLimits(c) })
	return otherwise(all, ok("%d slices", len(m.Plan.Slices)))
}
