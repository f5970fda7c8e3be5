package detect_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "write the golden files again")

// read reads the tree of a machine.
func read(tb testing.TB, root string) *inventory.Inventory {
	tb.Helper()
	inv, err := detect.Read(context.Background(), detect.Options{Root: root})
	must.Do(tb, err)
	return inv
}

// tree returns a directory with these files.
func tree(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, text := range files {
		must.Write(tb, dir, name, text)
	}
	return dir
}

// summary formats an inventory for reading: cores with the same place share a line.
func summary(inv *inventory.Inventory) string {
	var b strings.Builder
	fmt.Fprintf(&b, "machine %q %q %q virt=%t\n", inv.Arch, inv.OS.PrettyName, inv.Kernel, inv.OS.Virt)
	fmt.Fprintf(&b, "cpu %q\n  present %s\n  online %s\n  allowed %s\n", inv.CPU.Model, inv.CPU.Present, inv.CPU.Online, inv.CPU.Allowed)
	last := ""
	for _, c := range inv.CPU.List {
		if c.Core != c.ID {
			continue
		}
		position := fmt.Sprintf("package %d die %d l3 %d node %d capacity %d allowed %t, %d threads online of %d",
			c.Package, c.Die, c.L3, c.NUMANode, c.Capacity, c.Allowed, len(c.Siblings), c.Threads)
		if c.Kind != "" {
			position += ", kind " + c.Kind
		}
		if position != last {
			fmt.Fprintf(&b, "  core %v and on: %s\n", c.Siblings, position)
			last = position
		}
	}
	fmt.Fprintf(&b, "memory %d MiB\n", inv.Memory.TotalBytes>>20)
	for _, n := range inv.Memory.Nodes {
		fmt.Fprintf(&b, "  node %d: cpus %q, %d MiB, huge pages %d MiB, distances %v", n.ID, n.CPUs, n.MemoryBytes>>20, n.HugepagesBytes>>20, n.Distances)
		if n.GPU != "" {
			fmt.Fprintf(&b, ", memory of %s", n.GPU)
		}
		b.WriteByte('\n')
	}
	if inv.NVIDIA != nil {
		fmt.Fprintf(&b, "nvidia %+v\n", *inv.NVIDIA)
	}
	if inv.AMD != nil {
		fmt.Fprintf(&b, "amd %+v\n", *inv.AMD)
	}
	for _, g := range inv.GPUs {
		fmt.Fprintf(&b, "gpu %s/%d %s %s %q %q index %d node %d memory node %d minor %d render %d arch %q %d MiB %s/%s",
			g.PCI, g.Partition, g.Vendor, g.PCIID, g.Model, g.UUID, g.Index, g.NUMANode, g.MemoryNode, g.Minor, g.RenderMinor,
			g.Arch, g.MemoryBytes>>20, g.ComputePartition, g.MemoryPartition)
		if !g.Healthy {
			fmt.Fprintf(&b, " UNHEALTHY: %s", g.Error)
		}
		if g.Links != nil && g.Partition == 0 {
			fmt.Fprintf(&b, " links %s", strings.Join(g.Links, " "))
		}
		b.WriteByte('\n')
		for _, m := range g.MIG {
			fmt.Fprintf(&b, "  mig %q %s %s gi %d ci %d caps %d %d, %d MiB, %d slices, %d of memory from %d\n",
				m.Name, m.UUID, m.Profile, m.GPUInstance, m.ComputeInstance, m.GPUCap, m.ComputeCap, m.MemoryBytes>>20, m.Slices, m.MemorySlices, m.Start)
		}
	}
	for _, p := range inv.Problems {
		fmt.Fprintf(&b, "problem %s: %s\n", p.Subject, p.Detail)
	}
	return b.String()
}

func TestReadPublished(t *testing.T) {
	t.Parallel()
	for _, m := range machinetest.Published() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			dir := m.Dir(t)
			inv := read(t, dir)
			must.Golden(t, "testdata/"+m.Name+".golden", *update, summary(inv))
			if inv.Software.Docker.Version != "28.5.2" || inv.Software.Agent.Version != machinetest.AgentVersion || len(inv.Disks) != 2 {
				t.Errorf("software %+v, disks %v; want what kbnode/live.json says", inv.Software, inv.Disks)
			}
			must.Equal(t, inv, recaptured(t, detect.Options{Root: dir}))
		})
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for name, root := range map[string]string{
		"an empty directory":     t.TempDir(),
		"a directory not there":  filepath.Join(t.TempDir(), "absent"),
		"a tree without any CPU": tree(t, map[string]string{"proc/meminfo": "MemTotal: 1024 kB"}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if inv, err := detect.Read(t.Context(), detect.Options{Root: root}); err == nil {
				t.Errorf("read %+v, want an error", inv)
			}
			if err := detect.Capture(t.Context(), detect.Options{Root: root}, &bytes.Buffer{}); err == nil {
				t.Error("captured, want an error")
			}
		})
	}
}

