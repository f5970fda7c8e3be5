package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/docker"
)

// TestConfine checks that nothing starts unconfined.
func TestConfine(t *testing.T) {
	t.Parallel()
	without := func(list *[]string, path string) {
		*list = slices.DeleteFunc(*list, func(p string) bool { return p == path })
	}
	for what, row := range map[string]struct {
		armored bool
		ignored bool  // the engine lists AppArmor but does not use it
		err     error // of the kernel
		change  func(*container.InspectResponse)
		want    string // in the refusal; "" for none
	}{
		"profile loaded":             {armored: true},
		"not loaded":                 {armored: true, err: errors.New("load AppArmor profile x"), want: "jobs cannot run: load AppArmor profile x"},
		"made with Docker's profile": {armored: true, change: func(in *container.InspectResponse) { in.AppArmorProfile = "docker-default" }, want: "not that of jobs"},
		"made without AppArmor":      {armored: true, change: func(in *container.InspectResponse) { in.AppArmorProfile = "" }, want: "not that of jobs"},
		"listed and not used":        {armored: true, ignored: true, err: errors.New("asked to load")},
		"not used, nothing covered":  {armored: true, ignored: true, change: func(in *container.InspectResponse) { in.HostConfig.MaskedPaths = nil }, want: "is not masked"},
		"covered":                    {},
		"nothing covered":            {change: func(in *container.InspectResponse) { in.HostConfig.MaskedPaths = nil }, want: "is not masked"},
		"one not covered":            {change: func(in *container.InspectResponse) { without(&in.HostConfig.MaskedPaths, "/proc/kpageflags") }, want: "/proc/kpageflags is not masked"},
		"drivers writable":           {change: func(in *container.InspectResponse) { without(&in.HostConfig.ReadonlyPaths, "/proc/driver") }, want: "/proc/driver is not read-only"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := &confiner{
				sys: t.TempDir(), confines: func() bool { return !row.ignored },
				ensure: func(context.Context) (string, error) { return "kbnode-job-1", row.err },
			}
			h := container.HostConfig{SecurityOpt: []string{"no-new-privileges"}}
			engine := docker.Info{}
			if row.armored {
				engine.Security = []string{"name=apparmor"}
			}
			err := f.confine(t.Context(), engine, &h)
			if err == nil {
				in := container.InspectResponse{Config: &container.Config{}, HostConfig: &container.HostConfig{}}
				in.HostConfig.MaskedPaths, in.HostConfig.ReadonlyPaths = slices.Clone(h.MaskedPaths), slices.Clone(h.ReadonlyPaths)
				if slices.Contains(h.SecurityOpt, "apparmor=kbnode-job-1") {
					in.AppArmorProfile = "kbnode-job-1"
				}
				if row.change != nil {
					row.change(&in)
				}
				if why := confined(&h, in); why != "" {
					err = errors.New(why)
				}
			}
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

// TestStartReadsConfinementBack checks the container that the engine actually made.
func TestStartReadsConfinementBack(t *testing.T) {
	t.Parallel()
	r := ready(t)
	r.engine.drops = true
	if o := r.try(t); !strings.Contains(o.Refused, "is not masked") || r.engine.started() {
		t.Errorf("started: %+v", o)
	}
}

// TestEngineUsesAppArmor: an engine that does not use AppArmor accepts a profile's name and
// gives the container none.
func TestEngineUsesAppArmor(t *testing.T) {
	t.Parallel()
	for _, security := range [][]string{nil, {"name=seccomp,profile=builtin"}, {"name=apparmor", "name=cgroupns"}} {
		r := ready(t, func(r *rig) {
			r.engine.security = security
			sys := t.TempDir()
			r.adjust = func(g *guard) {
				g.confiner = &confiner{sys: sys, confines: func() bool { return true }, ensure: func(context.Context) (string, error) { return "", errors.New("no parser") }}
			}
		})
		o := r.try(t)
		if armored := len(security) > 1; armored != (why(o) != "") || armored && !strings.Contains(o.NodeFault, "jobs cannot run: no parser") {
			t.Errorf("%q: %+v", security, o)
		}
	}
}
