package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/slot"
)

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
