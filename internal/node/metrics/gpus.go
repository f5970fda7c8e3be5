package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// gpuStale is how long values stay that were not read again, as while the driver hangs on the GPU.
const gpuStale = 5 * time.Minute

// throttles are the reasons for low clocks, by their bit in nvml.GPU.ClockReasons. To be idle, and clocks that someone
// has set, are none.
var throttles = []struct {
	bit  uint64
	name string
}{{0x4, "power_cap"}, {0x8, "hardware"}, {0x20, "heat"}, {0x40, "hardware_heat"}, {0x80, "power_brake"}}

// gpuMetrics are the readings of health. There are no others: a query of the driver for each scrape could disturb a
// measurement, and hang.
type gpuMetrics struct {
	busy, power, powerLimit, temperature, smClock, memoryClock, memoryTotal, memoryUsed *prometheus.GaugeVec

	throttled, read *prometheus.GaugeVec
	at              map[gpuOf]time.Time // of the last reading; zero if there was none
}

// gpuOf is a GPU of a slot, as the labels' values.
type gpuOf struct{ slot, gpu string }

func newGPUMetrics(gauge func(name, help string, labels ...string) *prometheus.GaugeVec) gpuMetrics {
	vec := func(name, help string) *prometheus.GaugeVec { return gauge("kbnode_gpu_"+name, help, "slot", "gpu") }
	return gpuMetrics{
		busy:        vec("utilization_ratio", "Share of the driver's last sample in which a kernel ran."),
		power:       vec("power_watts", "Power that the GPU uses."),
		powerLimit:  vec("power_limit_watts", "Power limit in force."),
		temperature: vec("temperature_celsius", "Temperature of the GPU."),
		smClock:     vec("sm_clock_hertz", "Clock of the multiprocessors or compute units."),
		memoryClock: vec("memory_clock_hertz", "Clock of the memory."),
		memoryTotal: vec("memory_bytes", "Memory of the GPU."),
		memoryUsed:  vec("memory_used_bytes", "Memory of the GPU in use."),
		throttled:   gauge("kbnode_gpu_throttled", "Whether this lowers the clocks.", "slot", "gpu", "reason"),
		read:        vec("read_timestamp_seconds", "When the GPU was last read; 0 if not since the daemon's start."),
		at:          map[gpuOf]time.Time{},
	}
}

// record takes the readings of a pass. A GPU that it could not read keeps its values until they are stale.
func (m *gpuMetrics) record(s daemon.Snapshot) {
	if s.Plan == nil {
		return
	}
	planned := map[gpuOf]bool{}
	for _, sl := range s.Plan.Slots {
		for _, g := range sl.GPUs {
			key := gpuOf{sl.Name, strconv.Itoa(g.Number)}
			planned[key] = true
			if _, known := m.at[key]; !known { // not absent, or a restart of the daemon would end an alert
				m.at[key] = time.Time{}
				m.read.WithLabelValues(key.slot, key.gpu).Set(0)
			}
			if s.GPUs == nil {
				continue
			}
			if r, ok := readingOf(s.GPUs, g); ok {
				m.forget(key)
				m.set(key, r)
				m.at[key] = s.Began
				m.read.WithLabelValues(key.slot, key.gpu).Set(seconds(s.Began))
			}
		}
	}
	for key, at := range m.at {
		age := s.Began.Sub(at)
		if !planned[key] {
			delete(m.at, key)
			m.read.DeleteLabelValues(key.slot, key.gpu)
		}
		if !planned[key] || age >= gpuStale {
			m.forget(key)
		}
	}
}

// forget removes the values of a GPU, but not when it was read.
func (m *gpuMetrics) forget(g gpuOf) {
	for _, vec := range []*prometheus.GaugeVec{m.busy, m.power, m.powerLimit, m.temperature, m.smClock, m.memoryClock, m.memoryTotal, m.memoryUsed, m.throttled} {
		vec.DeletePartialMatch(prometheus.Labels{"slot": g.slot, "gpu": g.gpu})
	}
}

// reading is one reading of a GPU, in the units of NVML. What is not reported is nil.
type reading struct {
	busy, power, limit, temperature, smClock, memoryClock *uint32
	total                                                 int64 // bytes; 0 if unknown
	used                                                  int64 // bytes; -1 if unknown
	reasons                                               *uint64
}

