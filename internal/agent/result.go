package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/result"
)

// finished makes sure that a slot's job uploads no result that it did not finish.
func finished(k int, checkout string, log *slog.Logger) error {
	at, err := checkoutDir(k, checkout)
	if err != nil {
		return fmt.Errorf("nothing is uploaded: %w", err)
	}
	status := os.Getenv("BUILDKITE_COMMAND_EXIT_STATUS")
	removed, err := unfinished(at, status, os.Getenv("BUILDKITE_JOB_CANCELLED") == "true")
	if err != nil {
		return fmt.Errorf("nothing is uploaded: %w", err)
	}
	if removed {
		log.Warn("result.json removed: the job ended before kbnode runner could write it", "slot", plan.SlotName(k), "exit_status", status)
	}
	return nil
}

// unfinished removes from a checkout a result.json that kbnode runner, or the engine
// before it, did not leave itself: a submission may write its own verdict and kill them.
// The runner exits with 0 if its result says success and with 1 if not, and the engine's
// status tells as well. status is the job's, "" if no command ran. A file that is not a
// result belongs to another kind of job and stays. unfinished reports whether it removed
// one.
func unfinished(checkout, status string, cancelled bool) (bool, error) {
	if status == "0" {
		return false, nil
	}
	root, err := os.OpenRoot(checkout)
	if err != nil {
		return false, err
	}
	defer root.Close()                    //nolint:errcheck // a directory
	var fields map[string]json.RawMessage // by their exact names
	text, err := result.ReadFile(root, result.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err == nil:
		err = json.Unmarshal(text, &fields)
	}
	_, isResult := fields["runs"]
	if err == nil && (!isResult || string(fields["success"]) == "false" && (status == "1" || cancelled)) {
		return false, nil
	}
	if err := root.RemoveAll(result.File); err != nil {
		return false, fmt.Errorf("remove unfinished %s: %w", result.File, err)
	}
	return true, nil
}
