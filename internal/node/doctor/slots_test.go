package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/node/selftest"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

const giB = 1 << 30

// node returns a healthy node with two slots of two cores, after change.
func node(change func(*fake)) *fake {
	f := &fake{
		inv: &inventory.Inventory{Memory: inventory.Memory{TotalBytes: 64 * giB, Nodes: []inventory.NUMANode{
			{ID: 0, CPUs: "0-3,8-11", MemoryBytes: 32 * giB}, {ID: 1, CPUs: "4-7,12-15", MemoryBytes: 32 * giB}, {ID: 2, MemoryBytes: 80 * giB, GPU: "0000:02:00.0"},
		}}},
		plan: &plan.Plan{
			Reserved: plan.Reserved{CPUs: "0,4,8,12"},
			Slices:   []plan.Slice{{Unit: "buildkite.slice", Slot: -1, CPUs: "1-2,5-6,9-10,13-14", Partition: true}},
		},
		state: &reconcile.State{Units: map[string]slot.Unit{}, Slices: map[string]slot.Slice{}},
	}
	for id := range 16 {
		f.inv.CPU.List = append(f.inv.CPU.List, inventory.LogicalCPU{ID: id, Core: id % 8})
	}
	for k, cpus := range []string{"1-2,9-10", "5-6,13-14"} {
		pci, unit := fmt.Sprintf("0000:0%d:00.0", k+1), plan.SliceName(k)
		f.inv.GPUs = append(f.inv.GPUs, inventory.GPU{PCI: pci, UUID: "GPU-" + pci, MemoryNode: -1})
		f.plan.Slots = append(f.plan.Slots, plan.Slot{Index: k, User: plan.UserName(k), CPUs: cpus, DiskBytes: 1 << 20, GPUs: []plan.SlotGPU{{PCI: pci, UUID: "GPU-" + pci}}})
		f.plan.Slices = append(f.plan.Slices, plan.Slice{Unit: unit, Slot: k, CPUs: cpus, MemoryNodes: fmt.Sprint(k), MemoryBytes: 16 * giB, TasksMax: 8192})
		slice := slot.Slice{Unit: unit, Slot: k, Cgroup: "/buildkite.slice/" + unit, Files: map[string]string{
			"cpuset.cpus.effective": cpus, "cpuset.mems.effective": fmt.Sprint(k), "memory.max": fmt.Sprint(16 * giB), "memory.swap.max": "0", "pids.max": "8192",
		}}
		f.state.Slices[unit] = slice
		f.state.Slots = append(f.state.Slots, slot.State{Index: k, Name: plan.SlotName(k), Slice: slice, Agent: slot.Unit{MainPID: 100 + k}})
	}
	f.state.Slices["buildkite.slice"] = slot.Slice{Unit: "buildkite.slice", Files: map[string]string{"cpuset.cpus.partition": "root"}}
	for unit := range f.state.Slices {
		f.state.Units[unit] = slot.Unit{Name: unit, Active: "active"}
	}
	if change != nil {
		change(f)
	}
	return f
}

func TestSlotLimits(t *testing.T) {
	t.Parallel()
	set := func(k int, deferred string) reconcile.Change {
		return reconcile.Change{Kind: reconcile.Set, Subject: plan.SliceName(k), Slot: k, Why: "its unit file changed", Deferred: deferred}
	}
	play(t, []scene{
		{"good", "slot-limits", node(nil), nil, "ok: 3 slices", ""},
		{"one", "slot-limits", drifts(node(nil), set(0, "")), nil, "fail: set buildkite-gpu0.slice (its unit file changed)", "kbnode reconcile"},
		{"while a job runs", "slot-limits", drifts(node(nil), set(0, "waits for job 7")), nil, "warn: set buildkite-gpu0.slice (its unit file changed), waits for job 7", ""},
		{"a slice that does not run", "slot-limits", drifts(node(func(f *fake) { delete(f.state.Units, plan.SliceName(0)) }), set(0, "")), nil, "ok: 3 slices", ""},
		{"not again", "as-planned", drifts(node(nil), set(0, "")), nil, "ok: 0 files, 0 units", ""},

		{"a partition", "as-planned", drifts(node(nil), reconcile.Change{Kind: reconcile.Partition, Subject: "buildkite.slice", Slot: -1}), nil, "warn: partition buildkite.slice", "kbnode reconcile"},
		{"a setting", "state", node(func(f *fake) { f.state.Warnings = []string{"/sys/kernel/mm/ksm/run is not set: y"} }), nil, "warn: /sys/kernel/mm/ksm/run is not set: y", ""},
		{"its own", "state", node(func(f *fake) { f.state.Warnings = []string{"slot gpu0 is treated as busy: z"} }), nil, "warn: slot gpu0 is treated as busy: z", ""},
	})
}

