package cli

import (
	"fmt"
	"slices"

	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/text"
)

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
	files := text.Plural(len(adopts), "file", "files")
	return s.confirm(fmt.Sprintf("Replace %d %s and keep backups?", len(adopts), files),
		fmt.Sprintf("%d %s of an earlier setup would be replaced, with backups; add --yes to confirm", len(adopts), files))
}
