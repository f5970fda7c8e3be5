package cli

import (
	"encoding/json"
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
	for _, m := range machinetest.Published() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			root := m.Dir(t)
			want, err := inventory.Read(t.Context(), inventory.Options{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			result := kbnode(t, "inventory", "--json", "--root", root)
			var got inventory.Inventory
			if err := json.Unmarshal([]byte(result.out), &got); err != nil || result.code != 0 {
				t.Fatalf("code %d, err %q: %v", result.code, result.err, err)
			}
			// JSON does not distinguish an empty list from none.
			text, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			want = &inventory.Inventory{}
			if err := json.Unmarshal(text, want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, &got); diff != "" {
				t.Error(diff)
			}
			if strings.Contains(result.out, `"gpus": null`) {
				t.Error("gpus is null; want a list")
			}
		})
	}
}
