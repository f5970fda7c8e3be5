package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

// kernelLog returns a kernel log with these lines, one per second of uptime.
func kernelLog(lines ...string) map[string]string {
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "4,%d,%d000000,-;%s\n", i, i+1, line)
	}
	return map[string]string{"/dev/kmsg": b.String()}
}

func TestGPUHealth(t *testing.T) {
	t.Parallel()
	ill := func(change func(*nvml.GPU)) *inventory.Inventory {
		return changed(h100s(2), func(inv *inventory.Inventory) { change(inv.GPUs[1].NVML) })
	}
	two := uint64(2)
	slots := func(files map[string]string) map[string]string {
		text := boundSlots(2)[plan.BindingsPath]
		return andFiles(files, plan.BindingsPath, text)
	}
	ecc := ill(func(g *nvml.GPU) { g.ECC.VolatileUncorrected = &two })
	for _, tt := range []gpuCase{
		{name: "a quiet log", id: "gpu-health", inv: h100s(2), files: slots(kernelLog("Linux version 6.8.0")), want: "ok: 2 GPUs"},
		{name: "no log", id: "gpu-health", inv: h100s(2), want: "warn: read kernel log: stat /dev/kmsg: no such file"},
		{name: "garbage", id: "gpu-health", inv: h100s(2), files: map[string]string{"/dev/kmsg": strings.Repeat("\x00;NVRM: Xid (\n;;,\xff", 5000)}, want: "ok: 2 GPUs"},
		{name: "errors of jobs", id: "gpu-health", inv: h100s(2), want: "ok: 2 GPUs",
			files: slots(kernelLog("NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python3, MMU Fault", "NVRM: Xid (PCI:0000:1b:00): 109, pid=7, name=python3, CTX SWITCH TIMEOUT", "amdgpu 0000:1b:00.0: amdgpu: [gfxhub0] page fault (src_id:0)"))},
		{name: "an error of a job a moment ago", id: "gpu-health", inv: h100s(2), want: "ok: 2 GPUs",
			files: slots(map[string]string{"/dev/kmsg": "4,1,900000000000000,-;NVRM: Xid (PCI:0000:1b:00): 109, pid=7, name=python3, CTX SWITCH TIMEOUT\n"})},
		{name: "off the bus", id: "gpu-health", inv: h100s(2), files: slots(kernelLog("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")),
			want: "fail: gpu.lost: the GPU at 0000:1b:00.0 has fallen off the bus (Xid 79)", slots: []int{1}},
		{name: "the driver wants it reset, and it answers", id: "gpu-health", inv: ill(func(g *nvml.GPU) { action := int64(1); g.RecoveryAction = &action }),
			files: slots(kernelLog("")), want: "fail: gpu.recovery: the driver requests a reset of the GPU at 0000:1b:00.0 (NVML)", slots: []int{1}},
		{name: "the daemon watches", id: "gpu-health", inv: h100s(2), files: andFiles(slots(kernelLog("NVRM: Xid (PCI:0000:1a:00): 48, pid=9, name=x, error")), "/sys/fs/cgroup/system.slice/kbnode.service/cgroup.procs", "812\n"),
			want: "skip: kbnode.service watches this; see health"},
		{name: "what gpu-answers reports", id: "gpu-health", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[1].Healthy, inv.GPUs[1].Error = false, "unknown error" }),
			files: slots(kernelLog("")), want: "ok: 2 GPUs"},
		{name: "lost, as gpu-answers reports", id: "gpu-health", inv: changed(h100s(2), func(inv *inventory.Inventory) {
			inv.GPUs[1].Healthy, inv.GPUs[1].Error, inv.GPUs[1].UUID, inv.GPUs[1].NVML.Code = false, "GPU is lost", "", nvml.CodeLost
		}), files: slots(kernelLog("")), want: "ok: 2 GPUs"},
		{name: "wants a reset, as gpu-answers reports", id: "gpu-health", inv: changed(h100s(2), func(inv *inventory.Inventory) {
			inv.GPUs[1].Healthy, inv.GPUs[1].Error, inv.GPUs[1].NVML.Code = false, "GPU requires reset", nvml.CodeReset
		}), files: slots(kernelLog("")), want: "ok: 2 GPUs"},
		{name: "its bus is dead", id: "gpu-health", inv: h100s(2), files: andFiles(slots(kernelLog("")), "/sys/bus/pci/devices/"+pciOf(1)+"/config", "\xff\xff\xff\xff"), want: "ok: 2 GPUs"},
		{name: "what kbnode sets", id: "gpu-health", inv: changed(h100s(2), func(inv *inventory.Inventory) { inv.GPUs[1].PersistenceMode = "off" }), files: slots(kernelLog("")), want: "ok: 2 GPUs"},
		{name: "no GPU", id: "gpu-health", inv: &inventory.Inventory{}, want: "skip: no GPU"},

		{name: "memory with errors", id: "gpu-health", inv: ecc, files: slots(kernelLog("")), slots: []int{1},
			want: "fail: gpu.ecc: the memory of the GPU at 0000:1b:00.0 had 2 uncorrectable errors since its driver started"},

		{name: "an NVLink is down", id: "gpu-health", inv: ill(func(g *nvml.GPU) { *g.NVLinksUp = 17 }), files: slots(kernelLog("")), slots: []int{1},
			want: "fail: gpu.nvlink: only 17 of 18 NVLinks of the GPU at 0000:1b:00.0 are up"},
		{name: "the power brake", id: "gpu-health", inv: ill(func(g *nvml.GPU) { r := uint64(0x80); g.ClockReasons = &r }), files: slots(kernelLog("")), slots: []int{1},
			want: "warn: gpu.throttle: the GPU at 0000:1b:00.0 is slowed down: power brake"},
		{name: "not in the fabric", id: "gpu-health", inv: ill(func(g *nvml.GPU) { g.Fabric = &nvml.Fabric{State: "in progress"} }), files: slots(kernelLog("")), slots: []int{1},
			want: "fail: gpu.fabric: the GPU at 0000:1b:00.0 is not part of the NVLink fabric: in progress"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "no log" { // its detail has the test's own path
				t.Parallel()
				got := answer(t, machineOf(t, &fake{inv: tt.inv}, nil), tt.id)
				if got.Status != Warn || !strings.HasPrefix(got.Summary(), "read kernel log: ") {
					t.Errorf("%s: %s", got.Status, got.Summary())
				}
				return
			}
			tt.run(t)
		})
	}
}

