package selftest

import (
	"archive/tar"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
)

func TestEmptyRoot(t *testing.T) {
	t.Parallel()
	archive, err := emptyRoot()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir {
			t.Errorf("%s is no directory", h.Name)
		}
		got = append(got, h.Name)
	}
	if !slices.Contains(got, "tmp/") || !slices.Contains(got, "usr/local/bin/") {
		t.Errorf("has %q", got)
	}
}

func TestReadMachine(t *testing.T) {
	t.Parallel()
	own := plan.Slot{Index: 0, GPUs: []plan.SlotGPU{{Devices: []string{"/dev/null"}}}}
	m := readMachine(&plan.Plan{Slots: []plan.Slot{own, {Index: 1, GPUs: []plan.SlotGPU{{Devices: []string{"/dev/zero", "/dev/nonexistent"}}}}}})
	others := m.foreignDevices(own)
	if slices.Contains(others, "/dev/null") || !slices.Contains(others, "/dev/zero") || slices.Contains(others, "/dev/nonexistent") {
		t.Errorf("of others are %q", others)
	}
	for _, n := range numbers(others) {
		if n.Name == "/dev/zero" && (n.Major != 1 || n.Minor != 5 || n.Block) {
			t.Errorf("%+v", n)
		}
		if strings.Contains(n.Name, "watchdog") {
			t.Error("a watchdog would be started")
		}
	}
}
