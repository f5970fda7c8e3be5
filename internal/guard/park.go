package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
		err = publicDir(filepath.Dir(file))
	}
	if err == nil {
		err = renameio.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return false, fmt.Errorf("write why the slot is parked: %w", err)
	}
	return true, nil
}

// publicDir makes a directory that everyone can read, as status does without root.
func publicDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // see above
		return err
	}
	return os.Chmod(dir, 0o755) //nolint:gosec // see above
}

// unpark removes a reason.
func unpark(runDir, name string) error {
	err := os.Remove(filepath.Join(runDir, slot.ParkedDir, name+".json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove why the slot was parked: %w", err)
	}
	return nil
}
