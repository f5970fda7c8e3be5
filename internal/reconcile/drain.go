package reconcile

import (
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// WriteDrains keeps which slots are to take no jobs. The node's lock must be
// held; the change of the machine itself is the next Apply's.
func (h *Host) WriteDrains(drains []plan.Drain) error {
	text, err := plan.RenderDrains(drains)
	if err != nil {
		return err
	}
	if err := h.write(plan.DrainsPath, 0o644, owner{0, 0}, strings.NewReader(text), nil); err != nil {
		return fmt.Errorf("write %s: %w", plan.DrainsPath, err)
	}
	return nil
}
