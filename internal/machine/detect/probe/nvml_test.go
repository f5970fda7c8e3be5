package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestEightGPUs(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	report, err := Run(t.Context(), r.options(t, "driver", `
driver = 580.82.07
gpu.0.uuid = GPU-b2000000-0000-4000-8000-000000000000
gpu.0.pci = 00000000:1A:00.0
gpu.0.serial = 1650224000123
gpu.0.persistence = 0
gpu.0.memory_node = 4
gpu.0.ecc_volatile_uncorrected = 4294967297
gpu.0.remap_pending = 1
gpu.0.recovery_action = 4
gpu.0.clock_reasons = 0x44
gpu.0.mig_pending = 1
gpu.0.nvlinks_up = 17
gpu.0.processes = 4711:1073741824 4712:18446744073709551615
`))
	must.Do(t, err)
	if report.Driver != "580.82.07" || report.CUDA != "13.0" || len(report.GPUs) != 8 {
		t.Fatalf("driver %q, CUDA %q, %d GPUs", report.Driver, report.CUDA, len(report.GPUs))
	}
	u64, u32 := func(n uint64) *uint64 { return &n }, func(n uint32) *uint32 { return &n }
	num, i64, no := func(n int) *int { return &n }, func(n int64) *int64 { return &n }, false
	margin := int32(54)
	want := nvml.GPU{
		UUID: "GPU-b2000000-0000-4000-8000-000000000000", PCI: "0000:1a:00.0", PCIID: "10de:2901",
		Name: "NVIDIA B200", Serial: "1650224000123", Minor: num(0), MemoryNode: num(4),
		Compute: "10.0", Memory: &nvml.Memory{TotalBytes: 183359 << 20},
		Persistence: "off", ComputeMode: "default",
		MIGMode: &nvml.Mode{Current: "off", Pending: "on"}, ECCMode: &nvml.Mode{Current: "on", Pending: "on"},
		ECC:            &nvml.ECC{VolatileUncorrected: u64(1<<32 + 1), SRAMThreshold: &no},
		RemappedRows:   &nvml.Remapped{Pending: true, Banks: &nvml.Banks{}},
		RecoveryAction: i64(4),
		Clocks:         &nvml.Clocks{SM: u32(120), MaxSM: u32(1965), Memory: u32(3996)},
		ClockReasons:   u64(0x44),
		Power:          &nvml.Power{Limit: u32(1_000_000), Enforced: u32(1_000_000), Default: u32(1_000_000), Usage: u32(142_000)}, Busy: u32(100),
		EnergyMillijoules: u64(86_400_000),
		Temperature:       &nvml.Temperature{GPU: u32(31), Margin: &margin},
		PCIe:              &nvml.PCIe{Gen: num(5), MaxGen: num(5), Width: num(16), MaxWidth: num(16), Replays: num(0)},
		Fabric:            &nvml.Fabric{State: "completed"},
		NVLinks:           i64(18), NVLinksUp: num(17),
		Processes: []nvml.Process{
			{PID: 4711, UsedBytes: 1 << 30}, {PID: 4712},
		},
	}
	must.Equal(t, want, report.GPUs[0])
	for i, g := range report.GPUs[1:] {
		if g.Error != "" || g.UUID != fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", i+1) || *g.Minor != i+1 {
			t.Errorf("GPU %d: %+v", i+1, g)
		}
	}
}

func TestBrokenGPU(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	for _, row := range []struct {
		name, config string
		want         nvml.GPU // of the GPU with index 3
		unread       []string
	}{
		{name: "lost before it is opened", config: "gpu.3.handle = 15", want: nvml.GPU{Index: 3, Error: "nvmlDeviceGetHandleByIndex: GPU is lost", Code: 15}},
		{
			name: "lost after it was opened", config: "gpu.3.error = 15",
			want: nvml.GPU{
				Index: 3, Error: "nvmlDeviceGetUUID: GPU is lost", Code: 15,
				PCI: "0000:13:00.0", PCIID: "10de:2901", Unlisted: true,
			},
		},
		{
			name: "lost while it is read", config: "gpu.3.fail.nvmlDeviceGetMinorNumber = 15",
			want: nvml.GPU{
				Index: 3, Error: "nvmlDeviceGetMinorNumber: GPU is lost", Code: 15,
				PCI: "0000:13:00.0", PCIID: "10de:2901", Unlisted: true,
				UUID: "GPU-00000000-0000-4000-8000-000000000003", Name: "NVIDIA B200",
			},
		},
		{name: "needs a reset", config: "gpu.3.handle = 16", want: nvml.GPU{Index: 3, Error: "nvmlDeviceGetHandleByIndex: GPU requires reset", Code: 16}},
		{name: "one query fails", config: "gpu.3.fail.nvmlDeviceGetEccMode = 999\ngpu.3.fail.nvmlDeviceGetSerial = 3", unread: []string{"nvmlDeviceGetEccMode: Unknown Error"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			report, err := Run(t.Context(), r.options(t, "driver", row.config))
			must.Do(t, err)
			if len(report.GPUs) != 8 {
				t.Fatalf("%d GPUs, want 8", len(report.GPUs))
			}
			for i, g := range report.GPUs {
				if i != 3 && (g.Error != "" || g.UUID == "" || g.Unread != nil) {
					t.Errorf("healthy GPU %d: %+v", i, g)
				}
			}
			got := report.GPUs[3]
			if row.unread == nil {
				must.Equal(t, row.want, got)
			} else if diff := cmp.Diff(row.unread, got.Unread); diff != "" || got.Error != "" || got.ECCMode != nil || got.Clocks == nil {
				t.Errorf("unread (-want +got):\n%s\n%+v", diff, got)
			}
		})
	}
}

