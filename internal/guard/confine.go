package guard

import (
	"context"
	"net/http"
	"slices"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/confine"
)

// confiner keeps containers from what /sys and /proc have of other slots' devices:
// by AppArmor where the engine uses it, else by covering each file.
type confiner struct {
	armored  func(context.Context) (bool, error)   // the engine lists AppArmor
	confines func() bool                           // an engine that does also uses it
	ensure   func(context.Context) (string, error) // the profile's name, when the kernel has it
	sys      string                                // where /sys is
}

// confine adds to a container what keeps it from those files, and fails where
// nothing would.
func (f *confiner) confine(ctx context.Context, h *container.HostConfig) error {
	armored, err := f.armored(ctx)
	switch {
	case err != nil:
		return err
	case armored && f.confines():
		name, err := f.ensure(ctx)
		if err != nil {
			return refusal{http.StatusServiceUnavailable, "kbnode: no job may run: " + err.Error()}
		}
		h.SecurityOpt = append(h.SecurityOpt, "apparmor="+name)
		return nil
	}
	h.MaskedPaths, h.ReadonlyPaths, err = confine.Paths(f.sys)
	return err
}

// check says why a container that is about to start is not confined as one that
// is created now would be.
func (f *confiner) check(ctx context.Context, in inspected) error {
	var want container.HostConfig
	if err := f.confine(ctx, &want); err != nil {
		return err
	}
	if got := in.AppArmorProfile; len(want.SecurityOpt) > 0 && !slices.Contains(want.SecurityOpt, "apparmor="+got) {
		return forbid("the container has the AppArmor profile %.60q, not that of jobs; create it again", got)
	}
	if path := lacks(in.HostConfig.MaskedPaths, want.MaskedPaths); path != "" {
		return forbid("%s is not covered in the container; create it again", path)
	}
	if path := lacks(in.HostConfig.ReadonlyPaths, want.ReadonlyPaths); path != "" {
		return forbid("%s is not read-only in the container; create it again", path)
	}
	return nil
}

// lacks is the first of want that list has not.
func lacks(list, want []string) string {
	has := map[string]bool{}
	for _, path := range list {
		has[path] = true
	}
	for _, path := range want {
		if !has[path] {
			return path
		}
	}
	return ""
}
