package selftest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestWindowsAsked asks for a device's files by every path that leads to them.
func TestWindowsAsked(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	device := sys + "/devices/pci0000:00/0000:1a:00.0"
	if err := os.MkdirAll(device, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config", "resource0", "numa_node"} {
		if err := os.WriteFile(filepath.Join(device, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(sys+"/bus/pci/devices", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(device, sys+"/bus/pci/devices/0000:1a:00.0"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		device + "/resource0", device + "/config", sys + "/bus/pci/devices/0000:1a:00.0/config",
		"/proc/bus/pci/1a/00.0", "/proc/bus/pci/devices", "/proc/kpageflags",
	}
	got := windows(sys)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("asks for %q, want %q", got, want)
	}
}