func TestFabricManager(t *testing.T) {
	t.Parallel()
	unit := func(u slot.Unit) []slot.Unit {
		u.Name, u.Load = fabricUnit, "loaded"
		return []slot.Unit{u}
	}
	at := "/sys/bus/pci/devices/0000:c1:00.0/"
	switches := map[string]string{at + "vendor": "0x10de\n", at + "class": "0x068000\n"}
	fabric := func(state string) *inventory.Inventory {
		return changed(h100s(2), func(inv *inventory.Inventory) {
			for _, g := range inv.GPUs {
				g.NVML.Fabric = &nvml.Fabric{State: state}
			}
		})
	}
	failed := slot.Unit{Active: "failed", Result: "exit-code", ExitStatus: 1}
	const id = "nvidia-fabricmanager"
	const boot = "/etc/systemd/system/multi-user.target.wants/" + fabricUnit
	for _, tt := range []gpuCase{
		{name: "no switch", id: id, inv: h100s(1), want: "skip: no NVSwitch"},
		{name: "somebody else's bridge", id: id, inv: h100s(1), files: andFiles(switches, at+"vendor", "0x8086"), want: "skip: no NVSwitch"},
		{name: "installed and not needed", id: id, inv: h100s(1), units: unit(slot.Unit{Active: "inactive"}), want: "skip: no NVSwitch"},
		{name: "runs", id: id, inv: fabric("completed"), files: andFiles(switches, boot, ""), units: unit(slot.Unit{Active: "active"}), want: "ok: running"},
		{name: "not at the next boot", id: id, inv: h100s(2), files: switches, units: unit(slot.Unit{Active: "active"}),
			want: "warn: it runs, but will not start after a reboot", fix: "systemctl enable nvidia-fabricmanager.service"},
		{name: "elsewhere", id: id, inv: fabric("completed"), want: "ok: not needed: the fabric is managed elsewhere"},
		{name: "not installed", id: id, inv: h100s(2), files: switches, want: "fail: the GPUs use NVSwitches, but there is no fabric manager, so no CUDA program starts"},
		{name: "not installed, and its switches are not on the bus", id: id, inv: fabric("not started"), want: "fail: the GPUs use NVSwitches, but there is no fabric manager, so no CUDA program starts"},
		{name: "stopped", id: id, inv: h100s(2), files: andFiles(switches, boot, ""), units: unit(slot.Unit{Active: "inactive"}),
			want: "fail: it is inactive", fix: "systemctl enable --now nvidia-fabricmanager.service"},
		{name: "enabled by an image, and nothing to do", id: id, inv: h100s(1), files: map[string]string{boot: ""}, units: unit(failed), want: "skip: no NVSwitch"},
		{name: "stopped, and the fabric is up still", id: id, inv: fabric("completed"), files: map[string]string{boot: ""}, units: unit(slot.Unit{Active: "inactive"}),
			want: "fail: it is inactive", fix: "systemctl enable --now nvidia-fabricmanager.service"},
		{name: "ends", id: id, inv: h100s(2), files: switches, units: unit(failed), want: "fail: it exits immediately (exit-code, exit status 1)"},
	} {
		t.Run(tt.name, tt.run)
	}
}

// TestHealthOnce tests that the check health leaves out what this group checks itself.
func TestHealthOnce(t *testing.T) {
	t.Parallel()
	inv := h100s(4)
	inv.GPUs[1].Healthy, inv.GPUs[1].UUID = false, ""
	files := andFiles(boundSlots(4), "/var/lib/kbnode/health.json", `{"verdicts":[
		{"check":"gpu.missing","gpu":"GPU-3","slots":[3],"level":"fatal","effect":"park","reason":"it is missing"},
		{"check":"gpu.lost","gpu":"GPU-1","slots":[1],"level":"fatal","effect":"park","reason":"it is lost"},
		{"check":"gpu.lost","gpu":"GPU-2","slots":[2],"level":"fatal","effect":"park","reason":"it was lost","fix":"reboot"},
		{"check":"gpu.xid","gpu":"GPU-3","slots":[3],"level":"fatal","effect":"drain","reason":"Xid 48","fix":"reset it"}]}`)
	got := answer(t, machineOf(t, &fake{inv: inv}, files), "health")
	must.Equal(t, []Finding{
		{Status: Fail, Slots: []int{2}, Detail: "gpu.lost: it was lost", Advice: "reboot"},
		{Status: Fail, Slots: []int{3}, Detail: "gpu.xid: Xid 48", Advice: "reset it"},
	}, got.Findings)
}
