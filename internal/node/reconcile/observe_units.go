package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// unknown is the generation of a process whose environment cannot be read:
// because only root can, or because the process has just called exec.
const unknown = "unknown"

// unitPatterns are the names of plan.Owned's units as patterns of fnmatch(3).
var unitPatterns = []string{
	plan.ParentSlice, "buildkite-gpu*.slice", "buildkite-agent-gpu*.service",
	"kbnode-job-gpu*.socket", "system-kbnode*job*gpu*.slice", plan.NodeService, plan.NodeTimer, "kbnode-image.*",
}

// units asks systemd about planned units and about all units with kbnode's names.
func (o *observer) units(ctx context.Context) error {
	if o.s.Offline {
		return nil
	}
	names := map[string]bool{}
	for _, u := range o.p.Units {
		names[u.Name] = true
	}
	for _, sl := range o.p.Slices {
		names[sl.Unit] = true
	}
	for name := range o.s.paths {
		if path.Dir(name) == plan.UnitDir {
			// systemd knows no state of a template.
			if _, ok := plan.Owns(name); ok && o.s.paths[name].kind != leftover && !strings.Contains(name, "@.") {
				names[path.Base(name)] = true
			}
		}
	}
	loaded, err := o.h.Systemd.Loaded(ctx, unitPatterns...)
	if err != nil {
		return err
	}
	for _, name := range loaded {
		if _, ok := plan.OwnsUnit(name); ok {
			names[name] = true
		}
	}
	enabled, err := o.enabled()
	if err != nil {
		return err
	}
	if empty(o.p) && enabled[plan.InstallService] {
		names[plan.InstallService] = true // or the next boot installs again
	}
	units, err := o.h.Systemd.Units(ctx, slices.Sorted(maps.Keys(names))...)
	if err != nil {
		return err
	}
	for _, u := range units {
		if pid := cmp.Or(u.MainPID, u.ControlPID); pid > 0 {
			env, err := slot.Environ(o.h.Root, pid)
			u.Generation = env["KBNODE_GENERATION"]
			switch {
			case errors.Is(err, fs.ErrPermission), err == nil && env == nil, u.MainPID == 0 && host.Ended(err):
				u.Generation = unknown
			case err != nil && !host.Ended(err):
				u.Generation = unknown
				o.s.Warnings = append(o.s.Warnings, fmt.Sprintf("the configuration that %s was started with is unknown: %v", u.Name, err))
			}
		}
		u.Enabled = enabled[u.Name]
		o.s.Units[u.Name] = u
		if _, jobs := plan.IsJobSlice(u.Name); !jobs && strings.HasSuffix(u.Name, ".slice") {
			got, err := o.h.readSlice(u.Name, u.Cgroup)
			if err != nil { // setting it again says more, for its slot
				o.s.Warnings = append(o.s.Warnings, err.Error())
			}
			o.s.Slices[u.Name] = got
			if p := got.Files[slot.FilePartition]; strings.Contains(p, "invalid") {
				o.s.Warnings = append(o.s.Warnings, fmt.Sprintf("the cpuset partition of %s is %s; other programs can run on the slots' CPUs", u.Name, p))
			}
		}
	}
	return nil
}

// enabled returns the units that a target in /etc starts at boot. Asking systemd would be
// slow, because it looks at every unit file.
func (o *observer) enabled() (map[string]bool, error) {
	units := map[string]bool{}
	entries, err := o.list(plan.UnitDir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".wants") || strings.HasSuffix(e.Name(), ".requires") {
			links, err := o.list(path.Join(plan.UnitDir, e.Name()))
			if err != nil {
				return nil, err
			}
			for _, l := range links {
				units[l.Name()] = true
			}
		}
	}
	return units, nil
}
