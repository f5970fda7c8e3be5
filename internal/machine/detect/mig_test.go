package detect

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestMIGProfile(t *testing.T) {
	t.Parallel()
	b200 := &nvml.GPU{Memory: &nvml.Memory{TotalBytes: 183359 << 20}}
	a100 := &nvml.GPU{Memory: &nvml.Memory{TotalBytes: 40960 << 20}}
	for _, row := range []struct {
		gpu  *nvml.GPU
		mig  nvml.MIG
		want string
	}{
		{b200, nvml.MIG{Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", MemoryBytes: 1 << 30, Slices: 7}, "1g.10gb+me"},
		{b200, nvml.MIG{Name: "NVIDIA B200 MIG 1g.23gb+me2.x_y-Z", MemoryBytes: 23552 << 20, Slices: 1}, "1g.23gb+me2.x_y-Z"},
		{b200, nvml.MIG{Name: "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"}, "1c.3g.20gb"},
		{b200, nvml.MIG{MemoryBytes: 23552 << 20, Slices: 1, ComputeSlices: 1}, "1g.23gb"},
		{b200, nvml.MIG{MemoryBytes: 91136 << 20, Slices: 3, ComputeSlices: 3, Name: "NVIDIA B200"}, "3g.90gb"},
		{a100, nvml.MIG{MemoryBytes: 19968 << 20, Slices: 3, ComputeSlices: 2}, "2c.3g.20gb"},
		{a100, nvml.MIG{MemoryBytes: 4864 << 20, Slices: 1}, "1g.5gb"},
		{&nvml.GPU{}, nvml.MIG{MemoryBytes: 1 << 30, Slices: 1}, ""},
		{b200, nvml.MIG{Slices: 1}, ""},
		{b200, nvml.MIG{MemoryBytes: 1 << 30}, ""},
		{b200, nvml.MIG{Name: "NVIDIA B200 MIG $(reboot)"}, ""},
		{b200, nvml.MIG{Name: "NVIDIA B200 MIG 1g.23gb\n"}, ""},
	} {
		if got := migProfile(row.gpu, row.mig); got != row.want {
			t.Errorf("%+v: got %q, want %q", row.mig, got, row.want)
		}
	}
}

func TestMIGCaps(t *testing.T) {
	t.Parallel()
	const good = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu3/gi1/access 417\ngpu3/gi1/ci0/access 418\ngpu3/gi2/access 426\ngpu3/gi2/ci0/access 427"
	for _, row := range []struct {
		name, minors string
		minor        int
		want         [4]int // of two instances: GPU and compute
		problem      string
	}{
		{"by the device minor, not the index", good, 3, [4]int{417, 418, 426, 427}, ""},
		{"one instance is not there", good, 0, [4]int{12, 13, -1, -1}, "/proc/driver/nvidia-caps/mig-minors has no capabilities for 1 of its 2 MIG instances (MIG-2)"},
		{"no file", "", 3, [4]int{-1, -1, -1, -1}, "for 2 of its 2 MIG instances (MIG-1, MIG-2)"},
		{"minor unknown", good, -1, [4]int{-1, -1, -1, -1}, "for 2 of its 2"},
		{"a line twice", good + "\ngpu3/gi2/ci0/access 9", 3, [4]int{417, 418, 426, -1}, "for 1 of its 2"},
		{
			"garbage", "gpu3/gi1/access -1\ngpu3/gi1/ci0/access 0\ngpu3/gi2/access 9999999\ngpu3/gi2/ci0/access 1 2\n" +
				"xgpu3/gi2/ci0/access 5\ngpu3/gi2/ci0/access\x00 7", 3,
			[4]int{-1, -1, -1, -1}, "for 2 of its 2",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			tr := nvidiaTree(t)
			if row.minors != "" {
				tr = nvidiaTree(t, "-- "+migMinors+" --\n"+row.minors+"\n")
			}
			gpus := []inventory.GPU{
				{PCI: "0000:1a:00.0", Minor: row.minor, MIG: []inventory.MIG{{UUID: "MIG-1", GPUInstance: 1, GPUCap: -1, ComputeCap: -1}, {UUID: "MIG-2", GPUInstance: 2, GPUCap: -1, ComputeCap: -1}}},
				{PCI: "0000:1b:00.0", Minor: 7},
			}
			problems := migCaps(tr, gpus)
			a, b := gpus[0].MIG[0], gpus[0].MIG[1]
			must.Equal(t, row.want, [4]int{a.GPUCap, a.ComputeCap, b.GPUCap, b.ComputeCap})
			if got := summary(nil, problems); (row.problem == "") != (got == "") || !strings.Contains(got, row.problem) {
				t.Errorf("problems %q, want %q", got, row.problem)
			}
		})
	}
}

// An instance that is invalid or does not answer is reported.
func TestMIGBroken(t *testing.T) {
	t.Parallel()
	num := func(n int) *int { return &n }
	n := nvml.GPU{PCI: "0000:1a:00.0", UUID: "GPU-1", Minor: num(0), MIG: []nvml.MIG{{Error: "nvmlDeviceGetUUID: Unknown Error"}}}
	gpus, _, problems := nvidiaGPUs(nvidiaTree(t), &nvml.Report{OK: true, GPUs: []nvml.GPU{n}}, nil)
	if want := "gpu 0000:1a:00.0: MIG instance: nvmlDeviceGetUUID: Unknown Error\n"; len(gpus[0].MIG) != 0 || summary(nil, problems) != want {
		t.Errorf("%+v, problems %q; want %q", gpus[0].MIG, summary(nil, problems), want)
	}
}

func TestNVLinks(t *testing.T) {
	t.Parallel()
	at := func(pci, uuid string, ends ...string) nvml.GPU {
		return nvml.GPU{PCI: pci, UUID: uuid, NVLinkGPUs: ends}
	}
	gpus, _, _ := nvidiaGPUs(nvidiaTree(t), &nvml.Report{OK: true, GPUs: []nvml.GPU{
		at("0000:1a:00.0", "GPU-1", "0000:3b:00.0", "00000000:1B:00.0", "0000:1a:00.0", "0000:1b:00.0"),
		at("0000:1b:00.0", "GPU-2", "0000:99:00.0", "../etc"),
		at("0000:3b:00.0", "GPU-3"),
	}}, nil)
	for i, want := range [][]string{{"0000:1b:00.0", "0000:3b:00.0"}, nil, nil} {
		must.Equal(t, want, gpus[i].Links)
	}
}
