package inventory

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestPCIAddress(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ text, want string }{
		{"0000:1a:00.0", "0000:1a:00.0"},
		{"00000008:C1:00.0", "0008:c1:00.0"}, // NVML
		{"0000:1a:00", "0000:1a:00.0"},       // the kernel's log
		{"10000:01:00.1", "10000:01:00.1"},   // a domain of VMD
		{"1a:00.0", ""},
		{"0000:1a:00.8", ""},
		{"0000:1a:00.0/..", ""},
		{"", ""},
	} {
		got, ok := PCIAddress(row.text)
		if got != row.want || ok != (row.want != "") {
			t.Errorf("%q: %q, %t; want %q", row.text, got, ok, row.want)
		}
	}
}

func TestValidUUID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"GPU-b2000000-0000-4000-8000-000000000001": true,
		"MIG-b2000000-0000-5000-8001-000000000001": true,
		"MIG-GPU-b2000000-0000-4000/1/0":           true,
		"GPU-????????-????":                        false, // before its start
		"GPU-":                                     false,
		"GPU-a\n":                                  false,
	} {
		if got := ValidUUID(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}

// Only what could not be read is unread: a problem may also be that it is broken.
func TestWhyUnread(t *testing.T) {
	t.Parallel()
	inv := &Inventory{Problems: []Problem{{SubjectDocker, "no answer"}, {SubjectCDI, "broken"}}, Unread: []string{SubjectDocker, SubjectCPU}}
	for subject, want := range map[string]string{SubjectDocker: "no answer", SubjectCDI: "", SubjectCPU: "", SubjectHost: ""} {
		must.Equal(t, want, inv.WhyUnread(subject))
	}
}

func TestPartsUnread(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		gpu  GPU
		want bool
	}{
		"all read":            {GPU{Healthy: true, NVML: &nvml.GPU{}}, false},
		"no NVML, no MIG":     {GPU{Healthy: true}, false},
		"no NVML":             {GPU{Healthy: true, Unread: true}, true},
		"lost":                {GPU{Unread: true}, false},
		"mode unread":         {GPU{Healthy: true, NVML: &nvml.GPU{Unread: []string{"nvmlDeviceGetMigMode: Unknown Error"}}}, true},
		"clocks unread":       {GPU{Healthy: true, NVML: &nvml.GPU{Unread: []string{"nvmlDeviceGetClock: Unknown Error"}}}, false},
		"an instance fails":   {GPU{Healthy: true, NVML: &nvml.GPU{MIG: []nvml.MIG{{UUID: "MIG-1", Error: "lost"}}}}, true},
		"an instance no UUID": {GPU{Healthy: true, NVML: &nvml.GPU{MIG: []nvml.MIG{{}}}}, true},
		"an instance":         {GPU{Healthy: true, NVML: &nvml.GPU{MIG: []nvml.MIG{{UUID: "MIG-1"}}}}, false},
	} {
		if got := row.gpu.PartsUnread(); got != row.want {
			t.Errorf("%s: %t, want %t", name, got, row.want)
		}
	}
}
