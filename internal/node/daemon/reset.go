package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gpu-mode/kbnode/internal/node/reconcile"
)

// resetsPath stores an operator's report that GPUs were reset, until the daemon has judged
// by it. Like the resets, it does not outlive the boot.
const resetsPath = "/run/kbnode/mended.json"

// returnsPath likewise stores that an operator returns GPUs to service despite their faults.
const returnsPath = "/run/kbnode/returned.json"

// ReportReset reports to the daemon that GPUs, by UUID or PCI address, were reset by hand at a
// time, by health.Moment.Up. The caller must hold the node's lock.
func ReportReset(root string, gpus []string, at time.Duration) error {
	return report(root, resetsPath, gpus, at)
}

// ReportReturn likewise reports that GPUs may take jobs despite their faults.
func ReportReturn(root string, gpus []string, at time.Duration) error {
	return report(root, returnsPath, gpus, at)
}

func report(root, path string, gpus []string, at time.Duration) error {
	all, err := readReports(root, path)
	if err != nil || all == nil {
		all = map[string]time.Duration{} // reports that cannot be read are replaced
	}
	for _, id := range gpus {
		all[id] = at
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(root, path), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("report repaired GPUs: %w", err)
	}
	return nil
}

// reports are those of an operator that were judged.
type reports struct{ resets, returns map[string]time.Duration }

// answer removes the reports that were judged and that the pass has not removed, when it is over. err is why it failed.
func (d *daemonLoop) answer(err error) {
	if len(d.judged.resets)+len(d.judged.returns) == 0 || errors.As(err, new(*reconcile.LockedError)) {
		return // nothing is written while another kbnode works
	}
	release, err := (&reconcile.Host{Root: d.Root}).Lock() // no report comes in between
	if err != nil {
		return // the next pass tries again
	}
	defer release()
	d.removeJudged()
}

// removeJudged removes the reports that were judged, once what follows is written as far as that can be: kbnode resume waits
// for that, and then says whether its slots take jobs. The caller must hold the node's lock.
func (d *daemonLoop) removeJudged() {
	if err := errors.Join(removeReports(d.Root, resetsPath, d.judged.resets), removeReports(d.Root, returnsPath, d.judged.returns)); err != nil {
		d.Log.Warn("list of repaired GPUs not removed", "err", err)
	}
	d.judged = reports{}
}

// ReportPending reports whether the daemon has yet to judge by a report of ReportReset or ReportReturn.
func ReportPending(root string) bool {
	return slices.ContainsFunc([]string{resetsPath, returnsPath}, func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	})
}

func readReports(root, path string) (map[string]time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all map[string]time.Duration
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read repaired GPUs: %w", err)
	}
	return all, nil
}

// removeReports removes the reports that were judged, unless there are new ones.
func removeReports(root, path string, judged map[string]time.Duration) error {
	now, err := readReports(root, path)
	if err != nil || len(judged) == 0 || !maps.Equal(now, judged) {
		return err
	}
	return os.Remove(filepath.Join(root, path))
}
