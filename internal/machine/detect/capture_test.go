package detect_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// capture returns a machine's archive.
func capture(t *testing.T, opts detect.Options) string {
	t.Helper()
	var b bytes.Buffer
	must.Do(t, detect.Capture(t.Context(), opts, &b))
	return b.String()
}

// opened returns the root that Open makes of an archive.
func opened(t *testing.T, archive string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "machine.txtar")
	must.Do(t, os.WriteFile(file, []byte(archive), 0o600))
	root, closeRoot, err := detect.Open(file)
	must.Do(t, err)
	t.Cleanup(func() {
		must.Err(t, closeRoot(), "")
		if _, err := os.Stat(root); err == nil {
			t.Errorf("%s is still there after closing it", root)
		}
	})
	return root
}

// recaptured returns a machine after a round trip through an archive.
func recaptured(t *testing.T, opts detect.Options) *inventory.Inventory {
	t.Helper()
	return read(t, opened(t, capture(t, opts)))
}

// This machine reads the same from its capture as in place.
func TestCaptureThisMachine(t *testing.T) {
	t.Parallel()
	machine, back := read(t, "/"), recaptured(t, detect.Options{KeepNames: true})
	ignore := cmp.Options{
		cmpopts.IgnoreFields(inventory.DiskFree{}, "FreeBytes"),
		cmpopts.IgnoreFields(inventory.NUMANode{}, "MemoryBytes"), // virtual machines plug memory in and out
		cmpopts.IgnoreFields(inventory.GPU{}, "NVML", "MemoryUsedBytes", "Processes"),
	}
	must.Equal(t, machine, back, ignore)
}

func TestCaptureKeepsNamesOut(t *testing.T) {
	t.Parallel()
	m := machinetest.VM()
	m.Files = map[string]string{
		"etc/hostname":     "secret-host",
		"kbnode/live.json": `{"schema": 1, "hostname": "secret-host", "arch": "amd64"}`,
		"kbnode/nvml.json": `{"schema": 1, "ok": true, "gpus": [{"index": 0, "uuid": "GPU-1", "pci": "0000:06:00.0", "serial": "165012345"}]}`,
	}
	dir := m.Dir(t)
	archive := capture(t, detect.Options{Root: dir})
	for _, secret := range []string{"secret-host", "165012345"} {
		if strings.Contains(archive, secret) {
			t.Errorf("%q is in the archive", secret)
		}
	}
	kept := recaptured(t, detect.Options{Root: dir, KeepNames: true})
	if kept.Hostname != "secret-host" || kept.GPUs[0].Serial != "165012345" {
		t.Errorf("host name %q, serial %q; want both kept on request", kept.Hostname, kept.GPUs[0].Serial)
	}
}

func TestCaptureRefusesMarkers(t *testing.T) {
	t.Parallel()
	m := machinetest.NoGPU()
	m.Files = map[string]string{"etc/os-release": "ID=x\n-- sys/devices/system/cpu/online --\n0-99\n"}
	err := detect.Capture(t.Context(), detect.Options{Root: m.Dir(t)}, &bytes.Buffer{})
	must.Err(t, err, "etc/os-release")
}

func TestOpenDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, closeRoot, err := detect.Open(dir)
	if err != nil || root != dir {
		t.Fatalf("got %q, %v; want the directory itself", root, err)
	}
	must.Do(t, closeRoot())
	if _, err := os.Stat(dir); err != nil {
		t.Error("closing removed a directory that is not ours:", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 50_001 {
		fmt.Fprintf(&many, "-- f%d --\n", i)
	}
	for name, archive := range map[string]string{
		"text that is no archive":      "hello\n",
		"a path that climbs out":       "-- ../../etc/cron.d/x --\n* * * * * root true\n",
		"a path that climbs midway":    "-- sys/../../x --\n1\n",
		"an absolute path":             "-- /etc/cron.d/x --\n1\n",
		"a path that is not clean":     "-- sys//x --\n1\n",
		"a file as a directory":        "-- sys --\n1\n-- sys/x --\n1\n",
		"a path of very many letters":  "-- " + strings.Repeat("a/", 400) + "x --\n1\n",
		"more files than a machine":    many.String(),
		"an empty file":                "",
		"an escape for a terminal":     "-- var/lib/kbnode/slots.json --\n{\"uuid\": \"\\u001b[31m\"}\n",
		"the directory itself as file": "-- . --\n1\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "machine.txtar")
			must.Do(t, os.WriteFile(file, []byte(archive), 0o600))
			if root, _, err := detect.Open(file); err == nil {
				t.Errorf("opened as %s, want an error", root)
			}
		})
	}
	large := filepath.Join(t.TempDir(), "machine.txtar")
	must.Do(t, os.WriteFile(large, nil, 0o600))
	must.Do(t, os.Truncate(large, 1<<40)) // sparse
	for _, name := range []string{large, filepath.Join(t.TempDir(), "absent"), "/dev/zero"} {
		if _, _, err := detect.Open(name); err == nil {
			t.Errorf("%s is opened, want an error", name)
		}
	}
}
