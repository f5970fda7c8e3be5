package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// lookAgain reads and plans again after a time without the lock. Only what was agreed to may be
// replaced.
func lookAgain(ctx context.Context, s Streams, m *machine, host *reconcile.Host, f *installFlags, agreed []string) (*reconcile.State, []reconcile.Change, error) {
	if err := m.loadConfig(&f.wishes, os.Getenv); err != nil {
		return nil, nil, err
	}
	if err := m.read(ctx, s.logger()); err != nil {
		return nil, nil, err
	}
	if err := m.think(); err != nil {
		return nil, nil, err
	}
	host.GPUs = m.inv.GPUs
	state, err := host.Observe(ctx, m.plan)
	if err != nil {
		return nil, nil, err
	}
	changes := reconcile.Diff(m.plan, state)
	return state, changes, onlyAgreed(changes, agreed)
}

func onlyAgreed(changes []reconcile.Change, agreed []string) error {
	more := slices.DeleteFunc(reconcile.Conflicts(changes), func(path string) bool { return slices.Contains(agreed, path) })
	if len(more) > 0 {
		return fmt.Errorf("%s: appeared after you confirmed, and nothing was changed; run kbnode install again", strings.Join(more, ", "))
	}
	return nil
}

// confirmAdopt asks before files that are not kbnode's are replaced.
func confirmAdopt(s Streams, f *installFlags, changes []reconcile.Change) error {
	paths := reconcile.Conflicts(changes)
	if len(paths) > 0 && !f.adopt {
		return &reconcile.ConflictError{Paths: paths}
	}
	if len(paths) == 0 || f.yes {
		return nil
	}
	adopts := slices.DeleteFunc(slices.Clone(changes), func(c reconcile.Change) bool { return c.Kind != reconcile.Adopt })
	printChanges(s.Err, adopts)
	files := plural(len(adopts), "file", "files")
	return s.confirm(fmt.Sprintf("Replace %d %s and keep backups?", len(adopts), files),
		fmt.Sprintf("%d %s of an earlier setup would be replaced, with backups; add --yes to confirm", len(adopts), files))
}