func TestSlotState(t *testing.T) {
	t.Parallel()
	const mounts = "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n" +
		"40 30 7:0 / /var/lib/buildkite-agent/disks/gpu0/mnt rw,nosuid - ext4 /dev/loop0 rw\n41 30 7:0 /home /var/lib/buildkite-agent/gpu-0 rw,nosuid - ext4 /dev/loop0 rw\n" +
		"42 30 7:1 / /var/lib/buildkite-agent/disks/gpu1/mnt rw,nosuid - ext4 /dev/loop1 rw\n43 30 7:1 /home /var/lib/buildkite-agent/gpu-1 rw,nosuid - ext4 /dev/loop1 rw\n"
	mega := strings.Repeat("x", 1<<20)
	disks := func(mounts, image string) map[string]string {
		return map[string]string{
			"/proc/1/mountinfo": mounts, "/var/lib/buildkite-agent/disks/gpu0/image": image, "/var/lib/buildkite-agent/disks/gpu1/image": mega,
		}
	}
	const recreate = "kbnode drain 0 --wait && umount /var/lib/buildkite-agent/gpu-0 /var/lib/buildkite-agent/disks/gpu0/mnt && kbnode disk --slot 0 && kbnode resume 0"
	play(t, []scene{
		{"good", "slot-disk", node(nil), disks(mounts, mega), "ok: 2 disks of 1MiB", ""},
		{"not mounted", "slot-disk", node(nil), disks(strings.ReplaceAll(mounts, "disks/gpu0/mnt", "disks/gpu9/mnt"), mega), "fail: its disk is not mounted, so no container starts", "kbnode disk --slot 0"},
		{"of a new slot", "slot-disk", drifts(node(nil), reconcile.Change{Kind: reconcile.Create, Subject: plan.SliceName(0), Slot: 0, Deferred: "waits for job 7"}),
			disks(strings.ReplaceAll(mounts, "disks/gpu0/mnt", "disks/gpu9/mnt"), mega), "skip: the slot is new, and waits for job 7", ""},
		{"of a parked slot", "slot-disk", node(func(f *fake) { f.plan.Slots[0].Parked = "its GPU is lost" }), disks(strings.ReplaceAll(mounts, "disks/gpu0/mnt", "disks/gpu9/mnt"), mega), "ok: 1 disks of 1MiB", ""},
		{"not where checkouts are", "slot-disk", node(nil), disks(strings.ReplaceAll(mounts, "7:0 /home", "8:1 /home"), mega), "fail: its disk is not mounted, so no container starts", "kbnode disk --slot 0"},
		{"read-only", "slot-disk", node(nil), disks(strings.ReplaceAll(mounts, "/dev/loop0 rw", "/dev/loop0 ro"), mega), "fail: its disk has become read-only; the kernel log says why", recreate},
		{"of another size", "slot-disk", node(nil), disks(mounts, mega[:1<<19]), "warn: its disk has 512KiB instead of the planned 1MiB", recreate},
		{"of another size while a job runs", "slot-disk", node(func(f *fake) { f.state.Slots[0].Job = &slot.Job{ID: "7"} }), disks(mounts, mega[:1<<19]),
			"warn: its disk has 512KiB instead of the planned 1MiB; the change waits for job 7 of slot gpu0", ""},
		{"none", "slot-disk", node(func(f *fake) { f.plan.Slots[0].DiskBytes, f.plan.Slots[1].DiskBytes = 0, 0 }), disks(mounts, mega), "skip: slots have no disks of their own (job.disk)", ""},

		{"none", "slot-parked", node(nil), nil, "ok: none", ""},
		{"by what a job left", "slot-parked", node(nil), map[string]string{"/run/kbnode/gpu1/parked/gpu.json": `{"reason":"GPU-1 is held by process 7, which does not exit; reboot","since":"2026-11-21T10:00:00Z"}`},
			"fail: GPU-1 is held by process 7, which does not exit; reboot", ""},
		{"because of its GPU", "slot-parked", node(func(f *fake) { f.plan.Slots[1].Parked = "GPU 1 is missing" }), nil, "warn: it takes no jobs because of its GPU", ""},
	})
	prolog := func(file string) *fake {
		return node(func(f *fake) { f.cfg = &config.Config{Job: config.Job{Prolog: file}} })
	}
	files := map[string]string{"/usr/local/sbin/prolog": "#!/bin/sh"}
	play(t, []scene{
		{"none", "slot-hooks", node(nil), nil, "skip: the configuration has none (job.prolog, job.epilog)", ""},
		{"no program", "slot-hooks", prolog("/usr/local/sbin/prolog"), files, "fail: job.prolog: /usr/local/sbin/prolog is not executable", "chmod u+x /usr/local/sbin/prolog"},
		{"not there", "slot-hooks", prolog("/usr/local/sbin/epilog"), files, "fail: job.prolog: /usr/local/sbin/epilog does not exist; put the program there, or name another", ""},
		{"in no directory", "slot-hooks", prolog("/usr/local/sbin/prolog/x"), files, "fail: job.prolog: /usr/local/sbin/prolog is not a directory; name a program by its path", ""},
	})
	// Only a file system can be full, and no directory of a test is one.
	full := diskState{bytes: 1, mount: host.Mount{Device: "7:0"}, home: host.Mount{Device: "7:0"}, use: unix.Statfs_t{Blocks: 100, Bavail: 9, Files: 100, Ffree: 50}}
	if f := full.judge(plan.Slot{DiskBytes: 1}); f.Detail != "its disk is nearly full, although no job runs" || f.Fix != recreate {
		t.Errorf("%+v", f)
	}
	full.use.Bavail, full.use.Ffree = 50, 9
	if f := full.judge(plan.Slot{DiskBytes: 1}); f.Status != Warn {
		t.Errorf("without inodes: %+v", f)
	}
	full.busy = "job 7"
	if full.judge(plan.Slot{DiskBytes: 1}).Status != OK {
		t.Error("a job may fill its disk")
	}
}

