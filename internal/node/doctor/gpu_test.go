package doctor

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

const loaded = "570.86.15"

func pciOf(k int) string { return fmt.Sprintf("0000:%02x:00.0", 0x1a+k) }

// h100s returns n GPUs without faults.
func h100s(n int) *inventory.Inventory {
	inv := &inventory.Inventory{Kernel: "6.8.0-40-generic", OS: inventory.OS{ID: "ubuntu"}, NVIDIA: &inventory.NVIDIA{Source: "nvml", DriverVersion: loaded, CUDAVersion: "12.8", UVMMajor: 510}}
	for k := range n {
		limit := uint32(700_000)
		errors, lanes, most, links := uint64(0), 16, 16, 18
		inv.GPUs = append(inv.GPUs, inventory.GPU{
			Vendor: "nvidia", UUID: fmt.Sprintf("GPU-%d", k), PCI: pciOf(k), Model: "NVIDIA H100 80GB HBM3", Minor: k, Healthy: true,
			PersistenceMode: "on", ECCMode: "on", MIGMode: "off", ComputeMode: "default", PowerLimitMilliwatts: 700_000, MaxSMClockMHz: 1980,
			NVML: &nvml.GPU{
				Power: &nvml.Power{Limit: &limit, Default: &limit, Enforced: &limit}, ECCMode: &nvml.Mode{Current: "on", Pending: "on"},
				ECC: &nvml.ECC{VolatileUncorrected: &errors}, PCIe: &nvml.PCIe{Width: &lanes, MaxWidth: &most}, NVLinksUp: &links,
			},
		})
	}
	return inv
}

// mi300s returns n AMD GPUs without faults.
func mi300s(n int) *inventory.Inventory {
	inv := &inventory.Inventory{Kernel: "6.8.0-40-generic", AMD: &inventory.AMD{DriverVersion: "6.12.12", KFD: true}}
	for k := range n {
		inv.GPUs = append(inv.GPUs, inventory.GPU{
			Vendor: "amd", UUID: fmt.Sprintf("GPU-%d", k), PCI: pciOf(k), Model: "AMD Instinct MI300X", Healthy: true,
			ComputePartition: "SPX", MemoryPartition: "NPS1", PerformanceLevel: "auto",
		})
	}
	return inv
}

// boundSlots returns the bindings' file of slots with the GPUs of h100s.
func boundSlots(n int) map[string]string {
	var list []plan.Binding
	for k := range n {
		list = append(list, plan.Binding{Slot: k, Member: plan.Member{GPU: k, UUID: fmt.Sprintf("GPU-%d", k), PCI: pciOf(k), Vendor: "nvidia"}})
	}
	return bindings(list)
}

func bindings(list []plan.Binding) map[string]string {
	text, err := json.Marshal(map[string]any{"schema": plan.Schema, "slots": list})
	if err != nil {
		panic(err)
	}
	return map[string]string{plan.BindingsPath: string(text)}
}

// andFiles adds files to others: name, text, name, text.
func andFiles(files map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, files)
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

type gpuCase struct {
	name, id string
	inv      *inventory.Inventory
	files    map[string]string
	units    []slot.Unit
	cfg      *config.Config
	plan     *plan.Plan
	want     string // status: summary
	fix      string // of the first finding
	slots    []int  // of the first finding
}

func (tt gpuCase) run(t *testing.T) {
	t.Parallel()
	f := &fake{inv: tt.inv, units: tt.units, cfg: tt.cfg, plan: tt.plan}
	got := scene{tt.name, tt.id, f, tt.files, tt.want, tt.fix}.run(t, nil)
	var slots []int
	if len(got.Findings) > 0 {
		slots = got.Findings[0].Slots
	}
	if !slices.Equal(slots, tt.slots) {
		t.Errorf("slots %v, want %v", slots, tt.slots)
	}
}