// A tree comes from someone else and must not make kbnode read other files.
func TestReadStaysInTree(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{"sys/devices/system/cpu/online": "0-1", "etc/keep": "node7\n"})
	secret := filepath.Join(t.TempDir(), "os-release")
	must.Do(t, os.WriteFile(secret, []byte("ID=secret\n"), 0o600))
	must.Do(t, os.Symlink(secret, filepath.Join(dir, "etc/os-release")))
	must.Do(t, os.Symlink("keep", filepath.Join(dir, "etc/hostname")))
	inv := read(t, dir)
	if inv.OS.ID != "" || inv.Hostname != "node7" {
		t.Errorf("OS %q, host name %q; want none from outside the tree, and node7 through the link inside it", inv.OS.ID, inv.Hostname)
	}
}

// TestVirtual reads what says that a machine is a virtual one.
func TestVirtual(t *testing.T) {
	t.Parallel()
	dmi := func(vendor, product string) map[string]string {
		return map[string]string{"sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": product}
	}
	for name, row := range map[string]struct {
		arch  string
		files map[string]string
		want  bool
	}{
		"QEMU":                      {"arm64", dmi("QEMU", "KVM Virtual Machine"), true},
		"OpenStack":                 {"arm64", dmi("Red Hat", "OpenStack Compute"), true},
		"Amazon":                    {"arm64", dmi("Amazon EC2", "g5g.4xlarge"), true},
		"Google":                    {"arm64", dmi("Google", "Google Compute Engine"), true},
		"Azure":                     {"arm64", dmi("Microsoft Corporation", "Virtual Machine"), true},
		"VMware":                    {"arm64", dmi("VMware, Inc.", "VMware20,1"), true},
		"only the chassis":          {"arm64", map[string]string{"sys/class/dmi/id/sys_vendor": "A cloud", "sys/class/dmi/id/chassis_vendor": "QEMU"}, true},
		"a device tree":             {"arm64", map[string]string{"proc/device-tree/compatible": "linux,dummy-virt\x00"}, true},
		"Xen":                       {"arm64", map[string]string{"proc/device-tree/hypervisor/compatible": "xen,xen"}, true},
		"Amazon's whole machine":    {"arm64", dmi("Amazon EC2", "g5g.metal"), false},
		"a server":                  {"arm64", dmi("Supermicro", "ARS-221GL-NHIR"), false},
		"Microsoft's own machine":   {"arm64", dmi("Microsoft Corporation", "C2080"), false},
		"nothing":                   {"arm64", nil, false},
		"an x86 server of any name": {"amd64", dmi("QEMU", "KVM"), false}, // its CPUs would say so
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := machinetest.GH200()
			m.Arch, m.Files = row.arch, row.files
			dir := m.Dir(t)
			inv := read(t, dir)
			if inv.OS.Virt != row.want {
				t.Errorf("virtual is %t, want %t", inv.OS.Virt, row.want)
			}
			must.Equal(t, inv, recaptured(t, detect.Options{Root: dir}))
		})
	}
}

func TestReadWithoutLive(t *testing.T) {
	t.Parallel()
	m := machinetest.NoGPU()
	m.Live = nil
	m.Files = map[string]string{"usr/bin/nvidia-ctk": ""}
	inv := read(t, m.Dir(t))
	want := inventory.Software{CgroupV2: true, Toolkit: "/usr/bin/nvidia-ctk", Git: "/usr/bin/git", Cron: true}
	must.Equal(t, want, inv.Software)
}

func TestReadBrokenLive(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"not JSON":                     "{",
		"a newer schema":               `{"schema": 99}`,
		"a terminal's escape sequence": `{"schema": 1, "software": {"systemd": "\u001b[2J"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := machinetest.NoGPU()
			m.Files = map[string]string{"kbnode/live.json": text}
			inv := read(t, m.Dir(t))
			if len(inv.Problems) != 1 || inv.Problems[0].Subject != "kbnode/live.json" {
				t.Errorf("problems %v, want one of kbnode/live.json", inv.Problems)
			}
			if inv.Software.Git == "" || inv.Software.Systemd != "" {
				t.Error("the files of the tree were not read instead")
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	dir := machinetest.HGXH100().Dir(b)
	for b.Loop() {
		read(b, dir)
	}
}

// recorded contains trees of real machines, from hwloc's test suite. It is beside the
// repository if available.
const recorded = "../../../../shared/topologies"

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
			must.Golden(t, "testdata/recorded/"+name+".golden", *update, summary(read(t, machinetest.Unpack(t, archive))))
		})
	}
}