func TestGPUProcesses(t *testing.T) {
	t.Parallel()
	// The machine has been up for 1000 s. A process started at began of them.
	proc := func(files map[string]string, pid int, name string, began int, uid int) map[string]string {
		out := map[string]string{"/proc/uptime": "1000.00 4000.00\n", "/etc/passwd": "kbnode-gpu0:x:990:990::/:\nkbnode-gpu1:x:991:991::/:\n"}
		maps.Copy(out, files)
		dir := fmt.Sprintf("/proc/%d/", pid)
		out[dir+"comm"] = name + "\n"
		out[dir+"stat"] = fmt.Sprintf("%d (a) b) S%s %d 0\n", pid, strings.Repeat(" 0", 18), began*100)
		out[dir+"status"] = fmt.Sprintf("Name:\tx\nUid:\t%d\t%d\t%d\t%d\n", uid, uid, uid, uid)
		return out
	}
	listed := func(second nvml.GPU) *fake {
		return node(func(f *fake) { f.inv.GPUs[0].NVML, f.inv.GPUs[1].NVML = &nvml.GPU{}, &second })
	}
	play(t, []scene{
		{"good", "slot-gpu-processes", listed(nvml.GPU{}), nil, "ok: 2 GPUs", ""},
		{"NVML does not answer", "slot-gpu-processes", node(nil), nil, "skip: NVML does not list the processes of GPU 0000:01:00.0 (and 1 more)", ""},
		{"NVML does not tell", "slot-gpu-processes", listed(nvml.GPU{Unlisted: true}), nil, "skip: NVML does not list the processes of GPU 0000:02:00.0", ""},
		{"a server", "slot-gpu-processes", listed(nvml.GPU{Processes: []nvml.Process{{PID: 300}}}), proc(nil, 300, "vllm", 10, 0),
			"fail: process 300 (vllm) computes on 0000:02:00.0", "kill -9 300"},
		{"a server on AMD's", "slot-gpu-processes", amdNode(), proc(kfd(300, 1001, "queues/0/gpuid", "1001\n"), 300, "vllm", 10, 0),
			"fail: process 300 (vllm) computes on 0000:01:00.0", "kill -9 300"},
		{"a server on another partition", "slot-gpu-processes", amdNode(), proc(kfd(300, 1005, "vram_1005", "4096\n"), 300, "vllm", 10, 0), "ok: 2 GPUs", ""},
		{"AMD's, and it does not tell", "slot-gpu-processes", amdNode(), kfd(0, 0), "skip: check the GPU: the compute driver (KFD) does not list its processes (and 1 more)", ""},
		{"the slot's own", "slot-gpu-processes", listed(nvml.GPU{Processes: []nvml.Process{{PID: 300}}}),
			proc(map[string]string{"/proc/300/cgroup": "0::/buildkite.slice/buildkite-gpu1.slice/docker-1.scope\n"}, 300, "python3", 10, 0), "ok: 2 GPUs", ""},
		{"a neighbour's", "slot-gpu-processes", listed(nvml.GPU{Processes: []nvml.Process{{PID: 300}}}),
			proc(map[string]string{"/proc/300/cgroup": "0::/buildkite.slice/buildkite-gpu0.slice/docker-1.scope\n"}, 300, "python3", 10, 0), "fail: process 300 (python3) computes on 0000:02:00.0", "kill -9 300"},
		{"one that has ended", "slot-gpu-processes", listed(nvml.GPU{Processes: []nvml.Process{{PID: 300}}}), nil,
			"ok: 2 GPUs", ""},
	})
}

