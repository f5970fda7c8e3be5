package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// unfinished removes from a checkout a result.json that kbnode runner, or the engine
// before it, did not leave itself: a submission may write its own verdict, with runs that
// passed, and have them killed. The runner exits with 0 if its result says success and with
// 1 if not, also in a canceled job, and the engine's status tells as well. status is the
// job's, "" if no command ran, and "-1" if its end is unknown: then a canceled job keeps a
// result without runs. A file that is not a result belongs to another kind of job and stays.
func unfinished(checkout *os.Root, status string, canceled bool) error {
	if status == "0" {
		return nil
	}
	var fields map[string]json.RawMessage // by their exact names
	text, err := result.ReadFile(checkout, result.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = json.Unmarshal(text, &fields)
	}
	runs, isResult := fields["runs"]
	own := status == "1" || canceled && status == "-1" && string(runs) == "{}"
	if err == nil && (!isResult || string(fields["success"]) == "false" && own) {
		return nil
	}
	if err := tree.Remove(checkout, result.File); err != nil {
		return fmt.Errorf("remove unfinished %s: %w", result.File, err)
	}
	return nil
}
