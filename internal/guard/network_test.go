package guard

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/test/must"
)

// fakeNetwork replaces the engine's networks and the kernel's rules.
type fakeNetwork struct {
	mu       sync.Mutex
	made     []docker.Network
	checks   int   // how often the rules were checked
	rules    error // what checking them returns
	networks error
}

func (f *fakeNetwork) slot() *slotNetwork {
	return &slotNetwork{
		ensure: func(_ context.Context, n docker.Network) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.made = append(f.made, n)
			return f.networks
		},
		protect: func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.checks++
			return f.rules
		},
		routes: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(routeTable)), nil },
	}
}

// asked reports whether the guard has made its network, or was refused.
func (f *fakeNetwork) asked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.made) > 0 || f.checks > 0 && f.rules != nil
}

const routeTable = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0100000A	0003	0	0	0	00000000	0	0	0
eth0	0000000A	00000000	0001	0	0	0	000000FF	0	0	0
lab	000012C6	0100000A	0003	0	0	0	0000FFFF	0	0	0
kbnode-gpu4	000413C6	00000000	0001	0	0	0	00FFFFFF	0	0	0
`

func TestNetworkIsThere(t *testing.T) {
	t.Parallel()
	r := ready(t)
	if n := len(r.network.made); n != 1 || r.network.checks != 1 {
		t.Fatalf("before the first job: %d looks at the network and %d at the rules", n, r.network.checks)
	}
	if o := r.try(t); why(o) != "" {
		t.Fatalf("%+v", o)
	}
	if n := len(r.network.made); n != 2 || r.network.checks != 2 {
		t.Fatalf("a container was started after %d looks at its network and %d at the rules", n, r.network.checks)
	}
	// The lab has 198.18.0.0/16.
	want := docker.Network{Name: "kbnode-gpu0", Labels: map[string]string{slotLabel: "0"}, Subnets: []netip.Prefix{netip.MustParsePrefix("198.19.0.0/24")}}
	must.Equal(t, want, r.network.made[0], cmpopts.EquateComparable(netip.Prefix{}))
	must.Equal(t, "kbnode-gpu0", string(r.engine.created[0].HostConfig.NetworkMode))
	// A container that wants no network needs neither.
	r.network.networks, r.network.rules = errors.New("no networks"), errors.New("no rules")
	if o := r.try(t, func(s *job.Spec) { s.Network = job.NetworkNone }); why(o) != "" {
		t.Errorf("without a network: %+v", o)
	}
}

func TestNoContainerWithoutNetwork(t *testing.T) {
	t.Parallel()
	r := ready(t)
	r.network.networks = errors.New("no address is left")
	if o := r.try(t); !strings.Contains(o.NodeFault, "no address is left") {
		t.Errorf("without a network: %+v", o)
	}
	r.network.networks, r.network.rules = nil, errors.New("the kernel says no")
	if o := r.try(t); !strings.Contains(o.NodeFault, "the kernel says no") || len(r.engine.created) != 0 {
		t.Errorf("without rules: %+v, %d containers", o, len(r.engine.created))
	}
}

// TestNetworkNone: a node without networks needs nothing from the kernel.
func TestNetworkNone(t *testing.T) {
	t.Parallel()
	r := ready(t, func(r *rig) { r.policy.Network, r.network.rules = "none", errors.New("the kernel says no") })
	if o := r.try(t); why(o) != "" || len(r.network.made) != 0 {
		t.Errorf("%+v, network %v", o, r.network.made)
	}
}

func TestUnrouted(t *testing.T) {
	t.Parallel()
	prefixes := func(list ...string) (all []netip.Prefix) {
		for _, p := range list {
			all = append(all, netip.MustParsePrefix(p))
		}
		return all
	}
	for name, row := range map[string]struct{ table, own, want string }{
		"nothing in the way":  {"", "kbnode-gpu0", "198.18.4.0/24 198.19.4.0/24"},
		"a larger network":    {routeTable, "kbnode-gpu4", "198.19.4.0/24"},
		"another's same":      {routeTable, "kbnode-gpu5", ""},
		"nonsense is no way":  {"a b c d e f g h\nlab 000012C6 0 0 0 0 0\n\n", "kbnode-gpu0", "198.18.4.0/24 198.19.4.0/24"},
		"a table of one line": {strings.Repeat("x", 1<<20), "kbnode-gpu0", "198.18.4.0/24 198.19.4.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := unrouted(prefixes("198.18.4.0/24", "198.19.4.0/24"), strings.NewReader(row.table), row.own)
			var text []string
			for _, p := range got {
				text = append(text, p.String())
			}
			if strings.Join(text, " ") != row.want {
				t.Errorf("%v, want %s", text, row.want)
			}
		})
	}
}

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