// amdNode returns node with two partitions of one AMD GPU.
func amdNode() *fake {
	return node(func(f *fake) {
		for k := range f.inv.GPUs {
			g := &f.inv.GPUs[k]
			g.Vendor, g.PCI, g.UUID, g.Partition, g.RenderMinor, g.ComputePartition = "amd", "0000:01:00.0", "GPU-1", k, 128+k, "DPX"
			f.plan.Slots[k].GPUs[0] = plan.SlotGPU{Vendor: "amd", PCI: g.PCI, UUID: g.UUID, Part: "DPX", Partition: k, Devices: []string{"/dev/kfd", fmt.Sprintf("/dev/dri/renderD%d", 128+k)}}
		}
	})
}

// kfd returns the files of a compute driver that has these two partitions and a third GPU,
// with a process on one of them. pairs are files of the process.
func kfd(pid, gpu int, pairs ...string) map[string]string {
	const dir = "/sys/class/kfd/kfd/"
	files := map[string]string{}
	for k, id := range []int{1001, 1002, 1005} {
		node := fmt.Sprintf("%stopology/nodes/%d/", dir, k+1)
		files[node+"gpu_id"] = fmt.Sprintf("%d\n", id)
		files[node+"properties"] = fmt.Sprintf("simd_count 608\nlocation_id %d\ndomain 0\ndrm_render_minor %d\n", 0x100+k, 128+k)
	}
	if gpu > 0 {
		for i := 0; i < len(pairs); i += 2 {
			files[fmt.Sprintf("%sproc/%d/%s", dir, pid, pairs[i])] = pairs[i+1]
		}
	}
	return files
}