// changed changes inv and returns it.
func changed(inv *inventory.Inventory, change func(*inventory.Inventory)) *inventory.Inventory {
	change(inv)
	return inv
}

func TestDriverChecks(t *testing.T) {
	t.Parallel()
	nv := func(change func(*inventory.NVIDIA)) *inventory.Inventory {
		return changed(h100s(2), func(inv *inventory.Inventory) { change(inv.NVIDIA) })
	}
	unloaded := nv(func(nv *inventory.NVIDIA) { *nv = inventory.NVIDIA{Source: "pci"} })
	mismatch := nv(func(nv *inventory.NVIDIA) {
		nv.Source, nv.NVMLCode, nv.NVMLError = "proc", 18, "Driver/library version mismatch"
	})
	const module = "/lib/modules/6.8.0-40-generic/updates/dkms/nvidia.ko.zst"
	for _, tt := range []gpuCase{
		{name: "no NVIDIA", id: "nvidia-driver", inv: mi300s(1), want: "skip: no NVIDIA GPU and no driver for one"},
		{name: "loaded", id: "nvidia-driver", inv: h100s(1), want: "ok: 570.86.15"},
		{name: "not installed", id: "nvidia-driver", inv: unloaded, want: "fail: NVIDIA's driver is not installed"},
		{name: "not loaded", id: "nvidia-driver", inv: unloaded, files: map[string]string{module: ""},
			want: "fail: the module nvidia is installed but not loaded", fix: "modprobe nvidia && modprobe nvidia-uvm"},
		{name: "for another kernel", id: "nvidia-driver", inv: unloaded,
			files: map[string]string{"/lib/modules/6.8.0-31-generic/kernel/nvidia-570/bits/nvidia.ko": ""},
			want:  "fail: the module nvidia is installed for kernel 6.8.0-31-generic, but 6.8.0-40-generic is running"},
		{name: "for another kernel, with DKMS", id: "nvidia-driver", inv: unloaded,
			files: map[string]string{"/lib/modules/6.8.0-31-generic/updates/dkms/nvidia.ko": "", "/var/lib/dkms/nvidia/570.86.15/source": ""},
			want:  "fail: the module nvidia is installed for kernel 6.8.0-31-generic, but 6.8.0-40-generic is running",
			fix:   "apt-get update && apt-get install -y linux-headers-6.8.0-40-generic && dkms autoinstall -k 6.8.0-40-generic && modprobe nvidia && modprobe nvidia-uvm"},
		{name: "the same", id: "nvidia-library", inv: h100s(1), want: "ok: 570.86.15"},
		{name: "upgraded", id: "nvidia-library", inv: mismatch, files: map[string]string{"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05": "", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": ""},
			want: "fail: the loaded module is 570.86.15, but the library is 580.95.05: the driver was upgraded, so no CUDA program starts", fix: "systemctl reboot"},
		{name: "upgraded under slots", id: "nvidia-library", inv: mismatch, files: boundSlots(2),
			want: "fail: the loaded module is 570.86.15, but the library is another version: the driver was upgraded, so no CUDA program starts",
			fix:  "kbnode drain --all --reboot"},
		{name: "nobody knows", id: "nvidia-library", inv: nv(func(nv *inventory.NVIDIA) { nv.Source, nv.NVMLError = "proc", "no answer after 20s" }), want: "skip: NVML does not answer"},
		{name: "NVML answers", id: "nvidia-nvml", inv: h100s(1), want: "ok: CUDA 12.8"},
		{name: "NVML hangs", id: "nvidia-nvml", inv: nv(func(nv *inventory.NVIDIA) { nv.Source, nv.NVMLError = "proc", "no answer after 20s" }),
			want: "warn: no answer after 20s; the GPUs were read from /proc/driver/nvidia, which has less information"},
		{name: "no library", id: "nvidia-nvml", inv: nv(func(nv *inventory.NVIDIA) {
			nv.Source, nv.NVMLCode, nv.NVMLError = "proc", 12, "no libnvidia-ml.so.1"
		}), want: "fail: no libnvidia-ml.so.1"},
		{name: "another library", id: "nvidia-nvml", inv: mismatch, want: "skip: see nvidia-library"},
		{name: "UVM", id: "nvidia-uvm", inv: h100s(1), want: "ok: loaded"},
		{name: "no UVM", id: "nvidia-uvm", inv: nv(func(nv *inventory.NVIDIA) { nv.UVMMajor = 0 }),
			want: "fail: the module nvidia-uvm is not loaded", fix: "modprobe nvidia-uvm && echo nvidia-uvm >/etc/modules-load.d/nvidia-uvm.conf"},
		{name: "no AMD", id: "amd-driver", inv: h100s(1), want: "skip: no AMD GPU and no driver for one"},
		{name: "amdgpu", id: "amd-driver", inv: mi300s(1), want: "ok: 6.12.12"},
		{name: "the kernel's amdgpu", id: "amd-driver", inv: changed(mi300s(1), func(inv *inventory.Inventory) { inv.AMD.DriverVersion = "" }), want: "ok: of the kernel 6.8.0-40-generic"},
		{name: "no amdgpu", id: "amd-driver", inv: changed(mi300s(1), func(inv *inventory.Inventory) { *inv.AMD = inventory.AMD{} }),
			want: "fail: the module amdgpu is not loaded", fix: "modprobe amdgpu"},
		{name: "no KFD", id: "amd-driver", inv: changed(mi300s(1), func(inv *inventory.Inventory) { inv.AMD.KFD = false }),
			want: "fail: amdgpu is loaded without its compute driver (KFD)"},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestSlotGPUChecks(t *testing.T) {
	t.Parallel()
	sick := func(k int, why string) *inventory.Inventory {
		return changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[k].Healthy, inv.GPUs[k].Error = false, why })
	}
	uevent := func(driver string) map[string]string {
		return andFiles(boundSlots(2), "/sys/bus/pci/devices/"+pciOf(1)+"/uevent", "DRIVER="+driver+"\nPCI_CLASS=30200\n")
	}
	for _, tt := range []gpuCase{
		{name: "no GPU", id: "gpu-present", inv: &inventory.Inventory{}, want: "skip: no GPU"},
		{name: "no slots yet", id: "gpu-present", inv: h100s(2), want: "ok: 2 GPUs, no slots yet"},
		{name: "all there", id: "gpu-present", inv: h100s(2), files: boundSlots(2), want: "ok: 2 GPUs in 2 slots"},
		{name: "missing", id: "gpu-present", inv: h100s(2), files: boundSlots(3), want: "fail: GPU GPU-2 at 0000:1c:00.0 is missing", slots: []int{2}},
		{name: "a partition is missing", id: "gpu-present", inv: mi300s(1), files: partitioned(2, 0), want: "fail: GPU GPU-0 is in SPX mode and was in DPX (and 1 more)", slots: []int{0}},
		{name: "replaced", id: "gpu-present", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[1].UUID = "GPU-new" }), files: boundSlots(2),
			want: "warn: GPU GPU-1 at 0000:1b:00.0 was replaced by GPU-new", fix: "kbnode reconcile", slots: []int{1}},
		{name: "replaced by another vendor's", id: "gpu-present", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[1].UUID, inv.GPUs[1].Vendor = "GPU-new", "amd" }), files: boundSlots(2),
			want: "fail: GPU GPU-1 at 0000:1b:00.0 is missing", slots: []int{1}},
		{name: "moved to another seat", id: "gpu-present", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[1].PCI = pciOf(7) }), files: boundSlots(2), want: "ok: 2 GPUs in 2 slots"},
		{name: "no name while it is ill", id: "gpu-present", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[1].UUID = "" }), files: boundSlots(2), want: "ok: 2 GPUs in 2 slots"},

		{name: "all answer", id: "gpu-answers", inv: h100s(2), files: boundSlots(2), want: "ok: 2 GPUs"},
		{name: "nouveau", id: "gpu-answers", inv: sick(1, "it is bound to the driver nouveau, not nvidia"), files: uevent("nouveau"),
			want: "fail: the GPU at 0000:1b:00.0: it is bound to the driver nouveau, not nvidia", slots: []int{1},
			fix: "echo nvidia >/sys/bus/pci/devices/0000:1b:00.0/driver_override && echo 0000:1b:00.0 >/sys/bus/pci/drivers/nouveau/unbind && echo 0000:1b:00.0 >/sys/bus/pci/drivers_probe"},
		{name: "a driver's name that is none", id: "gpu-answers", inv: sick(1, "it is bound to another driver"), files: uevent("../../x"),
			want: "fail: the GPU at 0000:1b:00.0: it is bound to another driver", slots: []int{1}},
		{name: "not listed", id: "gpu-answers", inv: sick(1, "the NVIDIA driver does not list it"), files: uevent("nvidia"),
			want: "fail: the GPU at 0000:1b:00.0: the NVIDIA driver does not list it", slots: []int{1}},
		{name: "of no slot", id: "gpu-answers", inv: sick(1, "it is bound to the driver vfio-pci, not nvidia"), files: boundSlots(1), want: "ok: 1 GPUs"},
		{name: "excluded", id: "gpu-answers", inv: sick(0, "the NVIDIA driver is configured to exclude it (NVreg_ExcludedGpus)"),
			want: "fail: the GPU at 0000:1a:00.0: the NVIDIA driver is configured to exclude it (NVreg_ExcludedGpus)"},
		{name: "no driver at all", id: "gpu-answers", inv: changed(sick(0, "the NVIDIA driver is not loaded"), func(inv *inventory.Inventory) { inv.NVIDIA.DriverVersion = "" }), want: "skip: no driver is loaded"},
		{name: "AMD without a driver", id: "gpu-answers", inv: changed(mi300s(1), func(inv *inventory.Inventory) { inv.GPUs[0].Healthy, inv.GPUs[0].Error = false, "is not driven" }),
			files: map[string]string{"/sys/bus/pci/devices/" + pciOf(0) + "/uevent": "PCI_CLASS=120000\n"},
			want:  "fail: the GPU at 0000:1a:00.0: is not driven", fix: "echo 0000:1a:00.0 >/sys/bus/pci/drivers_probe"},
		{name: "lost", id: "gpu-answers", inv: changed(sick(1, "GPU is lost"), func(inv *inventory.Inventory) { inv.GPUs[1].NVML.Code = 15 }), files: boundSlots(2), slots: []int{1},
			want: "fail: the GPU at 0000:1b:00.0 is lost: NVML says so", fix: "kbnode drain --all --reboot"},
		{name: "its bus is dead", id: "gpu-answers", inv: h100s(2), slots: []int{1},
			want: "fail: the GPU at 0000:1b:00.0 is lost: its PCI configuration reads as all ones", fix: "kbnode drain --all --reboot",
			files: andFiles(boundSlots(2), "/sys/bus/pci/devices/"+pciOf(1)+"/config", "\xff\xff\xff\xff")},
		{name: "wants a reset", id: "gpu-answers", inv: changed(sick(1, "GPU requires reset"), func(inv *inventory.Inventory) { inv.GPUs[1].NVML.Code = 16 }), files: boundSlots(2), slots: []int{1},
			want: "fail: the GPU at 0000:1b:00.0 needs a reset: GPU requires reset", fix: "kbnode drain 1 --wait && nvidia-smi -pm 0 -i 0000:1b:00.0 && nvidia-smi -r -i 0000:1b:00.0 && nvidia-smi -pm 1 -i 0000:1b:00.0 && kbnode resume 1"},
		{name: "one hangs", id: "gpu-answers", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[1].NVML, inv.GPUs[1].Unread = nil, true }), files: boundSlots(2), slots: []int{1},
			want: "fail: the driver does not answer for the GPU at 0000:1b:00.0", fix: "kbnode drain --all --reboot"},
		{name: "a query fails", id: "gpu-answers", inv: changed(h100s(2), func(inv *inventory.Inventory) {
			inv.GPUs[1].NVML.Unread = []string{"nvmlDeviceGetEccMode: Unknown Error"}
		}), files: boundSlots(2),
			want: "warn: the GPU at 0000:1b:00.0 does not answer all NVML queries: nvmlDeviceGetEccMode: Unknown Error", slots: []int{1}},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestGPUDevices(t *testing.T) {
	t.Parallel()
	slots := func(parked string, devices ...string) *plan.Plan {
		return &plan.Plan{Slots: []plan.Slot{
			{Index: 0, GPUs: []plan.SlotGPU{{Devices: devices}}},
			{Index: 1, GPUs: []plan.SlotGPU{{Devices: append([]string{"/dev/nvidia1"}, devices...)}}, Parked: parked},
		}}
	}
	for _, tt := range []gpuCase{
		{name: "no GPU's", id: "gpu-devices", inv: h100s(2), plan: slots("no driver"), want: "skip: no slot's GPU has device files"},
		{name: "one is gone", id: "gpu-devices", inv: h100s(2), plan: slots(""), want: "fail: /dev/nvidia1 is missing", slots: []int{1},
			fix: "rm -rf /dev/nvidia1 && nvidia-smi -L && nvidia-modprobe -c=0 -u -m"},
		{name: "one of all is gone", id: "gpu-devices", inv: h100s(2), plan: slots("", "/dev/nvidia-uvm"), files: map[string]string{},
			want: "fail: /dev/nvidia-uvm is missing (and 1 more)", slots: []int{0, 1},
			fix: "rm -rf /dev/nvidia-uvm && nvidia-smi -L && nvidia-modprobe -c=0 -u -m"},
		{name: "UVM is not loaded", id: "gpu-devices", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.NVIDIA.UVMMajor = 0 }), plan: slots("parked", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
			want: "skip: no slot's GPU has device files"},
		{name: "a file that somebody left", id: "gpu-devices", inv: h100s(2), plan: slots("parked", "/dev/nvidiactl"), files: map[string]string{"/dev/nvidiactl": ""},
			want: "fail: /dev/nvidiactl is a file, not a device", slots: []int{0}, fix: "rm -rf /dev/nvidiactl && nvidia-smi -L && nvidia-modprobe -c=0 -u -m"},
		{name: "a directory of Docker's", id: "gpu-devices", inv: h100s(1), plan: slots("parked", "/dev/nvidia0"), files: map[string]string{"/dev/nvidia0/x": ""},
			want: "fail: /dev/nvidia0 is a file, not a device", slots: []int{0}, fix: "rm -rf /dev/nvidia0 && nvidia-smi -L && nvidia-modprobe -c=0 -u -m"},
		{name: "AMD's", id: "gpu-devices", inv: mi300s(1), plan: slots("parked", "/dev/dri/renderD128"), want: "fail: /dev/dri/renderD128 is missing", slots: []int{0}},
	} {
		t.Run(tt.name, tt.run)
	}
	for _, row := range []struct {
		mode fs.FileMode
		gid  int
		open bool
	}{{0o666, 0, true}, {0o660, 993, true}, {0o660, 0, false}, {0o600, 993, false}, {0o640, 993, false}, {0o664, 0, false}} {
		if open := openToJobs(row.mode, row.gid); open != row.open {
			t.Errorf("%04o of group %d: %v", row.mode, row.gid, open)
		}
	}
	// Any device will do.
	m := machineOf(t, &fake{inv: mi300s(1), plan: slots("parked", "/dev/kfd")}, map[string]string{"/dev/x": ""})
	must.Do(t, os.Symlink("/dev/null", filepath.Join(m.Root, "dev/kfd")))
	if got := answer(t, m, "gpu-devices"); got.Status != OK {
		t.Errorf("%s: %s", got.Status, got.Summary())
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	if parts := changed(mi300s(2), func(inv *inventory.Inventory) { inv.GPUs[1].PCI, inv.GPUs[1].Partition = pciOf(0), 1 }); len(fleetOf(&Machine{Inventory: parts}, "").gpus) != 1 {
		t.Error("a GPU is counted by its partitions")
	}
	f := fleetOf(machineOf(t, &fake{inv: h100s(7)}, nil), "")
	odd := func(n int) func(inventory.GPU) string {
		return func(g inventory.GPU) string {
			if g.Minor < n {
				return "few"
			}
			return "many"
		}
	}
	for n, want := range map[int]string{
		1: "few (GPU 0000:1a:00.0), many (6 GPUs, 0000:1b:00.0 and others)",
		3: "few (GPUs 0000:1a:00.0, 0000:1b:00.0, 0000:1c:00.0), many (GPUs 0000:1d:00.0, 0000:1e:00.0, 0000:1f:00.0, 0000:20:00.0)",
	} {
		if got := f.differing("names", odd(n), "x"); len(got) != 1 || got[0].Detail != "equal GPUs have different names: "+want {
			t.Errorf("%+v", got)
		}
	}
	if got := f.group(odd(2))[0].each("x -i %[1]s && y %[1]s"); got != "for g in 0000:1a:00.0 0000:1b:00.0; do x -i $g && y $g; done" {
		t.Error(got)
	}
}

