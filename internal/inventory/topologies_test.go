package inventory_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/machinetest"
)

// recorded contains trees of real machines, from hwloc's test suite. It is beside the
// repository if available.
const recorded = "../../../shared/topologies"

func TestReadRecorded(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob(filepath.Join(recorded, "*.tar.bz2"))
	if err != nil || len(archives) == 0 {
		t.Skip("no recorded machines at", recorded)
	}
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.bz2")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, filepath.Join("recorded", name+".golden"), summary(read(t, machinetest.Unpack(t, archive))))
		})
	}
}