func TestContainerCheck(t *testing.T) {
	t.Parallel()
	held := []selftest.Check{{Tried: "all CPUs", Saw: "CPUs 0-3", Held: true}}
	f := &fake{slots: []selftest.SlotReport{
		{Index: 0, Checks: held},
		{Index: 1, Checks: []selftest.Check{{Tried: "its own GPU", Saw: "[]", Do: "sudo kbnode reconcile"}, held[0]}},
		{Index: 2, Skipped: "it is busy with job 7"},
		{Index: 3, Checks: held},
	}}
	got := answer(t, machineOf(t, f, nil), "container")
	want := []Finding{
		ok("its GPU, CPUs and memory").Of(0, 3),
		fail("its own GPU: saw []").Of(1).Advise("sudo kbnode reconcile"),
		skip("it is busy with job 7").Of(2),
	}
	if diff := cmp.Diff(want, got.Findings); diff != "" || got.Status != Fail {
		t.Errorf("%s: %s", got.Status, diff)
	}
	want[0].Detail = "1 attempts, all blocked"
	must.Equal(t, want, answer(t, machineOf(t, f, nil), "escape").Findings)
	f.err = selftest.ErrRuns
	if got := answer(t, machineOf(t, f, nil), "escape"); got.Status != Skip || !strings.Contains(got.Summary(), "try again when it is done") {
		t.Errorf("beside another test: %+v", got)
	}
	f.err = nil
	f.slots = f.slots[2:3]
	if got := answer(t, machineOf(t, f, nil), "container"); got.Status != Skip {
		t.Errorf("all busy: %+v", got)
	}
	f.err = errors.Join(context.DeadlineExceeded, context.DeadlineExceeded)
	if got := answer(t, machineOf(t, f, nil), "container"); got.Status != Fail || got.Summary() != "the containers did not end within 0s: Docker is slow or hangs" {
		t.Errorf("slow: %+v", got)
	}
	f.err = errors.New("no engine")
	if got := answer(t, machineOf(t, f, nil), "container"); got.Status != Fail || got.Summary() != "no engine" {
		t.Errorf("no engine: %+v", got)
	}
}