// TestSecureBoot tests the advice that Secure Boot may reject the module.
func TestSecureBoot(t *testing.T) {
	t.Parallel()
	const variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	for value, want := range map[string]bool{"\x06\x00\x00\x00\x01": true, "\x06\x00\x00\x00\x00": false, "\x01": false} {
		m := machineOf(t, &fake{inv: &inventory.Inventory{Kernel: "6.8", NVIDIA: &inventory.NVIDIA{}}}, map[string]string{variable: value, "/lib/modules/6.8/extra/nvidia.ko.xz": ""})
		if f := answer(t, m, "nvidia-driver").Findings[0]; (f.Advice != "") != want || f.Fix == "" || !f.Safe {
			t.Errorf("%q: %+v", value, f)
		}
	}
}

// TestOwnVerdicts tests that the verdicts that the check health leaves out exist.
func TestOwnVerdicts(t *testing.T) {
	t.Parallel()
	for _, id := range ownVerdicts {
		if !slices.Contains(health.Checks, id) {
			t.Errorf("there is no verdict %s", id)
		}
	}
}

// TestPublishedMachines tests that nothing is wrong with published machines before the
// install, as far as that can be read without NVML and device files. It is not parallel: it
// keeps all CPUs busy, and other tests measure time.
func TestPublishedMachines(t *testing.T) {
	for _, machine := range machinetest.Published() {
		t.Run(machine.Name, func(t *testing.T) {
			root := machine.Dir(t)
			inv, err := detect.Read(t.Context(), detect.Options{Root: root})
			must.Do(t, err)
			cfg := config.Config{}.WithDefaults()
			f := &fake{cfg: &cfg, inv: inv}
			if f.plan, err = plan.Build(plan.Input{Inventory: inv, Config: &cfg}); err != nil {
				f.plan = &plan.Plan{}
			}
			r, err := Run(t.Context(), &Machine{Tree: host.Tree{Root: root}, Source: f}, Options{Only: []string{"gpu"}, Skip: []string{"gpu-devices", "nvidia-nvml", "gpu-health"}, Bare: true})
			must.Do(t, err)
			for _, c := range r.Checks {
				if c.Status > Skip {
					t.Errorf("%s: %s: %s", c.Status, c.ID, c.Summary())
				}
			}
		})
	}
}
