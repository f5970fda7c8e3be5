package vm

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestShapeTrees: what a machine of AMD's shapes gets is read as what it should be.
func TestShapeTrees(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		shape       Shape
		gpus, parts int
		mode        string
	}{
		"SPX": {SPX, 8, 1, "SPX"},
		"CPX": {CPX, 64, 8, "CPX"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			unpackTree(t, amdTree(t, row.shape.amd()), dir)
			if _, err := os.Stat(filepath.Join(dir, "sys/devices")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the tree has CPUs and NUMA nodes, which the machine has itself: %v", err)
			}
			// Without a CPU it is no machine.
			must.Do(t, os.MkdirAll(filepath.Join(dir, "sys/devices/system/cpu"), 0o700))
			must.Do(t, os.WriteFile(filepath.Join(dir, "sys/devices/system/cpu/online"), []byte("0\n"), 0o600))
			inv, err := inventory.Read(t.Context(), inventory.Options{Root: dir})
			must.Do(t, err)
			if len(inv.GPUs) != row.gpus || inv.NVIDIA != nil || inv.AMD == nil {
				t.Fatalf("%d GPUs, want %d", len(inv.GPUs), row.gpus)
			}
			for i, g := range inv.GPUs {
				device, part := i/row.parts, i%row.parts
				if !g.Healthy || g.Partition != part || g.NUMANode != device/4 || g.RenderMinor != 128+8*device+part || g.ComputePartition != row.mode || len(g.Links) != 7 {
					t.Errorf("GPU %d: %+v", i, g)
				}
			}
			if first, last := inv.GPUs[0].PCI, inv.GPUs[row.gpus-1].PCI; first != "0000:21:00.0" || last != "0000:84:00.0" {
				t.Errorf("addresses from %s to %s", first, last)
			}
		})
	}
}

func unpackTree(t *testing.T, archive, dir string) {
	t.Helper()
	r := tar.NewReader(strings.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must.Do(t, err)
		path := filepath.Join(dir, h.Name)
		text, err := io.ReadAll(r)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		must.Do(t, err)
	}
}
