package cli

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/pipeline"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

func TestInventoryText(t *testing.T) {
	t.Parallel()
	m := machinetest.HGXH100()
	m.NVIDIA[2].Dead = true
	got := kbnode(t, "inventory", "--root", m.Dir(t))
	if got.code != 0 || !strings.Contains(got.err, "kbnode: gpu 0000:3a:00.0: ") {
		t.Errorf("code %d, err %q; want the dead GPU named", got.code, got.err)
	}
	golden(t, "hgx-h100.inventory.txt", got.out)
}

func TestInventoryWithoutGPU(t *testing.T) {
	t.Parallel()
	got := kbnode(t, "inventory", "--root", machinetest.NoGPU().Dir(t))
	if got.code != 0 || !strings.HasSuffix(got.out, "\nno GPU\n") || strings.Contains(got.out, "NVIDIA") {
		t.Errorf("%+v", got)
	}
}

func TestInventoryJSON(t *testing.T) {
	t.Parallel()
	for _, m := range []machinetest.Machine{machinetest.MI300X(), machinetest.NoGPU()} {
		root := m.Dir(t)
		inv, err := inventory.Read(t.Context(), inventory.Options{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		if err := printJSON(&want, inv); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(result{out: want.String()}, kbnode(t, "inventory", "--json", "--root", root), cmp.AllowUnexported(result{})); diff != "" {
			t.Error(diff)
		}
		if strings.Contains(want.String(), `"gpus": null`) {
			t.Error("gpus is null; want a list")
		}
	}
}

// foreignWords match what only NVIDIA has.
var foreignWords = regexp.MustCompile(`(?i)nvidia|nvml|cuda|nvlink|gpus: *"?all`)

// TestAMDNodeReadsNothingOfNVIDIA checks that kbnode mentions nothing of NVIDIA's on a machine
// with AMD GPUs, whatever the machine lacks. The test of doctor covers doctor. Files of a slot
// still name the variables that no job may set, of any vendor.
func TestAMDNodeReadsNothingOfNVIDIA(t *testing.T) {
	t.Parallel()
	driverless, dead := machinetest.MI300X(), machinetest.MI300X()
	driverless.Name, driverless.NoKFD = "without a driver", true
	dead.Name, dead.AMD[3].Dead = "one is dead", true
	for _, m := range []machinetest.Machine{machinetest.MI300X(), machinetest.MI300XCPX(), driverless, dead} {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			root, bare := nodeTree(t, m, config.Config{Queue: "mi300"}, "queue: mi300\n"), m.Dir(t)
			commands := [][]string{
				{"inventory", "--root", root}, {"inventory", "--root", root, "--json"},
				{"plan", "--root", bare, "--queue", "mi300"}, {"plan", "--root", bare},
			}
			for _, kind := range pipeline.Kinds {
				commands = append(commands, []string{"pipeline", kind, "--root", root}, []string{"pipeline", kind, "--root", root, "--json"})
			}
			for _, args := range commands {
				got := kbnode(t, args...)
				if got.out == "" {
					t.Errorf("%q says nothing: code %d, %s", args, got.code, got.err)
				}
				for line := range strings.Lines(got.out + got.err) {
					if foreignWords.MatchString(line) {
						t.Errorf("%q: %s", args, line)
					}
				}
			}
		})
	}
}

// TestAMDNodeNeedsNothingOfNVIDIA checks that nothing of NVIDIA's needs to be installed.
func TestAMDNodeNeedsNothingOfNVIDIA(t *testing.T) {
	t.Parallel()
	inv, err := inventory.Read(t.Context(), inventory.Options{Root: machinetest.MI300X().Dir(t)})
	if err != nil {
		t.Fatal(err)
	}
	inv.Software = inventory.Software{}
	said := installer.Preflight(inv)
	for _, manager := range []string{"apt-get", "dnf"} {
		steps, err := installer.Packages(inv, manager)
		if err != nil || len(steps) == 0 {
			t.Fatalf("%v, %v", steps, err)
		}
		for _, s := range steps {
			said = append(said, s.Why+": "+s.String())
		}
	}
	if i := slices.IndexFunc(said, foreignWords.MatchString); i >= 0 || len(said) < 4 {
		t.Errorf("it says %q", said)
	}
}
