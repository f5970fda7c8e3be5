package detect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/machine/detect/probe"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

// nvidiaTree returns a tree with the files of text archives; later ones win.
func nvidiaTree(tb testing.TB, archives ...string) tree {
	tb.Helper()
	dir := tb.TempDir()
	for _, archive := range archives {
		for _, f := range txtar.Parse([]byte(archive)).Files {
			must.Write(tb, dir, f.Name, string(f.Data))
		}
	}
	return treeAt(tb, dir)
}

func treeAt(tb testing.TB, dir string) tree {
	tb.Helper()
	t, err := openTree(dir)
	must.Do(tb, err)
	tb.Cleanup(func() { _ = t.close() })
	return t
}

// pciGPU returns the files of a GPU's PCI device.
func pciGPU(pci, device, node string) string {
	dir := "-- sys/bus/pci/devices/" + pci + "/"
	return dir + "vendor --\n0x10de\n" + dir + "device --\n0x" + device + "\n" + dir + "class --\n0x030200\n" +
		dir + "numa_node --\n" + node + "\n" + dir + "uevent --\nDRIVER=nvidia\nPCI_CLASS=30200\n"
}

// procGPU returns the driver's file about a GPU.
func procGPU(pci, uuid, minor string) string {
	return "-- proc/driver/nvidia/gpus/" + pci + "/information --\nModel: \t\t NVIDIA B200\nIRQ:   \t\t 512\nGPU UUID: \t " + uuid +
		"\nBus Type: \t PCIe\nBus Location: \t " + pci + "\nDevice Minor: \t " + minor + "\nGPU Excluded:\t No\n"
}

const procDriver = `
-- proc/driver/nvidia/version --
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23 10:11:16 UTC 2025
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
-- proc/devices --
Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
237 nvidia-caps
238 nvidia-caps-imex-channels
511 nvidia-uvm

Block devices:
  8 sd
509 nvidia-uvm
`

// summary has one line per GPU, and one per problem.
func summary(gpus []inventory.GPU, problems []inventory.Problem) string {
	var b strings.Builder
	for _, g := range gpus {
		health := "healthy"
		if !g.Healthy {
			health = "broken"
		}
		fmt.Fprintf(&b, "%s %s %s [%s] %s node %d/%d minor %d %s\n",
			health, g.PCI, g.UUID, g.Model, g.PCIID, g.NUMANode, g.MemoryNode, g.Minor, g.Arch)
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "%s: %s\n", p.Subject, p.Detail)
	}
	return b.String()
}

