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

const simShapePath = "/usr/local/sbin/sim-shape"

// MIG has some GPUs in instances, such as "0:4g.90gb,3g.90gb". It is for a machine on which nothing uses the GPUs
// that it has, needs no template of its own, and ends with a reboot. A machine that has instances can be given
// others; those that stay get new UUIDs all the same.
func (m *Machine) MIG(layout ...string) {
	m.t.Helper()
	m.Put(simShapePath, 0o755, simShape)
	m.Sh("sim-shape mig " + strings.Join(layout, " "))
}

// CPX has eight MI300X at the addresses of the eight GPUs, each in eight partitions. It is for the same machines.
func (m *Machine) CPX() {
	m.t.Helper()
	m.Put(simShapePath, 0o755, simShape)
	m.Put("/root/amd.tar", 0o600, amdTree(m.t, amdMachine()))
	m.Sh("sim-shape amd /root/amd.tar")
}

// amdMachine is the machine of CPX. Its CPUs and NUMA nodes are those that the machine has in truth.
func amdMachine() machinetest.Machine {
	m := machinetest.Machine{Packages: NUMANodes, Nodes: 1, Cores: CPUs / NUMANodes / 2, Threads: 2, CoresPerL3: CPUs / NUMANodes / 2, NodeBytes: 2 << 30}
	m.AMD = slices.Clone(machinetest.MI300X().AMD)
	m.Files = map[string]string{}
	for i, bus := range strings.Fields("21 22 23 24 81 82 83 84") { // as sim-gpu has them
		g := &m.AMD[i]
		g.PCI, g.Node = "0000:"+bus+":00.0", i/4
		g.Partitions, g.Compute, g.Memory = 8, "CPX", "NPS4"
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
