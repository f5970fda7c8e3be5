package vm

import (
	"archive/tar"
	"bytes"
	_ "embed"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/machinetest"
)

//go:embed shape/sim-shape
var simShape string

// Shape is other GPUs for a machine than its eight whole ones. It is put over those of a
// running machine, so it needs no template of its own, and ends with a reboot.
type Shape struct {
	mig []string
	amd func() machinetest.Machine
}

// AMD's shapes: eight MI300X at the addresses of the eight GPUs, whole or in parts.
var (
	SPX = Shape{amd: func() machinetest.Machine { return AMDMachine(1, "SPX", "NPS1") }}
	CPX = Shape{amd: func() machinetest.Machine { return AMDMachine(8, "CPX", "NPS4") }}
	DPX = Shape{amd: func() machinetest.Machine { return AMDMachine(2, "DPX", "NPS1", 0) }} // the first one alone
)

// MIG has some GPUs in instances, such as "0:4g.90gb,3g.90gb". A machine that has such a
// shape can be given another one; instances that stay get new UUIDs all the same.
func MIG(layout ...string) Shape { return Shape{mig: layout} }

// AMDMachine is the machine with eight MI300X of so many partitions each, or only some of
// them. Its CPUs and NUMA nodes are those that the machine has in truth.
func AMDMachine(partitions int, compute, memory string, only ...int) machinetest.Machine {
	m := machinetest.Machine{Packages: NUMANodes, Nodes: 1, Cores: CPUs / NUMANodes / 2, Threads: 2, CoresPerL3: CPUs / NUMANodes / 2, NodeBytes: 2 << 30}
	m.AMD = slices.Clone(machinetest.MI300X().AMD)
	m.Files = map[string]string{}
	for i, bus := range strings.Fields("21 22 23 24 81 82 83 84") { // as sim-gpu has them
		g := &m.AMD[i]
		g.PCI, g.Node = "0000:"+bus+":00.0", i/4
		if g.Memory = memory; len(only) == 0 || slices.Contains(only, i) {
			g.Partitions, g.Compute = partitions, compute
		}
		at := "sys/bus/pci/devices/" + g.PCI + "/"
		maps.Copy(m.Files, map[string]string{
			at + "power_dpm_force_performance_level": "auto",
			at + "gpu_busy_percent":                  "0",
			at + "pp_dpm_sclk":                       "0: 132Mhz *\n1: 2100Mhz",
			at + "ras/umc_err_count":                 "ue: 0\nce: 0",
			at + "ras/gfx_err_count":                 "ue: 0\nce: 0",
		})
	}
	return m
}

// Shape gives the machine other GPUs. It is for a machine on which nothing uses those it has.
func (m *Machine) Shape(s Shape) {
	m.t.Helper()
	m.Put("/usr/local/sbin/sim-shape", 0o755, simShape)
	if s.amd == nil {
		m.Sh("sim-shape mig " + strings.Join(s.mig, " "))
		return
	}
	m.Put("/root/amd.tar", 0o600, amdTree(m.t, s.amd()))
	m.Sh("sim-shape amd /root/amd.tar")
}

// amdTree is an archive of what AMD's driver shows in /sys, without the real machine's part.
func amdTree(tb testing.TB, machine machinetest.Machine) string {
	tb.Helper()
	root := os.DirFS(machine.Dir(tb))
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, dir := range []string{"sys/bus/pci/devices", "sys/class/kfd", "sys/module/amdgpu"} {
		err := fs.WalkDir(root, dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(root, path)
			if err == nil {
				err = w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(text))})
			}
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return archive.String()
}