func TestNVIDIAWithoutNVML(t *testing.T) {
	t.Parallel()
	const u0, u1 = "GPU-b2000000-0000-4000-8000-000000000000", "GPU-b2000000-0000-4000-8000-000000000001"
	two := pciGPU("0000:1a:00.0", "2901", "0") + pciGPU("0000:9a:00.0", "2901", "1")
	for _, row := range []struct {
		name, files, source, want string
	}{
		{
			name: "the driver lacks one", files: two + procDriver + procGPU("0000:9a:00.0", u1, "1"), source: "proc",
			want: `broken 0000:1a:00.0  [NVIDIA B200] 10de:2901 node 0/-1 minor -1 sm_100
healthy 0000:9a:00.0 GPU-b2000000-0000-4000-8000-000000000001 [NVIDIA B200] 10de:2901 node 1/-1 minor 1 sm_100
gpu 0000:1a:00.0: the NVIDIA driver does not list it
`,
		},
		{
			name:   "the bus lacks one",
			files:  pciGPU("0000:1a:00.0", "2901", "0") + procDriver + procGPU("0000:1a:00.0", u0, "0") + procGPU("0000:9a:00.0", u1, "1"),
			source: "proc",
			want: `healthy 0000:1a:00.0 GPU-b2000000-0000-4000-8000-000000000000 [NVIDIA B200] 10de:2901 node 0/-1 minor 0 sm_100
broken 0000:9a:00.0 GPU-b2000000-0000-4000-8000-000000000001 [NVIDIA B200]  node -1/-1 minor 1 
gpu 0000:9a:00.0: it is missing from the PCI bus
`,
		},
		{name: "no sysfs", files: procDriver + procGPU("0000:1a:00.0", u0, "0"), source: "proc", want: "healthy 0000:1a:00.0 GPU-b2000000-0000-4000-8000-000000000000 [NVIDIA B200]  node -1/-1 minor 0 \n"},
		{
			name: "not started yet", files: pciGPU("0000:1a:00.0", "2901", "-1") + procDriver +
				procGPU("0000:1a:00.0", "GPU-????????-????-????-????-????????????", "0"),
			source: "proc",
			want:   "healthy 0000:1a:00.0  [NVIDIA B200] 10de:2901 node -1/-1 minor 0 sm_100\n",
		},
		{
			name: "excluded", files: pciGPU("0000:1a:00.0", "2901", "0") + procDriver +
				"-- proc/driver/nvidia/gpus/0000:1a:00.0/information --\nModel: NVIDIA B200\nGPU Excluded:\t Yes\n",
			source: "proc",
			want: `broken 0000:1a:00.0  [NVIDIA B200] 10de:2901 node 0/-1 minor -1 sm_100
gpu 0000:1a:00.0: the NVIDIA driver is configured to exclude it (NVreg_ExcludedGpus)
`,
		},
		{
			name: "a tree of PCI devices", files: pciGPU("0000:1a:00.0", "2330", "0") + pciGPU("0000:1b:00.0", "abcd", "0"), source: "pci",
			want: `healthy 0000:1a:00.0  [NVIDIA H100 80GB HBM3] 10de:2330 node 0/-1 minor -1 sm_90
healthy 0000:1b:00.0  [NVIDIA device 10de:abcd] 10de:abcd node 0/-1 minor -1 
`,
		},
		{
			name: "a captured machine without the driver", files: pciGPU("0000:1a:00.0", "2330", "0") + "-- kbnode/live.json --\n{}\n", source: "pci",
			want: `broken 0000:1a:00.0  [NVIDIA H100 80GB HBM3] 10de:2330 node 0/-1 minor -1 sm_90
gpu 0000:1a:00.0: the NVIDIA driver is not loaded
`,
		},
		{
			name:   "given to a virtual machine",
			files:  pciGPU("0000:1a:00.0", "2330", "0") + "-- sys/bus/pci/devices/0000:1a:00.0/uevent --\nDRIVER=vfio-pci\n",
			source: "pci",
			want: `broken 0000:1a:00.0  [NVIDIA H100 80GB HBM3] 10de:2330 node 0/-1 minor -1 sm_90
gpu 0000:1a:00.0: it is bound to the driver vfio-pci, not nvidia
`,
		},
		{
			name: "sound, switches and virtual functions are no GPUs", source: "pci",
			files: pciGPU("0000:1a:00.0", "27b8", "0") + pciGPU("0000:1a:00.4", "27b8", "0") +
				pciGPU("0000:05:00.0", "22a3", "0") + "-- sys/bus/pci/devices/0000:05:00.0/class --\n0x068000\n" +
				pciGPU("0000:06:00.0", "2901", "0") + "-- sys/bus/pci/devices/0000:06:00.0/vendor --\n0x1002\n",
			want: "healthy 0000:1a:00.0  [NVIDIA L4] 10de:27b8 node 0/-1 minor -1 sm_89\n",
		},
		{
			name: "a tree without the directory of links", source: "pci",
			files: strings.ReplaceAll(pciGPU("0001:1a:00.0", "2335", "3"), "sys/bus/pci/devices/", "sys/devices/pci0001:00/0001:00:01.0/"),
			want:  "healthy 0001:1a:00.0  [NVIDIA H200] 10de:2335 node 3/-1 minor -1 sm_90\n",
		},
		{
			name: "a GPU's memory is a NUMA node", source: "proc", // POWER9, as hwloc recorded one: no vendor, no numa_node
			files: `
-- sys/bus/pci/devices/0035:04:00.0/class --
0x030000
-- sys/bus/pci/devices/0035:04:00.0/local_cpus --
0000,ff000000,00000000
-- proc/driver/nvidia/gpus/0035:04:00.0/numa_status --
Node:      251
Status:    online
Address:   40000000000
Size:      3f0000000
-- sys/devices/system/node/node251/cpumap --
0000,00000000,00000000
`,
			want: "healthy 0035:04:00.0  [NVIDIA device]  node -1/251 minor -1 \n",
		},
		{
			name: "a node that has CPUs is no GPU's memory", source: "proc",
			files: procGPU("0035:04:00.0", u0, "0") +
				"-- proc/driver/nvidia/gpus/0035:04:00.0/numa_status --\nNode: 0\n-- sys/devices/system/node/node0/cpulist --\n0-7\n",
			want: "healthy 0035:04:00.0 GPU-b2000000-0000-4000-8000-000000000000 [NVIDIA B200]  node -1/-1 minor 0 \n",
		},
		{
			name: "garbage", source: "proc",
			files: "-- proc/driver/nvidia/version --\nNVRM version: none\x00\n-- proc/devices --\n511\nx nvidia-uvm\n-1 nvidia-caps\n" +
				"-- proc/driver/nvidia/gpus/readme/information --\nModel: x\n" +
				"-- proc/driver/nvidia/gpus/0000:1a:00.0/information --\nModel:\t\x1b[31mred\nGPU UUID: GPU-$(reboot)\nDevice Minor: 99999999999999999999\nGPU Ex",
			want: "healthy 0000:1a:00.0  [red]  node -1/-1 minor -1 \n",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			gpus, nv, problems := nvidiaGPUs(nvidiaTree(t, row.files), nil, nil)
			must.Equal(t, row.want, summary(gpus, problems))
			if nv == nil || nv.Source != row.source {
				t.Errorf("source: got %+v, want %s", nv, row.source)
			}
		})
	}
}

