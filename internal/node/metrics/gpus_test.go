package metrics

import (
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestGPUs(t *testing.T) {
	t.Parallel()
	e := New(Options{})
	const names = "kbnode_gpu_power_watts|kbnode_gpu_throttled|kbnode_gpu_memory_used_bytes"
	s := full()
	s.State = nil
	pci := s.Plan.Slots[0].GPUs[0].PCI
	at := func(after time.Duration, all *health.GPUs, want ...string) {
		t.Helper()
		s.Began, s.GPUs = noon.Add(after), all
		e.Publish(s)
		must.Equal(t, want, samples(t, e, names))
	}
	one := func(g inventory.GPU, bus health.Bus) *health.GPUs {
		g.PCI = pci
		return &health.GPUs{List: []inventory.GPU{g}, Bus: map[string]health.Bus{pci: bus}}
	}
	const watts = `kbnode_gpu_power_watts{gpu="0",slot="gpu0"} 300`
	draws := inventory.GPU{Vendor: "nvidia", Healthy: true, NVML: &nvml.GPU{Power: &nvml.Power{Usage: new(uint32(300_000))}}}
	silent := one(inventory.GPU{Vendor: "nvidia", Healthy: true, Unread: true}, health.Bus{})
	at(0, silent)
	must.Equal(t, `kbnode_gpu_read_timestamp_seconds{gpu="0",slot="gpu0"} 0`, samples(t, e, "kbnode_gpu_read_timestamp_seconds")[0]) // as after a restart
	at(time.Second, one(draws, health.Bus{}), watts)
	at(time.Minute, nil, watts)
	at(2*time.Minute, silent, watts)
	at(3*time.Minute, &health.GPUs{}, watts)
	at(10*time.Minute, silent)
	must.Equal(t, `kbnode_gpu_read_timestamp_seconds{gpu="0",slot="gpu0"} 1.772366401e+09`, samples(t, e, "kbnode_gpu_read_timestamp_seconds")[0])
	// A value that is no longer reported is none.
	at(11*time.Minute, one(draws, health.Bus{}), watts)
	draws.NVML = &nvml.GPU{Memory: &nvml.Memory{}, ClockReasons: new(uint64(0x80))}
	at(12*time.Minute, one(draws, health.Bus{}),
		`kbnode_gpu_memory_used_bytes{gpu="0",slot="gpu0"} 0`,
		`kbnode_gpu_throttled{gpu="0",reason="hardware",slot="gpu0"} 0`, `kbnode_gpu_throttled{gpu="0",reason="hardware_heat",slot="gpu0"} 0`,
		`kbnode_gpu_throttled{gpu="0",reason="heat",slot="gpu0"} 0`, `kbnode_gpu_throttled{gpu="0",reason="power_brake",slot="gpu0"} 1`,
		`kbnode_gpu_throttled{gpu="0",reason="power_cap",slot="gpu0"} 0`)
	amd := health.Bus{Telemetry: health.Telemetry{Sample: nvml.Sample{Power: new(uint32(300_000))}}}
	at(13*time.Minute, one(inventory.GPU{Vendor: "amd", Healthy: true}, amd), watts)
	s.Plan = &plan.Plan{}
	at(14*time.Minute, nil)
	must.Equal(t, 0, len(samples(t, e, "kbnode_gpu_read_timestamp_seconds")))
}

// TestHungGPU has the driver answer for all GPUs but one: only this one's values end.
func TestHungGPU(t *testing.T) {
	t.Parallel()
	e := New(Options{})
	s := full()
	for pass := range 7 {
		s.Began, s.GPUs = noon.Add(time.Duration(pass)*time.Minute), &health.GPUs{}
		for i, sl := range s.Plan.Slots {
			g := inventory.GPU{Vendor: "nvidia", PCI: sl.GPUs[0].PCI, Healthy: true, NVML: &nvml.GPU{Busy: new(uint32(pass))}}
			if i == 1 && pass > 0 {
				g.NVML, g.Unread = nil, true
			}
			s.GPUs.List = append(s.GPUs.List, g)
		}
		e.Publish(s)
	}
	must.Equal(t, []string{
		`kbnode_gpu_utilization_ratio{gpu="0",slot="gpu0"} 0.06`, `kbnode_gpu_utilization_ratio{gpu="2",slot="gpu2"} 0.06`, `kbnode_gpu_utilization_ratio{gpu="3",slot="gpu3"} 0.06`,
	}, samples(t, e, "kbnode_gpu_utilization_ratio"))
	must.Equal(t, 4, len(samples(t, e, "kbnode_gpu_read_timestamp_seconds")))
}

func TestBusyTime(t *testing.T) {
	t.Parallel()
	e := New(Options{})
	for _, pass := range []struct {
		at    time.Duration
		job   string
		blind bool // the pass did not observe the slots
	}{{at: 0}, {at: 30, job: "a"}, {at: 60, blind: true}, {at: 90, job: "b"}, {at: 100}, {at: 200}, {at: 210, job: "c"}, {at: 205, job: "c"}, {at: 100_000}} {
		s := full()
		s.Began = noon.Add(pass.at * time.Second)
		s.State.Slots[0].Job = nil
		if pass.job != "" {
			s.State.Slots[0].Job = &slot.Job{ID: pass.job}
		}
		if pass.blind {
			s.State = nil
		}
		e.Publish(s)
	}
	got := samples(t, e, "kbnode_slot_busy_seconds_total")
	must.Equal(t, `kbnode_slot_busy_seconds_total{slot="gpu0"} 670`, got[0])
	must.Equal(t, 4, len(got))
}
