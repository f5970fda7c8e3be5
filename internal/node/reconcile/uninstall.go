package reconcile

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// pollJobs is how often Uninstall looks at jobs that it waits for.
const pollJobs = 2 * time.Second

// Uninstall removes everything of kbnode's from the machine, but not BackupDir. It waits for running jobs as long as ctx allows, unless Now is set. The caller
// must hold the lock. waiting, if not nil, is called with the jobs that it waits for,
// again when they change.
func (h *Host) Uninstall(ctx context.Context, waiting func(jobs []string)) (Result, error) {
	nothing := &plan.Plan{}
	var all Result
	reported := ""
	for {
		s, err := h.Observe(ctx, nothing)
		if err != nil {
			return all, err
		}
		changes := Diff(nothing, s)
		if len(changes) == 0 {
			return all, nil
		}
		r, err := h.Apply(ctx, nothing, s, changes)
		all.Applied = append(all.Applied, r.Applied...)
		all.Warnings = append(all.Warnings, r.Warnings...)
		all.Deferred = r.Deferred
		if err != nil {
			return all, err
		}
		if len(r.Deferred) == 0 {
			if len(r.Applied) == 0 {
				return all, fmt.Errorf("uninstall does not finish: %s", changes[0])
			}
			continue // what systemd reports now may leave more to do
		}
		jobs := s.Busy()
		if list := strings.Join(jobs, ", "); waiting != nil && list != reported && len(jobs) > 0 {
			reported = list
			waiting(jobs)
		}
		if err := h.sleep(ctx, pollJobs); err != nil {
			return all, fmt.Errorf("waited for %s: %w; run uninstall again, or with --now to stop it", strings.Join(jobs, ", "), err)
		}
	}
}

func (h *Host) sleep(ctx context.Context, d time.Duration) error {
	if h.Sleep != nil {
		return h.Sleep(ctx, d)
	}
	return limit.Sleep(ctx, d)
}
