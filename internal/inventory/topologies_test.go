package inventory_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// The machines in machinetest have their CPUs and GPUs on the nodes of the published maps.
func TestPublishedMaps(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(recorded, "gpu-maps.json"))
	if err != nil {
		t.Skip("no published maps:", err)
	}
	var maps struct {
		Machines []struct {
			Name     string   `json:"name"`
			CPUs     []string `json:"cpus"`
			GPUNodes []int    `json:"gpu_nodes"`
		} `json:"machines"`
	}
	if err := json.Unmarshal(text, &maps); err != nil {
		t.Fatal(err)
	}
	described := map[string]func() machinetest.Machine{
		"dgx-a100-2xEPYC7742-NPS4-SMT": machinetest.DGXA100,
		"hgx-h100-2xXeon-56c-HT":       machinetest.HGXH100,
		"6gpu-2xXeon-24c-HT-uneven":    machinetest.Uneven,
		"gb200-2xGrace-4gpu":           machinetest.GB200,
	}
	for _, want := range maps.Machines {
		t.Run(want.Name, func(t *testing.T) {
			t.Parallel()
			machine, ok := described[want.Name]
			if !ok {
				t.Skip("not described by machinetest")
			}
			inv := read(t, machine().Dir(t))
			var cpus []string
			for _, n := range inv.Memory.Nodes {
				if n.CPUs != "" {
					cpus = append(cpus, n.CPUs)
				}
			}
			var nodes []int
			for _, g := range inv.GPUs {
				nodes = append(nodes, g.NUMANode)
			}
			if !cmp.Equal(cpus, want.CPUs) || !cmp.Equal(nodes, want.GPUNodes) {
				t.Errorf("CPUs %v, GPUs on nodes %v; want %v and %v", cpus, nodes, want.CPUs, want.GPUNodes)
			}
		})
	}
}
