package doctor

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestModeChecks(t *testing.T) {
	t.Parallel()
	one := func(change func(*inventory.GPU)) *inventory.Inventory {
		return changed(h100s(3), func(inv *inventory.Inventory) { change(&inv.GPUs[1]) })
	}
	all := func(change func(*inventory.GPU)) *inventory.Inventory {
		return changed(h100s(3), func(inv *inventory.Inventory) {
			for i := range inv.GPUs {
				change(&inv.GPUs[i])
			}
		})
	}
	hygiene := func(h config.Hygiene) *config.Config {
		c := config.Config{Hygiene: h}.WithDefaults()
		return &c
	}
	limit := func(watts uint32) func(*inventory.GPU) {
		return func(g *inventory.GPU) {
			mw := watts * 1000
			g.PowerLimitMilliwatts, g.NVML.Power.Limit, g.NVML.Power.Enforced = int64(mw), &mw, &mw
		}
	}
	reasons := func(bits uint64) func(*inventory.GPU) { return func(g *inventory.GPU) { g.NVML.ClockReasons = &bits } }
	mode := func(now, next string) func(*inventory.GPU) {
		return func(g *inventory.GPU) { g.MIGMode, g.NVML.MIGMode = now, &nvml.Mode{Current: now, Pending: next} }
	}
	second, everyone := []int{1}, []int{0, 1, 2}
	for _, tt := range []gpuCase{
		{name: "no NVIDIA", id: "nvidia-mig", inv: mi300s(1), want: "skip: no NVIDIA GPU and no driver for one"},
		{name: "NVML is silent", id: "nvidia-mig", inv: all(func(g *inventory.GPU) { g.NVML = nil }), want: "skip: NVML reports nothing about them"},
		{name: "whole GPUs", id: "nvidia-mig", inv: h100s(3), want: "ok: off"},
		{name: "MIG without instances", id: "nvidia-mig", inv: one(mode("on", "on")), files: boundSlots(3), slots: second,
			want: "fail: MIG mode is on, without instances (GPU 0000:1b:00.0)", fix: "nvidia-smi -i 0000:1b:00.0 -mig 0"},
		{name: "MIG with instances", id: "nvidia-mig", inv: one(func(g *inventory.GPU) {
			mode("on", "on")(g)
			g.MIG = append(slices.Repeat([]inventory.MIG{{Profile: "1g.23gb"}}, 2), inventory.MIG{Profile: "4g.92gb"})
		}), files: boundSlots(3), want: "ok: 2 of 1g.23gb, 4g.92gb (GPU 0000:1b:00.0)"},
		{name: "MIG of a slot's neighbour", id: "nvidia-mig", inv: one(mode("on", "on")), files: boundSlots(1), want: "ok: off"},
		{name: "MIG at the next reset", id: "nvidia-mig", inv: one(mode("off", "on")), files: boundSlots(3), slots: second,
			want: "warn: MIG mode will be on after the next reset (GPU 0000:1b:00.0)", fix: "nvidia-smi -i 0000:1b:00.0 -mig 0"},
		{name: "MIG until the next reset", id: "nvidia-mig", inv: one(mode("on", "off")), files: boundSlots(3), slots: second,
			want: "fail: MIG mode is on until the next reset (GPU 0000:1b:00.0)", fix: "kbnode drain --all --reboot"},

		{name: "many processes", id: "nvidia-compute-mode", inv: h100s(3), want: "ok: default"},
		{name: "no process", id: "nvidia-compute-mode", inv: all(func(g *inventory.GPU) { g.ComputeMode = "prohibited" }), files: boundSlots(3), slots: everyone,
			want: "fail: the compute mode is prohibited: no CUDA program starts (all 3 GPUs)",
			fix:  "for g in 0000:1a:00.0 0000:1b:00.0 0000:1c:00.0; do nvidia-smi -i $g -c 0; done"},
		{name: "moved to another seat", id: "nvidia-compute-mode", inv: one(func(g *inventory.GPU) { g.ComputeMode, g.PCI = "prohibited", pciOf(7) }), files: boundSlots(3), slots: second,
			want: "fail: the compute mode is prohibited: no CUDA program starts (GPU 0000:21:00.0)", fix: "nvidia-smi -i 0000:21:00.0 -c 0"},
		{name: "one that does not answer", id: "nvidia-compute-mode", inv: one(func(g *inventory.GPU) { g.ComputeMode, g.Healthy = "prohibited", false }), want: "ok: default"},
		{name: "one process", id: "nvidia-compute-mode", inv: one(func(g *inventory.GPU) { g.ComputeMode = "exclusive-process" }), files: boundSlots(3), slots: second,
			want: "fail: the compute mode is exclusive-process: a job's second process gets no GPU (GPU 0000:1b:00.0)", fix: "nvidia-smi -i 0000:1b:00.0 -c 0"},

		{name: "ECC", id: "nvidia-ecc", inv: h100s(3), want: "ok: on"},
		{name: "GPUs without ECC", id: "nvidia-ecc", inv: all(func(g *inventory.GPU) { g.ECCMode, g.NVML.ECCMode = "", nil }), want: "skip: these GPUs have no ECC"},
		{name: "no ECC", id: "nvidia-ecc", inv: all(func(g *inventory.GPU) { g.ECCMode, g.NVML.ECCMode = "off", nil }),
			want: "warn: ECC is off (all 3 GPUs), so memory errors go unnoticed",
			fix:  "for g in 0000:1a:00.0 0000:1b:00.0 0000:1c:00.0; do nvidia-smi -i $g -e 1; done && systemctl reboot"},
		{name: "ECC of some", id: "nvidia-ecc", inv: one(func(g *inventory.GPU) { g.ECCMode, g.NVML.ECCMode = "off", nil }), files: boundSlots(3), slots: second,
			want: "warn: ECC is off (GPU 0000:1b:00.0), but on for others: its memory differs in size and speed",
			fix:  "nvidia-smi -i 0000:1b:00.0 -e 1 && kbnode drain --all --reboot"},
		{name: "ECC at the next reset", id: "nvidia-ecc", inv: one(func(g *inventory.GPU) { g.NVML.ECCMode.Pending = "off" }), files: boundSlots(3), slots: second,
			want: "warn: ECC is now on, and off after the next reset (GPU 0000:1b:00.0)", fix: "kbnode drain --all --reboot"},

		{name: "equal clocks", id: "nvidia-clocks", inv: h100s(3), want: "ok: up to 1980 MHz"},
		{name: "a slower GPU", id: "nvidia-clocks", inv: one(func(g *inventory.GPU) { g.MaxSMClockMHz = 1755 }),
			want: "warn: equal GPUs have different maximum clocks: 1980 MHz (GPUs 0000:1a:00.0, 0000:1c:00.0), 1755 MHz (GPU 0000:1b:00.0)"},
		{name: "another model", id: "nvidia-clocks", inv: one(func(g *inventory.GPU) { g.MaxSMClockMHz, g.Model = 1755, "NVIDIA H100 PCIe" }), want: "ok: up to 1980 MHz"},
		{name: "held down", id: "nvidia-clocks", inv: one(reasons(0x2)), files: boundSlots(3), slots: second,
			want: "warn: someone set clocks that limit it (GPU 0000:1b:00.0)", fix: "nvidia-smi -i 0000:1b:00.0 -rgc; nvidia-smi -i 0000:1b:00.0 -rac"},
		{name: "held down by kbnode", id: "nvidia-clocks", inv: one(reasons(0x2)), files: boundSlots(3), cfg: hygiene(config.Hygiene{Clocks: "1410"}), want: "ok: up to 1980 MHz"},
		{name: "at rest", id: "nvidia-clocks", inv: one(reasons(0x3)), files: boundSlots(3), want: "ok: up to 1980 MHz"},
		{name: "at its power limit", id: "nvidia-clocks", inv: one(reasons(0x4)), files: boundSlots(3), want: "ok: up to 1980 MHz"},

		{name: "full power", id: "nvidia-power", inv: h100s(3), want: "ok: 700 W"},
		{name: "less power", id: "nvidia-power", inv: one(limit(500)), files: boundSlots(3), slots: second,
			want: "warn: the power limit is 500 W instead of the default 700 W (GPU 0000:1b:00.0)", fix: "nvidia-smi -i 0000:1b:00.0 -pl 700"},
		{name: "less power for all", id: "nvidia-power", inv: all(limit(500)), files: boundSlots(3), slots: everyone,
			want: "warn: the power limit is 500 W instead of the default 700 W (all 3 GPUs)",
			fix:  "for g in 0000:1a:00.0 0000:1b:00.0 0000:1c:00.0; do nvidia-smi -i $g -pl 700; done"},
		{name: "more power", id: "nvidia-power", inv: one(limit(750)), files: boundSlots(3),
			want: "warn: equal GPUs have different power limits: 700 W (GPUs 0000:1a:00.0, 0000:1c:00.0), 750 W (GPU 0000:1b:00.0)"},
		{name: "a cap from elsewhere", id: "nvidia-power", inv: one(func(g *inventory.GPU) { mw := uint32(600_000); g.NVML.Power.Enforced = &mw }), files: boundSlots(3), slots: second,
			want: "warn: something limits it to 600 W, below its limit of 700 W (GPU 0000:1b:00.0)"},
		{name: "no word of power", id: "nvidia-power", inv: all(func(g *inventory.GPU) { g.PowerLimitMilliwatts, g.NVML.Power = 0, nil }), want: "skip: NVML does not report it"},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestAMDChecks(t *testing.T) {
	t.Parallel()
	one := func(change func(*inventory.GPU)) *inventory.Inventory {
		return changed(mi300s(3), func(inv *inventory.Inventory) { change(&inv.GPUs[1]) })
	}
	disabled := config.Config{Hygiene: config.Hygiene{Clocks: config.ClocksBase, Disabled: true}}.WithDefaults()
	clocked := config.Config{Hygiene: config.Hygiene{Clocks: config.ClocksBase}}.WithDefaults()
	for _, tt := range []gpuCase{
		{name: "no AMD", id: "amd-partitions", inv: h100s(1), want: "skip: no AMD GPU and no driver for one"},
		{name: "alike", id: "amd-partitions", inv: mi300s(3), want: "ok: SPX, NPS1"},
		{name: "partitions", id: "amd-partitions", inv: changed(mi300s(1), func(inv *inventory.Inventory) {
			g := inv.GPUs[0]
			g.ComputePartition = "CPX"
			inv.GPUs = []inventory.GPU{g, g}
			inv.GPUs[1].Partition = 1
		}), want: "ok: CPX, NPS1"},
		{name: "no partitions", id: "amd-partitions", inv: changed(mi300s(1), func(inv *inventory.Inventory) { inv.GPUs[0].ComputePartition, inv.GPUs[0].MemoryPartition = "", "" }),
			want: "skip: these GPUs have no partitions"},
		{name: "one is partitioned", id: "amd-partitions", inv: one(func(g *inventory.GPU) { g.ComputePartition = "CPX" }), files: boundSlots(3), slots: []int{1},
			want: "fail: GPU 0000:1b:00.0 is partitioned as CPX, others as SPX, so their slots differ",
			fix:  "echo SPX >/sys/bus/pci/devices/0000:1b:00.0/current_compute_partition"},
		{name: "half of them", id: "amd-partitions", inv: changed(mi300s(2), func(inv *inventory.Inventory) { inv.GPUs[0].ComputePartition = "DPX" }),
			want: "fail: GPU 0000:1a:00.0 is partitioned as DPX, others as SPX, so their slots differ",
			fix:  "echo SPX >/sys/bus/pci/devices/0000:1a:00.0/current_compute_partition"},
		{name: "memory", id: "amd-partitions", inv: one(func(g *inventory.GPU) { g.MemoryPartition = "NPS4" }),
			want: "fail: equal GPUs have different divisions of their memory: NPS1 (GPUs 0000:1a:00.0, 0000:1c:00.0), NPS4 (GPU 0000:1b:00.0)"},
		{name: "partitions are gone", id: "amd-partitions", inv: mi300s(3), files: partitioned(8, 0, 1), slots: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
			want: "fail: the mode is SPX, but the slots were made for CPX (all 2 GPUs)",
			fix:  "for g in 0000:1a:00.0 0000:1b:00.0; do echo CPX >/sys/bus/pci/devices/$g/current_compute_partition; done"},
		{name: "half of the partitions are gone", id: "amd-partitions", files: partitioned(4, 0), slots: []int{0, 1, 2, 3},
			inv: changed(mi300s(1), func(inv *inventory.Inventory) {
				inv.GPUs[0].ComputePartition = "DPX"
				inv.GPUs = append(inv.GPUs, inv.GPUs[0])
				inv.GPUs[1].Partition = 1
			}),
			want: "fail: the mode is DPX, but the slots were made for QPX (GPU 0000:1a:00.0)", fix: "echo QPX >/sys/bus/pci/devices/0000:1a:00.0/current_compute_partition"},
		{name: "a third of an MI300A", id: "amd-partitions", inv: mi300s(1), files: partitioned(3, 0), slots: []int{0, 1, 2},
			want: "fail: the mode is SPX, but the slots were made for TPX (GPU 0000:1a:00.0)", fix: "echo TPX >/sys/bus/pci/devices/0000:1a:00.0/current_compute_partition"},
		{name: "divided since", id: "amd-partitions", files: partitioned(1, 0), slots: []int{0}, inv: changed(mi300s(1), func(inv *inventory.Inventory) { inv.GPUs[0].ComputePartition = "CPX" }),
			want: "fail: the mode is CPX, but the slots were made for SPX (GPU 0000:1a:00.0)", fix: "echo SPX >/sys/bus/pci/devices/0000:1a:00.0/current_compute_partition"},
		{name: "of whole GPUs", id: "amd-partitions", inv: mi300s(2), files: partitioned(1, 0, 1), want: "ok: SPX, NPS1"},
		{name: "full power", id: "amd-power", inv: mi300s(2), files: watts(750, 750), want: "ok: 750 W"},
		{name: "less power", id: "amd-power", inv: mi300s(2), files: andFiles(watts(750, 500), plan.BindingsPath, partitioned(1, 0, 1)[plan.BindingsPath]), slots: []int{1},
			want: "warn: the power limit is 500 W instead of the default 750 W (GPU 0000:1b:00.0)", fix: "echo 750000000 | tee /sys/bus/pci/devices/0000:1b:00.0/hwmon/hwmon*/power1_cap"},
		{name: "other firmware", id: "amd-power", inv: mi300s(2), files: andFiles(watts(750, 750), firmwareOf(0), "113-M3000100-102\n", firmwareOf(1), "113-M3000100-103\n"),
			want: "warn: equal GPUs have different firmware: 113-M3000100-102 (GPU 0000:1a:00.0), 113-M3000100-103 (GPU 0000:1b:00.0)"},
		{name: "no monitor", id: "amd-power", inv: mi300s(2), want: "skip: amdgpu does not report it"},
		{name: "no AMD", id: "amd-power", inv: h100s(1), want: "skip: no AMD GPU and no driver for one"},
		{name: "by itself", id: "amd-performance-level", inv: mi300s(3), want: "ok: auto"},
		{name: "high", id: "amd-performance-level", inv: one(func(g *inventory.GPU) { g.PerformanceLevel = "high" }), files: boundSlots(3), slots: []int{1},
			want: "warn: someone set it to high (GPU 0000:1b:00.0)", fix: "echo auto >/sys/bus/pci/devices/0000:1b:00.0/power_dpm_force_performance_level"},
		{name: "kbnode's", id: "amd-performance-level", inv: mi300s(3), cfg: &clocked, want: "skip: hygiene.clocks sets it"},
		{name: "not kbnode's", id: "amd-performance-level", inv: one(func(g *inventory.GPU) { g.PerformanceLevel = "low" }), cfg: &disabled,
			want: "warn: someone set it to low (GPU 0000:1b:00.0)", fix: "echo auto >/sys/bus/pci/devices/0000:1b:00.0/power_dpm_force_performance_level"},
		{name: "no word of it", id: "amd-performance-level", inv: changed(mi300s(1), func(inv *inventory.Inventory) { inv.GPUs[0].PerformanceLevel = "" }), want: "skip: amdgpu does not report it"},
	} {
		t.Run(tt.name, tt.run)
	}
}

// partitioned returns the bindings' file of slots with parts partitions of each of these
// GPUs of mi300s.
func partitioned(parts int, gpus ...int) map[string]string {
	var list []plan.Binding
	mode := map[int]string{1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX", 8: "CPX"}[parts]
	for _, k := range gpus {
		for n := range parts {
			list = append(list, plan.Binding{Slot: len(list), Member: plan.Member{GPU: k, UUID: fmt.Sprintf("GPU-%d", k), PCI: pciOf(k), Vendor: "amd", Partition: n, Mode: mode}})
		}
	}
	return bindings(list)
}

func firmwareOf(k int) string { return "/sys/bus/pci/devices/" + pciOf(k) + "/vbios_version" }

// watts returns the hwmon files of GPUs with these power limits, and 750 W by default.
func watts(limits ...int) map[string]string {
	files := map[string]string{}
	for k, n := range limits {
		dir := fmt.Sprintf("/sys/bus/pci/devices/%s/hwmon/hwmon%d/", pciOf(k), k+3)
		files[dir+"power1_cap"], files[dir+"power1_cap_default"] = fmt.Sprintf("%d000000\n", n), "750000000\n"
	}
	return files
}

// TestAMDNodeIsToldNothingOfNVIDIA tests that nothing on a node with AMD GPUs mentions
// NVIDIA, whatever is wrong. It is not parallel: it keeps all CPUs busy, and other tests
// measure time.
func TestAMDNodeIsToldNothingOfNVIDIA(t *testing.T) {
	driverless, dead, uneven := machinetest.MI300X(), machinetest.MI300X(), machinetest.MI300XCPX()
	driverless.Name, driverless.NoKFD = "without a driver", true
	dead.Name, dead.AMD[3].Dead = "one is dead", true
	uneven.Name, uneven.AMD[2].Partitions, uneven.AMD[2].Compute = "one is not partitioned", 1, "SPX"
	for _, machine := range []machinetest.Machine{machinetest.MI300X(), machinetest.MI300XCPX(), driverless, dead, uneven} {
		t.Run(machine.Name, func(t *testing.T) {
			root := machine.Dir(t)
			inv, err := detect.Read(t.Context(), detect.Options{Root: root})
			must.Do(t, err)
			cfg := config.Config{}.WithDefaults()
			inv.Software.Docker.Version = "28.5.1"
			f := &fake{cfg: &cfg, inv: inv, docker: docker.Info{Version: "28.5.1", CgroupVersion: "2", CgroupDriver: "systemd", DefaultRuntime: "runc"}}
			if f.plan, err = plan.Build(plan.Input{Inventory: inv, Config: &cfg}); err != nil {
				t.Fatal(err)
			}
			for _, bare := range []bool{true, false} {
				r, err := Run(t.Context(), &Machine{Tree: host.Tree{Root: root}, Source: f}, Options{Bare: bare})
				must.Do(t, err)
				text, err := json.MarshalIndent(r, "", " ")
				must.Do(t, err)
				for line := range strings.Lines(string(text)) {
					if foreignWords.MatchString(line) {
						t.Errorf("bare %v: %s", bare, line)
					}
				}
				if !slices.ContainsFunc(r.Checks, func(c Result) bool { return c.ID == "amd-driver" }) {
					t.Error("AMD's driver was not asked for")
				}
			}
		})
	}
}

// foreignWords matches what only NVIDIA has.
var foreignWords = regexp.MustCompile(`(?i)nvidia|nvml|cuda|nvlink|nvswitch|\bxid\b`)

// TestForeignChecks tests that a machine with one vendor's GPUs gets the other's checks
// only by name, and that a machine without GPUs gets both.
func TestForeignChecks(t *testing.T) {
	t.Parallel()
	ids := func(inv *inventory.Inventory, o Options) (ids []string) {
		inv = changed(inv, func(inv *inventory.Inventory) { inv.Software.Systemd = "257" })
		r, err := Run(t.Context(), machineOf(t, &fake{inv: inv, plan: &plan.Plan{}}, nil), o)
		must.Do(t, err)
		for _, c := range r.Checks {
			ids = append(ids, c.ID)
		}
		return ids
	}
	gpu := Options{Only: []string{"gpu"}, Bare: true}
	has := func(list []string, prefix string) bool {
		return slices.ContainsFunc(list, func(id string) bool { return strings.HasPrefix(id, prefix) })
	}
	if list := ids(h100s(1), gpu); has(list, "amd-") || !has(list, "nvidia-") {
		t.Error(list)
	}
	if list := ids(mi300s(1), gpu); !has(list, "amd-") || has(list, "nvidia-") {
		t.Error(list)
	}
	if list := ids(&inventory.Inventory{}, gpu); !has(list, "amd-") || !has(list, "nvidia-") {
		t.Error(list)
	}
	both := changed(mi300s(1), func(inv *inventory.Inventory) { inv.NVIDIA = h100s(1).NVIDIA })
	if list := ids(both, gpu); !has(list, "amd-") || !has(list, "nvidia-") {
		t.Error(list)
	}
	if list := ids(mi300s(1), Options{Only: []string{"nvidia-mig"}}); !slices.Equal(list, []string{"nvidia-mig"}) {
		t.Error(list)
	}
}