func TestNVIDIADriver(t *testing.T) {
	t.Parallel()
	gpus, got, problems := nvidiaGPUs(nvidiaTree(t, procDriver), nil, &probe.Error{Code: 18})
	want := &inventory.NVIDIA{
		Source: "pci", DriverVersion: "580.95.05", UVMMajor: 511, CapsMajor: 237,
		NVMLError: "NVML: the driver was upgraded while the old kernel module is loaded; reboot, or reload the nvidia modules", NVMLCode: 18,
	}
	must.Equal(t, want, got)
	if len(gpus) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Detail, "reboot") {
		t.Errorf("got %v, %v", gpus, problems)
	}
	for _, refusal := range []error{nil, probe.ErrNotEmbedded, &probe.Error{Absent: true}} {
		if gpus, nv, problems := nvidiaGPUs(nvidiaTree(t), nil, refusal); gpus != nil || nv != nil || problems != nil {
			t.Errorf("without hardware and with %v: %v, %v, %v", refusal, gpus, nv, problems)
		}
	}
}

func TestNVIDIAWithNVML(t *testing.T) {
	t.Parallel()
	num := func(n int) *int { return &n }
	answer := func(i int, pci string) nvml.GPU {
		return nvml.GPU{
			Index: i, PCI: pci, PCIID: "10de:2901", UUID: fmt.Sprintf("GPU-b2000000-0000-4000-8000-%012d", i), Name: "NVIDIA B200",
			Minor: num(i), Compute: "10.0",
		}
	}
	files := pciGPU("0000:1a:00.0", "2901", "0") + pciGPU("0000:3b:00.0", "2901", "0") + pciGPU("0000:9a:00.0", "2901", "1") + procDriver
	const healthy = `healthy 0000:1a:00.0 GPU-b2000000-0000-4000-8000-000000000000 [NVIDIA B200] 10de:2901 node 0/-1 minor 0 sm_100
healthy 0000:9a:00.0 GPU-b2000000-0000-4000-8000-000000000002 [NVIDIA B200] 10de:2901 node 1/-1 minor 2 sm_100
`
	lost := func(rest string) string { return strings.Replace(healthy, "\n", "\n"+rest+"\n", 1) }
	for _, row := range []struct {
		name, files string
		gpus        []nvml.GPU
		want        string
	}{
		{
			name: "nodes come from sysfs", files: files,
			gpus: []nvml.GPU{answer(0, "00000000:1A:00.0"), answer(1, "0000:3b:00.0"), answer(2, "0000:9a:00.0")},
			want: lost("healthy 0000:3b:00.0 GPU-b2000000-0000-4000-8000-000000000001 [NVIDIA B200] 10de:2901 node 0/-1 minor 1 sm_100"),
		},
		{
			name: "a lost GPU has an address", files: files + procGPU("0000:3b:00.0", "GPU-b2000000-0000-4000-8000-000000000001", "1"),
			gpus: []nvml.GPU{answer(0, "0000:1a:00.0"), {Index: 1, PCI: "0000:3b:00.0", Error: "GPU is lost", Code: 15}, answer(2, "0000:9a:00.0")},
			want: lost("broken 0000:3b:00.0 GPU-b2000000-0000-4000-8000-000000000001 [NVIDIA B200] 10de:2901 node 0/-1 minor 1 sm_100") +
				"gpu 0000:3b:00.0: GPU is lost\n",
		},
		{
			name: "a lost GPU has no address", files: files,
			gpus: []nvml.GPU{answer(0, "0000:1a:00.0"), {Index: 1, Error: "GPU is lost", Code: 15}, answer(2, "0000:9a:00.0")},
			want: lost("broken 0000:3b:00.0  [NVIDIA B200] 10de:2901 node 0/-1 minor -1 sm_100") + "gpu 0000:3b:00.0: GPU is lost\n",
		},
		{
			name: "NVML forgot a lost GPU", files: files,
			gpus: []nvml.GPU{answer(0, "0000:1a:00.0"), answer(2, "0000:9a:00.0")},
			want: lost("broken 0000:3b:00.0  [NVIDIA B200] 10de:2901 node 0/-1 minor -1 sm_100") +
				"gpu 0000:3b:00.0: NVML does not list it; it may have fallen off the bus\n",
		},
		{
			name: "a lost GPU has neither address nor PCI device", files: pciGPU("0000:1a:00.0", "2901", "0") + pciGPU("0000:9a:00.0", "2901", "1"),
			gpus: []nvml.GPU{answer(0, "0000:1a:00.0"), {Index: 1, Error: "GPU is lost", Code: 15}, answer(2, "0000:9a:00.0")},
			want: healthy + "nvml: GPU 1: GPU is lost\n",
		},
		{
			name: "the same address twice, and no address", files: files,
			gpus: []nvml.GPU{answer(0, "0000:1a:00.0"), answer(2, "0000:9a:00.0"), answer(2, "0000:9a:00.0"), answer(1, "../etc"), answer(1, "0000:3b:00.0")},
			want: lost("healthy 0000:3b:00.0 GPU-b2000000-0000-4000-8000-000000000001 [NVIDIA B200] 10de:2901 node 0/-1 minor 1 sm_100") +
				"nvml: GPU 2 has the unusable PCI address \"0000:9a:00.0\"\nnvml: GPU 1 has the unusable PCI address \"../etc\"\n",
		},
		{
			// The machine of the tests: NVML's addresses belong to other devices.
			name: "sysfs has another vendor there", files: strings.NewReplacer("0x10de", "0x1b36", "0x2901", "0x0005").Replace(files),
			gpus: []nvml.GPU{answer(0, "0000:1a:00.0"), answer(2, "0000:9a:00.0")}, want: healthy,
		},
		{
			name: "memory nodes of Grace", gpus: []nvml.GPU{
				{PCI: "0000:1a:00.0", UUID: "GPU-1", Name: "NVIDIA GB200", MemoryNode: num(2)},
				{PCI: "0000:1b:00.0", UUID: "GPU-2", Name: "NVIDIA GB200", MemoryNode: num(0)},
			},
			files: "-- sys/devices/system/node/node0/cpulist --\n0-71\n-- sys/devices/system/node/node2/cpulist --\n\n",
			want: `healthy 0000:1a:00.0 GPU-1 [NVIDIA GB200]  node -1/2 minor -1 
healthy 0000:1b:00.0 GPU-2 [NVIDIA GB200]  node -1/-1 minor -1 
`,
		},
		{
			name: "hostile names", gpus: []nvml.GPU{{PCI: "0000:1a:00.0", UUID: "GPU-1\nx", Name: "a\x1b]0;b\x07c"}},
			want: "broken 0000:1a:00.0  [ac]  node -1/-1 minor -1 \ngpu 0000:1a:00.0: NVML reports no UUID\n",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			report := &nvml.Report{Schema: nvml.Schema, OK: true, Driver: "580.95.05", NVML: "13.580.95.05", CUDA: "13.0", GPUs: row.gpus}
			gpus, nv, problems := nvidiaGPUs(nvidiaTree(t, row.files), report, nil)
			must.Equal(t, row.want, summary(gpus, problems))
			if nv.Source != "nvml" || nv.CUDAVersion != "13.0" || nv.DriverVersion != "580.95.05" {
				t.Errorf("driver: %+v", nv)
			}
		})
	}
}

