package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestRegistries(t *testing.T) {
	t.Parallel()
	for image, want := range map[string][]string{
		"ghcr.io/gpu-mode/kernelbot:latest": {"lan:5000", "ghcr.io"}, "127.0.0.1:5000/eval:latest": {"lan:5000", "127.0.0.1:5000"},
		"localhost/eval:1": {"lan:5000", "localhost"}, "gpu-mode/eval:1": {"lan:5000"}, "eval:1": {"lan:5000"},
	} {
		cfg := config.Config{Image: config.Image{Name: image}, Job: config.Job{PrivateRegistries: []string{"lan:5000"}}}
		if diff := cmp.Diff(want, registries(cfg)); diff != "" {
			t.Errorf("%s: %s", image, diff)
		}
	}
}

// TestAllowedNetworks checks that the networks are in the slots' policies, and that a
// list that closes nothing causes a warning.
func TestAllowedNetworks(t *testing.T) {
	t.Parallel()
	inv := readMachine(t, machinetest.B200x8())
	for network, warns := range map[string]bool{"": true, config.NetworkBridge: true, config.NetworkInternet: false, config.NetworkNone: false} {
		p, err := Build(input(inv, config.Config{Queue: "b200", Job: config.Job{Network: network, AllowedNetworks: []string{"10.1.2.3:5000"}}}))
		must.Do(t, err)
		if got := strings.Contains(strings.Join(p.Warnings, "\n"), "set job.network: internet"); got != warns {
			t.Errorf("%q: warnings %q", network, p.Warnings)
		}
		i := slices.IndexFunc(p.Files, func(f File) bool { return f.Path == SlotPolicyPath(7) })
		if !strings.Contains(p.Files[i].Content, `"10.1.2.3:5000"`) {
			t.Errorf("%q: %s", network, p.Files[i].Content)
		}
	}
}
