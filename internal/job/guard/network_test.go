package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/confine"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// fakeNetwork replaces the engine's networks and the kernel's rules.
type fakeNetwork struct {
	mu       sync.Mutex
	made     []docker.Network
	checks   int   // how often the rules were checked
	rules    error // what checking them returns
	networks error
	forgot   []netip.Prefix // the networks whose connections were ended last
	kept     error          // what ending them returns
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
		forget: func(networks []netip.Prefix) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.forgot = networks
			return f.kept
		},
	}
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
	_, err := r.guard(t).clearOnce(t.Context())
	must.Do(t, err)
	if r.network.forgot != nil {
		t.Error("clearing forgot connections, which a job does when it starts")
	}
	if n := len(r.network.made); n != 1 || r.network.checks != 1 {
		t.Fatalf("before the first job: %d looks at the network and %d at the rules", n, r.network.checks)
	}
	if o := r.try(t); why(o) != "" {
		t.Fatalf("%+v", o)
	}
	if n := len(r.network.made); n != 2 || r.network.checks != 2 {
		t.Fatalf("a container was started after %d looks at its network and %d at the rules", n, r.network.checks)
	}
	must.Equal(t, "[198.18.0.0/24 198.19.0.0/24]", fmt.Sprint(r.network.forgot))
	// The lab has 198.18.0.0/16.
	want := docker.Network{Name: "kbnode-gpu0", Labels: map[string]string{slot.Label: "0"}, Subnets: []netip.Prefix{netip.MustParsePrefix("198.19.0.0/24")}}
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
	r.network.networks, r.network.kept = nil, errors.New("they stay")
	if o := r.try(t); !strings.Contains(o.NodeFault, "they stay") || len(r.engine.created) != 0 {
		t.Errorf("with connections of an earlier job: %+v, %d containers", o, len(r.engine.created))
	}
	r.network.kept, r.network.rules = nil, errors.New("the kernel says no")
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
	for what, row := range map[string]struct {
		armored bool // the engine lists AppArmor
		ignored bool // but does not use it
		err     error
		profile bool // the container is to have the profile
		want    string
	}{
		"profile loaded":      {armored: true, profile: true},
		"not loaded":          {armored: true, err: errors.New("load AppArmor profile x"), want: "jobs cannot run: load AppArmor profile x"},
		"listed and not used": {armored: true, ignored: true, err: errors.New("asked to load")},
		"covered":             {},
	} {
		f := &confiner{
			sys: t.TempDir(), confines: func() bool { return !row.ignored },
			ensure: func(context.Context) (string, error) { return "kbnode-job-1", row.err },
		}
		h := container.HostConfig{}
		engine := docker.Info{}
		if row.armored {
			engine.Security = []string{"name=apparmor"}
		}
		err := f.confine(t.Context(), engine, &h)
		if row.want == "" {
			must.Do(t, err)
		} else {
			must.Err(t, err, row.want)
		}
		masked := true
		for _, path := range []string{"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps", "/proc/kcore"} {
			masked = masked && slices.Contains(h.MaskedPaths, path)
		}
		if slices.Contains(h.SecurityOpt, "apparmor=kbnode-job-1") != row.profile || err == nil && (!masked || slices.Contains(h.ReadonlyPaths, "/proc/driver") == row.profile) {
			t.Errorf("%s: %+v", what, h)
		}
	}
}

// TestConfineSockets gives a container the profile of jobs only in the place of Docker's own.
func TestConfineSockets(t *testing.T) {
	t.Parallel()
	for security, bounded := range map[string]bool{
		"name=seccomp,profile=builtin": true, "name=seccomp,profile=default": true, "name=seccomp,profile=/etc/docker/own.json": false, "name=seccomp,profile=unconfined": false, "name=cgroupns": false,
	} {
		h := container.HostConfig{SecurityOpt: []string{"no-new-privileges"}}
		must.Do(t, (&confiner{sys: t.TempDir()}).confine(t.Context(), docker.Info{Security: []string{security}}, &h))
		profile, err := confine.Seccomp()
		must.Do(t, err)
		if slices.Contains(h.SecurityOpt, "seccomp="+profile) != bounded || !slices.Contains(h.SecurityOpt, "no-new-privileges") || len(h.SecurityOpt) > 2 {
			t.Errorf("%s: %d options", security, len(h.SecurityOpt))
		}
	}
}

// TestEngineUsesAppArmor: an engine that does not use AppArmor accepts a profile's name and
// gives the container none.
func TestEngineUsesAppArmor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		security []string
		armor    string // of the container
		starts   bool
	}{
		{nil, "", true}, {[]string{"name=seccomp,profile=builtin"}, "", true},
		{[]string{"name=apparmor", "name=cgroupns"}, "kbnode-job-1", true}, {[]string{"name=apparmor"}, "docker-default", false}, {[]string{"name=apparmor"}, "", false},
	} {
		r := ready(t, func(r *rig) {
			r.engine.security, r.engine.armor = row.security, row.armor
			sys := t.TempDir()
			r.adjust = func(g *guard) {
				g.confiner = &confiner{sys: sys, confines: func() bool { return true }, ensure: func(context.Context) (string, error) { return "kbnode-job-1", nil }}
			}
		})
		o := r.try(t)
		if row.starts != (why(o) == "") || !row.starts && !strings.Contains(o.NodeFault, "not that of jobs") || r.engine.started() != row.starts {
			t.Errorf("%+v: %+v", row, o)
		}
	}
}