// TestHungGPUs places GPUs for which the driver does not answer: they are unread, not lost, and what is lost stays lost
// unless it may be one of them.
func TestHungGPUs(t *testing.T) {
	t.Parallel()
	const a, b, c = "0000:1a:00.0", "0000:3b:00.0", "0000:9a:00.0"
	read := func(i int, pci string) nvml.GPU {
		return nvml.GPU{Index: i, PCI: pci, UUID: fmt.Sprintf("GPU-%d", i), Name: "NVIDIA B200"}
	}
	broken := func(i int) nvml.GPU { return nvml.GPU{Index: i, Error: "GPU is lost", Code: nvml.CodeLost} }
	all := pciGPU(a, "2901", "0") + pciGPU(b, "2901", "0") + pciGPU(c, "2901", "1") + procDriver
	for _, row := range []struct {
		name, files string
		gpus        []nvml.GPU
		hung        []nvml.Hung
		want        string // of each GPU: its index, and what is known of it
		unread      string // subjects
	}{
		{"with its address", all, []nvml.GPU{read(0, a), read(2, c)}, []nvml.Hung{{Index: 1, PCI: b}}, "0 read, 1 unread, 2 read", "gpu " + b},
		{"without", all, []nvml.GPU{read(0, a), read(2, c)}, []nvml.Hung{{Index: 1}}, "0 read, 1 unread, 2 read", "gpu " + b},
		{"two without", all, []nvml.GPU{read(1, b)}, []nvml.Hung{{Index: 0}, {Index: 2}}, "0 unread, 1 read, 2 unread", "gpu " + a + ", gpu " + c},
		{"with its address, another is lost", all, []nvml.GPU{read(0, a), broken(2)}, []nvml.Hung{{Index: 1, PCI: b}}, "0 read, 1 unread, 2 broken", "gpu " + b},
		{"without, another is lost", all, []nvml.GPU{read(0, a), broken(2)}, []nvml.Hung{{Index: 1}}, "0 read, 1 unread, 2 broken", "gpu " + b},
		{"without, another is not listed", all, []nvml.GPU{read(0, a)}, []nvml.Hung{{Index: 1}}, "0 read, -1 unread, -1 unread", "gpus, gpu " + b + ", gpu " + c},
		{"with its address, another is not listed", all, []nvml.GPU{read(0, a)}, []nvml.Hung{{Index: 1, PCI: b}}, "0 read, 1 unread, -1 broken", "gpu " + b},
		{
			"another has another driver", strings.Replace(all, "DRIVER=nvidia", "DRIVER=vfio-pci", 1), []nvml.GPU{read(1, c)}, []nvml.Hung{{Index: 0}},
			"-1 broken, 0 unread, 1 read", "gpu " + b,
		},
		{"no file has it", procDriver, []nvml.GPU{read(0, a)}, []nvml.Hung{{Index: 1}}, "0 read", "gpus"},
		{"another vendor's address", procDriver, nil, []nvml.Hung{{Index: 0, PCI: a}}, "0 unread", "gpu " + a},
		{"the address of another", all, []nvml.GPU{read(0, a), read(2, c)}, []nvml.Hung{{Index: 1, PCI: a}}, "0 read, 1 unread, 2 read", "gpu " + b},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			report := &nvml.Report{Schema: nvml.Schema, OK: true, GPUs: row.gpus, Hung: row.hung}
			gpus, nv, problems := nvidiaGPUs(nvidiaTree(t, row.files), report, nil)
			var got []string
			for _, g := range gpus {
				is := "read"
				switch {
				case g.Unread && g.Healthy && g.NVML == nil:
					is = "unread"
				case !g.Healthy && !g.Unread:
					is = "broken"
				}
				got = append(got, fmt.Sprintf("%d %s", g.Index, is))
			}
			must.Equal(t, row.want, strings.Join(got, ", "))
			inv := &inventory.Inventory{GPUs: gpus, Problems: problems}
			addUnread(inv, nil)
			must.Equal(t, row.unread, strings.Join(inv.Unread, ", "))
			must.Equal(t, "", nv.NVMLError)
		})
	}
}

