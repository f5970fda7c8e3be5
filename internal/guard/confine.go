package guard

import (
	"context"
	"net/http"
	"slices"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/confine"
)

// confiner keeps containers away from what /sys and /proc have of other slots' devices: with
// AppArmor if the engine uses it, otherwise by covering each file.
type confiner struct {
	armored  func(context.Context) (bool, error)   // reports whether the engine lists AppArmor
	confines func() bool                           // reports whether such an engine uses it
	ensure   func(context.Context) (string, error) // loads the profile if needed; returns its name
	sys      string                                // where /sys is mounted
}

// confine adds to a container what keeps it away from those files, and fails if nothing would.
func (f *confiner) confine(ctx context.Context, h *container.HostConfig) error {
	armored, err := f.armored(ctx)
	switch {
	case err != nil:
		return err
	case armored && f.confines():
		name, err := f.ensure(ctx)
		if err != nil {
			return refusal{http.StatusServiceUnavailable, "kbnode: jobs cannot run: " + err.Error()}
		}
		h.SecurityOpt = append(h.SecurityOpt, "apparmor="+name)
		return nil
	}
	h.MaskedPaths, h.ReadonlyPaths, err = confine.Paths(f.sys)
	return err
}

// check refuses a container that is about to start if it is not confined like one created now.
func (f *confiner) check(ctx context.Context, in container.InspectResponse) error {
	var want container.HostConfig
	if err := f.confine(ctx, &want); err != nil {
		return err
	}
	if got := in.AppArmorProfile; len(want.SecurityOpt) > 0 && !slices.Contains(want.SecurityOpt, "apparmor="+got) {
		return forbid("the container has the AppArmor profile %.60q, not that of jobs; create the container again", got)
	}
	if path := lacks(in.HostConfig.MaskedPaths, want.MaskedPaths); path != "" {
		return forbid("%s is not masked in the container; create the container again", path)
	}
	if path := lacks(in.HostConfig.ReadonlyPaths, want.ReadonlyPaths); path != "" {
		return forbid("%s is not read-only in the container; create the container again", path)
	}
	return nil
}

// lacks returns the first element of want that list does not have, or "".
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
