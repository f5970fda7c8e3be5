package doctor

import (
	"context"
	"errors"

	"github.com/gpu-mode/kbnode/internal/machine/hook"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// slotHooks checks the files of the site's hooks. Whether they succeed is in slot-parked.
func slotHooks(_ context.Context, m *Machine) Answer {
	if m.Config.Job.Prolog+m.Config.Job.Epilog == "" {
		return none("the configuration has none (job.prolog, job.epilog)")
	}
	var all []Finding
	for _, p := range hook.Problems(m.Root, m.Config.Job) {
		f := fail("%s", p).Advise("see job.prolog in %s, and %ssecurity.md for what a hook must be", plan.ConfigPath, Pages)
		if file, ok := errors.AsType[*hook.FileError](p.Err); ok {
			f.Detail = p.Key + ": " + file.Why
			if file.Fix != "" {
				f = f.By("%s", file.Fix)
			}
		}
		all = append(all, f)
	}
	return foundOr(all, ok("only root can change them"))
}

// ofHooks reports whether a warning of the plan is one that slotHooks reports.
func (m *Machine) ofHooks(warning string) bool {
	if m.Recorded != "" || m.Config == nil {
		return false
	}
	for _, p := range hook.Problems(m.Root, m.Config.Job) {
		if warning == p.String() {
			return true
		}
	}
	return false
}