func TestMIG(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	const conf = `
count = 2
gpu.0.mig = 1
gpu.0.mig.0 = MIG-11111111-2222-5333-8444-555555555555 1 0 0 4 3 60 89000 9 NVIDIA B200 MIG 3g.90gb
gpu.0.mig.2 = MIG-11111111-2222-5333-8444-666666666666 5 0 4 2 2 30 44000 14 NVIDIA B200 MIG 2g.45gb
`
	report, err := Run(t.Context(), r.options(t, "driver", conf))
	must.Do(t, err)
	num := func(n int) *int { return &n }
	want := []nvml.MIG{
		{
			UUID: "MIG-11111111-2222-5333-8444-555555555555", Name: "NVIDIA B200 MIG 3g.90gb", GPUInstance: 1,
			Profile: num(9), Start: num(0), Size: num(4), Slices: 3, ComputeSlices: 3, Multiprocessors: 60, MemoryBytes: 89000 << 20,
		},
		{
			UUID: "MIG-11111111-2222-5333-8444-666666666666", Name: "NVIDIA B200 MIG 2g.45gb", GPUInstance: 5,
			Profile: num(14), Start: num(4), Size: num(2), Slices: 2, ComputeSlices: 2, Multiprocessors: 30, MemoryBytes: 44000 << 20,
		},
	}
	must.Equal(t, want, report.GPUs[0].MIG)
	if g := report.GPUs[0]; g.MIGMode.Current != "on" || g.Name != "NVIDIA B200" || g.Error != "" || report.GPUs[1].MIG != nil {
		t.Errorf("parent %+v, other GPU's instances %v", g, report.GPUs[1].MIG)
	}
	for code, is := range map[string]string{"3": "", "999": "nvmlDeviceGetAttributes_v2: Unknown Error"} { // 3 is not supported
		report, err := Run(t.Context(), r.options(t, "driver", conf+"fail.nvmlDeviceGetAttributes_v2 = "+code))
		must.Do(t, err)
		if m := report.GPUs[0].MIG[1]; m.Error != is || *m.Start != 4 {
			t.Errorf("an instance whose attributes fail with %s is %+v", code, m)
		}
	}
}

// Bridges lead from GPU to GPU, all other links to a switch.
func TestNVLinks(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	report, err := Run(t.Context(), r.options(t, "driver", `
count = 4
nvlinks = 12
gpu.0.nvlink_gpus = 00000000:11:00.0
gpu.1.nvlink_gpus = 0000:12:00.0 0000:10:00.0
gpu.2.nvlink_gpus = 0000:11:00.0
gpu.2.nvlinks_up = 0
`))
	must.Do(t, err)
	var got [][]string
	for _, g := range report.GPUs {
		if *g.NVLinks != 12 || g.Error != "" || g.Unread != nil {
			t.Errorf("%+v", g)
		}
		got = append(got, g.NVLinkGPUs)
	}
	want := [][]string{{"0000:11:00.0"}, {"0000:10:00.0", "0000:12:00.0"}, nil, nil}
	must.Equal(t, want, got)
}

// An old driver lacks functions; calling a missing one would end the probe.
func TestOldDriver(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	report, err := Run(t.Context(), r.options(t, "nosym", "count = 2\nused_mib = 100\nprocesses = 7:5"))
	must.Do(t, err)
	if len(report.GPUs) != 2 {
		t.Fatalf("%d GPUs, want 2", len(report.GPUs))
	}
	g := report.GPUs[1]
	if g.Error != "" || g.Unread != nil || g.MIGMode != nil || g.RemappedRows != nil || g.EnergyMillijoules != nil || g.Fabric != nil || g.NVLinks != nil {
		t.Errorf("got %+v", g)
	}
	if g.UUID == "" || g.ClockReasons == nil || len(g.Processes) != 1 {
		t.Errorf("what the old driver has is missing: %+v", g)
	}
	must.Equal(t, &nvml.Memory{TotalBytes: 183359 << 20, UsedBytes: 685 << 20}, g.Memory)
}

