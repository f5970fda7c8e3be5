package inventory_test

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestTuning(t *testing.T) {
	t.Parallel()
	got := read(t, machinetest.MI300X().Dir(t))
	if g := got.GPUs[7]; g.PerformanceLevel != "auto" {
		t.Errorf("GPU %s has the performance level %q", g.PCI, g.PerformanceLevel)
	}
	if n := len(got.Tuning.Governors); n != 192 {
		t.Fatalf("%d cpufreq policies, want one per core", n)
	}
	want := inventory.Governor{
		Path: "/sys/devices/system/cpu/cpufreq/policy5/scaling_governor", CPUs: "5,197", Value: "powersave",
		Known: []string{"ondemand", "powersave", "performance"},
	}
	must.Equal(t, want, got.Tuning.Governors[5])
	const files = 19
	if n := len(got.Tuning.Files); n != files {
		t.Fatalf("%d files, want %d", n, files)
	}
	must.Equal(t, inventory.TuningFile{Path: "/sys/kernel/mm/transparent_hugepage/enabled", Value: "[always] madvise never"}, got.Tuning.Files[files-2])
	// A tree without these files has no settings.
	must.Equal(t, inventory.Tuning{}, read(t, machinetest.VM().Dir(t)).Tuning)
}