func TestNodeChecks(t *testing.T) {
	t.Parallel()
	unit := func(u slot.Unit) *fake {
		u.Name = plan.NodeService
		return &fake{state: &reconcile.State{Units: map[string]slot.Unit{u.Name: u}}}
	}
	verdict := func(text string) map[string]string { return map[string]string{"/var/lib/kbnode/health.json": text} }
	exports := unit(slot.Unit{})
	exports.cfg = &config.Config{Metrics: config.Metrics{Textfile: "/srv/metrics"}}
	play(t, []scene{
		{"no configuration yet", "config", &fake{}, nil, "ok: no file, so the defaults apply", ""},
		{"the configuration of a node", "config", &fake{}, map[string]string{plan.BindingsPath: "", plan.ConfigPath: ""}, "ok: /etc/kbnode/config.yaml", ""},
		{"a node that lost its configuration", "config", &fake{}, map[string]string{plan.BindingsPath: ""}, "fail: /etc/kbnode/config.yaml is missing, so the node is not planned anymore", ""},
		{"a configuration that is none", "config", &fake{err: errors.New("line 2: unknown key\nline 3: no number")}, nil, "fail: line 2: unknown key; line 3: no number", ""},
		{"a machine that cannot be split", "plan", &fake{err: errors.New("no GPU")}, nil, "fail: no GPU", ""},
		{"a slot without its GPU", "plan", &fake{inv: &inventory.Inventory{}, plan: &plan.Plan{Slots: []plan.Slot{{Name: "gpu0", Parked: "lost"}}, Warnings: []string{"slot gpu0 is parked: lost"}}}, nil, "ok: 1 slots", ""},
		{"a hook that slot-hooks reports", "plan", &fake{cfg: &config.Config{Job: config.Job{Epilog: "/etc/epilog"}}, inv: &inventory.Inventory{}, plan: &plan.Plan{Slots: []plan.Slot{{}}, Warnings: []string{"job.epilog: /etc does not exist; put the program there, or name another"}}}, nil, "ok: 1 slots", ""},
		{"a warning of the plan", "plan", &fake{inv: &inventory.Inventory{}, plan: &plan.Plan{Slots: []plan.Slot{{}}, Warnings: []string{"few CPUs"}}}, nil, "warn: few CPUs", ""},
		{"a machine that cannot be read", "inventory", &fake{err: errors.New("no /proc")}, nil, "fail: no /proc", ""},
		{"a machine that was read", "inventory", &fake{inv: &inventory.Inventory{OS: inventory.OS{PrettyName: "Debian"}, Kernel: "6.12"}}, nil, "ok: Debian, 6.12, 0 CPUs, 0 GPUs", ""},
		{"a bare one", "installed", &fake{}, nil, "fail: kbnode install has not run here", ""},
		{"an installed one", "installed", &fake{}, map[string]string{plan.BindingsPath: "{}"}, "ok: " + plan.BindingsPath, ""},
		{"systemd is dead", "state", &fake{err: errors.New("no answer")}, nil, "fail: no answer", ""},
		{"drift", "as-planned", drifts(&fake{}, reconcile.Change{Kind: reconcile.Chmod, Subject: "/etc/x", Slot: 2, Why: "mode is 0777"}), nil,
			"fail: chmod /etc/x (mode is 0777)", "kbnode reconcile"},
		{"a stopped service", "as-planned", drifts(&fake{}, reconcile.Change{Kind: reconcile.Start, Subject: plan.NodeService, Slot: -1}), nil, "ok: 0 files, 0 units", ""},
		{"drift that waits", "as-planned", drifts(&fake{}, reconcile.Change{Kind: reconcile.Update, Subject: "/etc/x", Slot: 2, Deferred: "waits for job 1"}), nil, "warn: update /etc/x, waits for job 1", ""},
		{"what was planned without Docker", "as-planned", drifts(&fake{inv: &inventory.Inventory{Problems: []inventory.Problem{{Subject: "docker", Detail: "connection refused"}}}}, reconcile.Change{Kind: reconcile.Update, Subject: "/etc/kbnode/slots/gpu0.json", Slot: 0}), nil, "skip: the plan is incomplete while Docker does not answer", ""},
		{"the daemon fails", "daemon", unit(slot.Unit{Active: "failed", Result: "exit-code", ExitStatus: 1}), nil,
			"fail: it keeps failing (exit-code, exit status 1)", "systemctl restart kbnode.service"},
		{"the daemon is stopped", "daemon", unit(slot.Unit{Active: "inactive"}), nil, "fail: it is inactive", "systemctl start kbnode.service"},
		{"the daemon is not enabled", "daemon", unit(slot.Unit{Active: "active"}), nil, "warn: it runs, but will not start after a reboot", "systemctl enable kbnode.service"},
		{"a GPU is drained", "health", &fake{}, verdict(`{"verdicts":[{"check":"gpu.ecc","slots":[3],"level":"fatal","effect":"drain","reason":"2 errors","fix":"reset it"}]}`), "fail: gpu.ecc: 2 errors", ""},
		{"a GPU is hot", "health", &fake{}, verdict(`{"verdicts":[{"check":"gpu.thermal","slots":[3],"level":"degraded","effect":"none","reason":"hot","fix":"cool it"}]}`), "warn: gpu.thermal: hot", ""},
		{"what is normal", "health", &fake{}, verdict(`{"verdicts":[{"check":"gpu.throttle","level":"info","effect":"none","reason":"power limit"}]}`), "ok: no verdicts", ""},
		{"half a file", "health", &fake{}, verdict(`{"verd`), "warn: read health: unexpected end of JSON input", "systemctl restart kbnode.service"},
		{"no metrics for node_exporter", "metrics", unit(slot.Unit{}), nil, "skip: metrics.textfile is not set", ""},
		{"metrics for a directory that is not there", "metrics", exports, nil, "warn: no metrics for node_exporter in /srv/metrics: there is no such directory", ""},
		{"metrics that do not come", "metrics", exports, map[string]string{"/srv/metrics/other.prom": ""}, "warn: /srv/metrics/kbnode.prom is missing", ""},
	})
}
