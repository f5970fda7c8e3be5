package doctor

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

// TestAMDNodeIsToldNothingOfNVIDIA tests that nothing on a node with AMD GPUs mentions
// NVIDIA, whatever is wrong. It is not parallel: it keeps all CPUs busy, and other tests
// measure time.
func TestAMDNodeIsToldNothingOfNVIDIA(t *testing.T) {
	driverless, dead, uneven := machinetest.MI300X(), machinetest.MI300X(), machinetest.MI300XCPX()
	driverless.Name, driverless.NoKFD = "without a driver", true
	dead.Name, dead.AMD[3].Dead = "one is dead", true
	uneven.Name, uneven.AMD[2].Partitions, uneven.AMD[2].Compute = "one is not partitioned", 1, "SPX"
	for _, machine := range []machinetest.Machine{machinetest.MI300X(), machinetest.MI300XCPX(), driverless, dead, uneven} {
		t.Run(machine.Name, func(t *testing.T) {
			root := machine.Dir(t)
			inv, err := inventory.Read(t.Context(), inventory.Options{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			cfg := config.Config{}.WithDefaults()
			inv.Software.Docker.Version = "28.5.1"
			f := &fake{cfg: &cfg, inv: inv, docker: docker.Info{Version: "28.5.1", CgroupVersion: "2", CgroupDriver: "systemd", DefaultRuntime: "runc"}}
			if f.plan, err = plan.Build(plan.Input{Inventory: inv, Config: &cfg}); err != nil {
				t.Fatal(err)
			}
			for _, bare := range []bool{true, false} {
				r, err := Run(t.Context(), &Machine{Tree: host.Tree{Root: root}, Source: f}, Options{Bare: bare})
				if err != nil {
					t.Fatal(err)
				}
				text, err := json.MarshalIndent(r, "", " ")
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(string(text)) {
					if foreignWords.MatchString(line) {
						t.Errorf("bare %v: %s", bare, line)
					}
				}
				if !slices.ContainsFunc(r.Checks, func(c Result) bool { return c.ID == "amd-driver" }) {
					t.Error("AMD's driver was not asked for")
				}
			}
		})
	}
}

// foreignWords matches what only NVIDIA has.
var foreignWords = regexp.MustCompile(`(?i)nvidia|nvml|cuda|nvlink|nvswitch|\bxid\b`)

// TestForeignChecks tests that a machine with one vendor's GPUs gets the other's checks
// only by name, and that a machine without GPUs gets both.
func TestForeignChecks(t *testing.T) {
	t.Parallel()
	ids := func(inv *inventory.Inventory, o Options) (ids []string) {
		r, err := Run(t.Context(), machineOf(t, &fake{inv: inv, plan: &plan.Plan{}}, nil), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range r.Checks {
			ids = append(ids, c.ID)
		}
		return ids
	}
	gpu := Options{Only: []string{"gpu"}, Bare: true}
	has := func(list []string, prefix string) bool {
		return slices.ContainsFunc(list, func(id string) bool { return strings.HasPrefix(id, prefix) })
	}
	if list := ids(h100s(1), gpu); has(list, "amd-") || !has(list, "nvidia-") {
		t.Error(list)
	}
	if list := ids(mi300s(1), gpu); !has(list, "amd-") || has(list, "nvidia-") {
		t.Error(list)
	}
	if list := ids(&inventory.Inventory{}, gpu); !has(list, "amd-") || !has(list, "nvidia-") {
		t.Error(list)
	}
	both := changed(mi300s(1), func(inv *inventory.Inventory) { inv.NVIDIA = h100s(1).NVIDIA })
	if list := ids(both, gpu); !has(list, "amd-") || !has(list, "nvidia-") {
		t.Error(list)
	}
	if list := ids(mi300s(1), Options{Only: []string{"nvidia-mig"}}); !slices.Equal(list, []string{"nvidia-mig"}) {
		t.Error(list)
	}
}
