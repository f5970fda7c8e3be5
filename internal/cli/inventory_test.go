package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/inventory"
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
