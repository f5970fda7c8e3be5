package reconcile

import (
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// WriteDrains saves which slots take no jobs. The caller must hold the node's lock. The
// next Apply changes the machine itself.
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