func TestNoNVML(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	garbage := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(garbage, "libnvidia-ml.so.1"), []byte("not a library"), 0o600))
	for _, row := range []struct {
		name, config string
		library      string // directory; "" is the fake
		want         Error
		says         string
	}{
		{name: "driver not loaded", config: "init = 9", want: Error{Code: 9, Text: "Driver Not Loaded"}, says: "modprobe nvidia"},
		{name: "driver upgraded, module not", config: "init = 18", want: Error{Code: 18, Text: "Driver/library version mismatch"}, says: "reboot"},
		{name: "another refusal", config: "init = 999", want: Error{Code: 999, Text: "Unknown Error"}, says: "Unknown Error (code 999)"},
		{name: "no library", library: t.TempDir(), want: Error{Code: 12, Text: "libnvidia-ml.so.1: cannot open shared object file: No such file or directory", Absent: true}, says: "no NVIDIA driver library"},
		{name: "a library that is none", library: garbage, want: Error{Code: 12, Text: garbage + "/libnvidia-ml.so.1: file too short"}, says: "file too short"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			opts := r.options(t, "driver", row.config)
			if row.library != "" {
				opts.Env = []string{"LD_LIBRARY_PATH=" + row.library}
			}
			report, err := Run(t.Context(), opts)
			var refusal *Error
			if !errors.As(err, &refusal) {
				if err == nil && row.want.Absent {
					t.Skip("this machine has a driver")
				}
				t.Fatalf("got error %v", err)
			}
			must.Equal(t, row.want, *refusal)
			must.Contain(t, err.Error(), row.says)
			if report == nil || report.OK || report.Code != row.want.Code {
				t.Errorf("report %+v", report)
			}
		})
	}
}

func TestHang(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	opts := r.options(t, "hang", "")
	opts.Timeout = 500 * time.Millisecond
	if report, err := Run(t.Context(), opts); report != nil || err == nil {
		t.Fatalf("got %+v, %v", report, err)
	}
	// The next probe can run: nothing is left of the first.
	if _, err := Run(t.Context(), r.options(t, "hang", "hang = 0")); err != nil {
		t.Error(err)
	}
}

// What uses one GPU is read only from that GPU, and quickly.
func TestUse(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	const id = "GPU-00000000-0000-4000-8000-000000000003"
	for _, row := range []struct {
		name, variant, config, gpu string
		want                       nvml.GPU
	}{
		{
			"in use", "driver", "gpu.3.used_mib = 512\ngpu.3.processes = 4711:1073741824\ngpu.3.graphics = 812:18446744073709551615\ngpu.2.hang_gpu = 3600", id,
			nvml.GPU{
				Memory:    &nvml.Memory{TotalBytes: 183359 << 20, UsedBytes: 512 << 20},
				Processes: []nvml.Process{{PID: 4711, UsedBytes: 1 << 30}},
				Graphics:  []nvml.Process{{PID: 812}},
			},
		},
		{
			"an old driver", "nosym", "gpu.3.processes = 4711:5", id,
			nvml.GPU{
				Memory:    &nvml.Memory{TotalBytes: 183359 << 20, UsedBytes: 585 << 20},
				Processes: []nvml.Process{{PID: 4711, UsedBytes: 5}},
			},
		},
		{
			"an instance", "driver", `gpu.3.mig = 1
gpu.3.mig.0 = MIG-7 7 0 0 1 1 18 23552 19 NVIDIA B200 MIG 1g.23gb
gpu.3.mig.1 = MIG-8 8 0 1 1 1 18 23552 19 NVIDIA B200 MIG 1g.23gb
gpu.3.mig.0.processes = 1:1
gpu.3.mig.1.processes = 4711:1073741824
gpu.3.mig.1.used_mib = 1024`, "MIG-8",
			nvml.GPU{
				Memory:    &nvml.Memory{TotalBytes: 23552 << 20, UsedBytes: 1 << 30},
				Processes: []nvml.Process{{PID: 4711, UsedBytes: 1 << 30}},
			},
		},
		{"lost", "driver", "gpu.3.handle = 15", id, nvml.GPU{Error: "nvmlDeviceGetHandleByUUID: GPU is lost", Code: 15}},
		{"unknown", "driver", "", "GPU-x", nvml.GPU{Error: "nvmlDeviceGetHandleByUUID: Unknown Error", Code: 6}},
		{"no permission for its processes", "driver", "gpu.3.memory_mib = none\ngpu.3.fail.nvmlDeviceGetComputeRunningProcesses_v3 = 4", id, nvml.GPU{Error: "NVML does not tell its processes"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			opts := r.options(t, row.variant, row.config)
			opts.GPU, opts.Timeout = row.gpu, time.Minute
			report, err := Run(t.Context(), opts)
			must.Do(t, err)
			row.want.Index, row.want.UUID = -1, row.gpu
			if diff := cmp.Diff([]nvml.GPU{row.want}, report.GPUs); diff != "" || report.Driver == "" {
				t.Errorf("driver %q (-want +got):\n%s", report.Driver, diff)
			}
		})
	}
}
