package guard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/confine"
	"github.com/gpu-mode/kbnode/internal/docker"
)

// armorOption begins the option that gives a container an AppArmor profile.
const armorOption = "apparmor="

// confiner keeps containers away from what /sys and /proc have of other slots' devices: with
// AppArmor if the engine uses it, otherwise by covering each file.
type confiner struct {
	confines func() bool                           // reports whether an engine that lists AppArmor uses it
	ensure   func(context.Context) (string, error) // loads the profile if needed; returns its name
	sys      string                                // where /sys is mounted
}

// confine adds to a container what keeps it away from those files, and fails if nothing would.
func (f *confiner) confine(ctx context.Context, engine docker.Info, h *container.HostConfig) (err error) {
	// Without AppArmor, the engine silently ignores the name of a profile.
	if slices.ContainsFunc(engine.Security, func(s string) bool { return s == "name=apparmor" || strings.HasPrefix(s, "name=apparmor,") }) && f.confines() {
		name, err := f.ensure(ctx)
		if err != nil {
			return unavailable(fmt.Errorf("jobs cannot run: %w", err))
		}
		h.SecurityOpt = append(h.SecurityOpt, armorOption+name)
		return nil
	}
	h.MaskedPaths, h.ReadonlyPaths, err = confine.Paths(f.sys)
	return err
}

// confined returns what the engine has not done to keep a container away from those files, though it was
// asked to; "" if it did all.
func confined(request *container.HostConfig, in container.InspectResponse) string {
	if i := slices.IndexFunc(request.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, armorOption) }); i >= 0 && request.SecurityOpt[i] != armorOption+in.AppArmorProfile {
		return fmt.Sprintf("the container has the AppArmor profile %.60q, not that of jobs", in.AppArmorProfile)
	}
	if path := missing(in.HostConfig.MaskedPaths, request.MaskedPaths); path != "" {
		return path + " is not masked in the container"
	}
	if path := missing(in.HostConfig.ReadonlyPaths, request.ReadonlyPaths); path != "" {
		return path + " is not read-only in the container"
	}
	return ""
}

// missing returns the first element of want that list does not have, or "".
func missing(list, want []string) string {
	for _, path := range want {
		if !slices.Contains(list, path) {
			return path
		}
	}
	return ""
}