// readingOf returns what was read of a slot's GPU; ok is false if it did not answer.
func readingOf(all *health.GPUs, g plan.SlotGPU) (r reading, ok bool) {
	i := slices.IndexFunc(all.List, func(o inventory.GPU) bool { return o.PCI == g.PCI && o.Partition == g.Partition })
	if i < 0 || !all.List[i].Healthy {
		return r, false
	}
	at := &all.List[i]
	n, bus := at.NVML, all.Bus[g.PCI]
	r.total, r.used = at.MemoryBytes, at.MemoryUsedBytes
	if r.used == 0 && (n == nil || n.Memory == nil) { // as of a partition
		r.used = -1
	}
	switch {
	case n != nil:
		r.busy, r.reasons = n.Busy, n.ClockReasons
		if p := n.Power; p != nil {
			r.power, r.limit = p.Usage, p.Enforced
			if r.limit == nil {
				r.limit = p.Limit
			}
		}
		if t := n.Temperature; t != nil {
			r.temperature = t.GPU
		}
		if c := n.Clocks; c != nil {
			r.smClock, r.memoryClock = c.SM, c.Memory
		}
	case at.Vendor == "amd" && !bus.Unread && !bus.Dead:
		s := bus.Telemetry
		r.busy, r.power, r.temperature, r.smClock = s.Busy, s.Power, s.Temperature, s.Clock
		r.limit, r.memoryClock = s.PowerLimit, s.MemoryClock
	default:
		return r, false
	}
	return r, true
}

func (m *gpuMetrics) set(g gpuOf, r reading) {
	for _, v := range []struct {
		vec    *prometheus.GaugeVec
		value  *uint32
		factor float64
	}{
		{m.busy, r.busy, 0.01}, {m.power, r.power, 0.001}, {m.powerLimit, r.limit, 0.001}, {m.temperature, r.temperature, 1},
		{m.smClock, r.smClock, 1e6}, {m.memoryClock, r.memoryClock, 1e6},
	} {
		if v.value != nil {
			v.vec.WithLabelValues(g.slot, g.gpu).Set(float64(*v.value) * v.factor)
		}
	}
	if r.total > 0 {
		m.memoryTotal.WithLabelValues(g.slot, g.gpu).Set(float64(r.total))
	}
	if r.used >= 0 {
		m.memoryUsed.WithLabelValues(g.slot, g.gpu).Set(float64(r.used))
	}
	for _, t := range throttles {
		if r.reasons != nil {
			m.throttled.WithLabelValues(g.slot, g.gpu, t.name).Set(number(*r.reasons&t.bit != 0))
		}
	}
}

// maxGap bounds how long what a look saw holds: after it, the looks failed, and no one knows.
const maxGap = 10 * time.Minute

// busyTime counts how long jobs had the slots. systemd wakes the daemon when a job begins or ends, so what a look saw
// holds until the next one.
type busyTime struct {
	seconds *prometheus.CounterVec
	gpus    *prometheus.GaugeVec
	since   time.Time       // of the last look that saw the slots
	had     map[string]bool // whether slots had a job then
}

func (b *busyTime) record(s daemon.Snapshot) {
	if s.State == nil || s.Plan == nil {
		return
	}
	for slot, job := range b.had {
		if job {
			b.seconds.WithLabelValues(slot).Add(min(max(0, s.Began.Sub(b.since).Seconds()), maxGap.Seconds()))
		}
	}
	former := b.had
	b.since, b.had = s.Began, map[string]bool{}
	b.gpus.Reset()
	jobs := map[int]bool{}
	for _, ss := range s.State.Slots {
		jobs[ss.Index] = ss.Job != nil
	}
	for _, sl := range s.Plan.Slots {
		b.seconds.WithLabelValues(sl.Name) // also for none
		b.gpus.WithLabelValues(sl.Name).Set(float64(len(sl.GPUs)))
		b.had[sl.Name] = jobs[sl.Index]
		delete(former, sl.Name)
	}
	for slot := range former {
		b.seconds.DeleteLabelValues(slot)
	}
}
