package confine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

// pciTree makes a /sys with a GPU, a bridge without memory of its own, and a device that was
// removed while its link was read.
func pciTree(t *testing.T) (sys string, windows []string) {
	t.Helper()
	sys = t.TempDir()
	gpu := sys + "/devices/pci0000:00/0000:00:01.0/0000:1a:00.0"
	for _, file := range []string{"config", "rom", "vpd", "resource", "resource0", "resource1_wc", "resource0_resize", "numa_node", "local_cpulist", "../config", "../resource"} {
		must.Write(t, "", filepath.Join(gpu, file), "")
	}
	must.Write(t, "", gpu+"/p2pmem/allocate", "")
	must.Write(t, "", sys+"/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "")
	must.Do(t, os.MkdirAll(sys+"/bus/pci/devices", 0o700))
	for name, target := range map[string]string{"0000:1a:00.0": "../../../devices/pci0000:00/0000:00:01.0/0000:1a:00.0", "0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0", "0000:1b:00.0": "../../../devices/gone"} {
		must.Do(t, os.Symlink(target, sys+"/bus/pci/devices/"+name))
	}
	for _, file := range []string{"config", "p2pmem/allocate", "resource", "resource0", "resource0_resize", "resource1_wc", "rom", "vpd"} {
		windows = append(windows, gpu+"/"+file)
	}
	return sys, windows
}

// TestWindows checks that Windows lists what reaches a device's memory, and not what libraries
// read.
func TestWindows(t *testing.T) {
	t.Parallel()
	sys, want := pciTree(t)
	got, err := Windows(sys)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if got, err := Windows(t.TempDir()); err != nil || got != nil {
		t.Errorf("without PCI: %q, %v", got, err)
	}
}

// TestPaths checks that Paths keeps what Docker covers, which a custom list replaces.
func TestPaths(t *testing.T) {
	t.Parallel()
	sys, windows := pciTree(t)
	proc := t.TempDir()
	for _, file := range []string{"1/mem", "20/mem", "cpuinfo", "kcore", "sysvipc/shm", "sys/x"} {
		must.Write(t, "", filepath.Join(proc, file), "")
	}
	must.Do(t, os.Symlink("1", proc+"/self"))
	masked, readonly, err := Paths(proc, sys)
	must.Do(t, err)
	must.Equal(t, append([]string{"/proc/cpuinfo", "/proc/sysvipc"}, readonlyPaths...), readonly)
	for _, path := range append(windows, "/proc/kcore", "/sys/firmware", "/proc/bus/pci", sys+"/devices/system/cpu/cpu0/thermal_throttle") {
		if !slices.Contains(masked, path) {
			t.Errorf("%s is not covered", path)
		}
	}
	if _, _, err := Paths(t.TempDir()+"/none", sys); err == nil {
		t.Error("a /proc that cannot be read is taken for an empty one")
	}
}

// TestEnsure checks that the kernel has the profile only if it has this one and enforces it.
func TestEnsure(t *testing.T) {
	t.Parallel()
	name, text := JobProfile()
	must.Contain(t, text, "\nprofile "+name+" flags=")
	for what, row := range map[string]struct {
		before, after string // what the kernel has, before and after a load
		err           error  // of the load
		want          string // in the error; "" for none
	}{
		"loaded":                  {before: "docker-default (enforce)\n" + name + " (enforce)", after: "not again"},
		"loaded now":              {after: name + " (enforce)"},
		"an older one":            {before: "kbnode-job-00000000 (enforce)", after: name + " (enforce)"},
		"one that only complains": {before: name + " (complain)", after: name + " (complain)", want: "does not list it"},
		"one of a longer name":    {before: "x" + name + " (enforce)", after: "x" + name + " (enforce)", want: "does not list it"},
		"no parser":               {err: errors.New("apparmor_parser: not found"), want: "apparmor_parser: not found"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			k := &Kernel{list: filepath.Join(t.TempDir(), "profiles")}
			has := func(text string) error { return os.WriteFile(k.list, []byte(text+"\n"), 0o600) }
			k.load = func(context.Context, string) error { return errors.Join(row.err, has(row.after)) }
			must.Do(t, has(row.before))
			got, err := k.Ensure(t.Context())
			if row.want == "" && (err != nil || got != name) || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %q, %v, want %q", got, err, row.want)
			}
		})
	}
	k := &Kernel{list: filepath.Join(t.TempDir(), "none"), load: func(context.Context, string) error { return nil }}
	if _, err := k.Ensure(t.Context()); err == nil {
		t.Error("what cannot be read is taken for loaded")
	}
}

// TestEngineConfines covers an engine that started before AppArmor's parser was there: it
// ignores profiles, and has not loaded its own.
func TestEngineConfines(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"docker-default (enforce)\n":                  true,
		"lxc-x (enforce)\ndocker-default (enforce)\n": true,
		"docker-default (complain)\n":                 false,
		"my-docker-default (enforce)\n":               false,
		"":                                            false,
	} {
		k := &Kernel{list: filepath.Join(t.TempDir(), "profiles")}
		must.Do(t, os.WriteFile(k.list, []byte(text), 0o600))
		if got := k.EngineConfines(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if (&Kernel{list: filepath.Join(t.TempDir(), "none")}).EngineConfines() {
		t.Error("profiles that cannot be read are taken for the engine's")
	}
}