func TestNVMLFacts(t *testing.T) {
	t.Parallel()
	num := func(n int) *int { return &n }
	u32 := func(n uint32) *uint32 { return &n }
	n := nvml.GPU{
		Index: 4, PCI: "0000:1a:00.0", UUID: "GPU-1", Name: "NVIDIA H100 80GB HBM3", Serial: "165", Compute: "9.0",
		Memory: &nvml.Memory{TotalBytes: 80 << 30, UsedBytes: 1 << 30}, Persistence: "on", ComputeMode: "default",
		ECCMode: &nvml.Mode{Current: "on", Pending: "off"}, MIGMode: &nvml.Mode{Current: "on", Pending: "on"},
		Power: &nvml.Power{Limit: u32(700_000)}, Clocks: &nvml.Clocks{MaxSM: u32(1980)},
		Processes: []nvml.Process{{PID: 1}, {PID: 2}},
		Unread:    []string{"nvmlDeviceGetSerial: Unknown Error"},
		MIG: []nvml.MIG{
			{UUID: "MIG-1", Name: "NVIDIA H100 MIG 3g.40gb", GPUInstance: 1, Slices: 3, MemoryBytes: 40 << 30, Start: num(4), Size: num(4)},
			{UUID: "MIG-2", GPUInstance: 2},
			{UUID: ""},
		},
	}
	gpus, _, problems := nvidiaGPUs(nvidiaTree(t), &nvml.Report{OK: true, GPUs: []nvml.GPU{n}}, nil)
	want := []inventory.GPU{{
		Vendor: "nvidia", UUID: "GPU-1", PCI: "0000:1a:00.0", Index: 4, Model: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30,
		NUMANode: -1, MemoryNode: -1, Minor: -1, RenderMinor: -1, Arch: "sm_90", Healthy: true, Serial: "165",
		PersistenceMode: "on", ECCMode: "on", MIGMode: "on", PowerLimitMilliwatts: 700_000, MaxSMClockMHz: 1980,
		ComputeMode: "default", Processes: 2, MemoryUsedBytes: 1 << 30,
		MIG: []inventory.MIG{
			{UUID: "MIG-1", Name: "NVIDIA H100 MIG 3g.40gb", Profile: "3g.40gb", GPUInstance: 1, Slices: 3, MemoryBytes: 40 << 30, Start: 4, MemorySlices: 4, GPUCap: -1, ComputeCap: -1},
			{UUID: "MIG-2", GPUInstance: 2, Start: -1, GPUCap: -1, ComputeCap: -1},
		},
		NVML: &n,
	}}
	must.Equal(t, want, gpus)
	if diff := cmp.Diff([]inventory.Problem{
		{Subject: "gpu 0000:1a:00.0", Detail: "nvmlDeviceGetSerial: Unknown Error"},
		{Subject: "gpu 0000:1a:00.0", Detail: "/proc/driver/nvidia-caps/mig-minors has no capabilities for 2 of its 2 MIG instances (MIG-1, MIG-2)"},
	}, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestCapturedNVML(t *testing.T) {
	t.Parallel()
	pci := pciGPU("0000:1a:00.0", "2901", "0")
	for _, row := range []struct{ name, report, source, problem string }{
		{"answered", `{"schema":1,"ok":true,"gpus":[{"index":0,"pci":"0000:1a:00.0","uuid":"GPU-1"}]}`, "nvml", ""},
		{"refused", `{"schema":1,"ok":false,"code":9,"error":"Driver Not Loaded","gpus":[]}`, "pci", "the NVIDIA driver is not loaded"},
		{"another schema", `{"schema":7,"ok":true}`, "pci", "it has schema 7"},
		{"cut short", `{"schema":1,"ok":true,"gp`, "pci", "read NVML report"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			gpus, nv, problems := readNVIDIA(t.Context(), nvidiaTree(t, pci+"-- kbnode/nvml.json --\n"+row.report+"\n"))
			if len(gpus) != 1 || nv.Source != row.source {
				t.Fatalf("%d GPUs, driver %+v", len(gpus), nv)
			}
			if got := summary(nil, problems); (row.problem == "") != (got == "") || !strings.Contains(got, row.problem) {
				t.Errorf("problems %q, want %q", got, row.problem)
			}
		})
	}
}

// TestNVMLSilence tells an NVML that took too long from a probe that does not run.
func TestNVMLSilence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
	for _, tt := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("the NVML probe did not answer and was killed: %w", context.DeadlineExceeded), 0},
		{fmt.Errorf("another NVML probe is still running: %w", context.DeadlineExceeded), 0},
		{probe.ErrNoLoader, inventory.NVMLNotAsked},
		{errors.New("start the NVML probe: permission denied"), inventory.NVMLNotAsked},
		{&probe.Error{Code: 12, Text: "no library", Absent: true}, 12},
	} {
		if _, nv, _ := nvidiaGPUs(treeAt(t, dir), nil, tt.err); nv.NVMLCode != tt.want || nv.NVMLError == "" {
			t.Errorf("%v: %+v", tt.err, nv)
		}
	}
}
