// Package noise says how quiet a job had it: what slowed its GPU down, who else
// was on its CPUs, and what its neighbours did meanwhile. A record is made of two
// readings of the kernel's counters, at a job's begin and when it is asked for, and
// of samples of the GPU in between; Judge then says whether a timing of that job
// should be trusted. It reads only.
package noise

import "time"

// Schema is the version of Record. It rises when a field changes its meaning or
// goes away, not when one is added.
const Schema = 1

// Record is how a job had it, the content of node.json. A value that nobody told
// is absent, never a made-up zero. docs/results.md describes the fields.
type Record struct {
	Schema int      `json:"schema"`
	Noisy  bool     `json:"noisy"`           // a timing should not be trusted
	Why    []string `json:"why,omitempty"`   // sentences, if Noisy
	Notes  []string `json:"notes,omitempty"` // what speaks against no timing, and what could not be read
	Slot   string   `json:"slot"`
	// SharedGPU is what of a GPU the slot has, where that is a part of one: the profile
	// of a MIG instance ("1g.23gb") or the mode of a partition ("CPX").
	SharedGPU string `json:"shared_gpu,omitempty"`
	// Profile is the job profile of its containers, "compatible" if one of them had that;
	// "" if there was none.
	Profile string    `json:"profile,omitempty"`
	Begin   time.Time `json:"begin"`   // of the job
	Seconds float64   `json:"seconds"` // from there to the record

	GPU        GPU        `json:"gpu"`
	CPU        CPU        `json:"cpu"`
	Pressure   Pressure   `json:"pressure"`
	Memory     Memory     `json:"memory"`
	Neighbours Neighbours `json:"neighbours"`
	Load1      *float64   `json:"load1,omitempty"` // the whole node's load average over the last minute
}

// GPU is what samples of the slot's GPU add up to.
type GPU struct {
	ID      string `json:"id"`              // UUID, or PCI address
	Error   string `json:"error,omitempty"` // why there are no samples, or no more
	Samples int    `json:"samples"`
	Busy    int    `json:"busy_samples"` // of them, with work on the GPU
	// Clock is of busy samples, in MHz to the next lower five; LowClock is how many
	// of them were below LowClock per cent of the median.
	Clock       *Spread `json:"sm_clock_mhz,omitempty"`
	LowClock    int     `json:"low_clock_samples"`
	Temperature *Spread `json:"temperature_c,omitempty"`
	Margin      *int    `json:"margin_c,omitempty"` // the least that was left to slowing down
	Power       *Spread `json:"power_w,omitempty"`
	// Reasons are why the clocks were not higher, by NVIDIA's names, with the
	// samples that had them.
	Reasons map[string]int `json:"clock_reasons,omitempty"`
}

// Spread is a distribution in short.
type Spread struct {
	Min    int `json:"min"`
	Median int `json:"median"`
	Max    int `json:"max"`
}

// CPU is what the slot's CPUs did. Percentages are of all their time.
type CPU struct {
	CPUs      string   `json:"cpus"`
	Slot      *float64 `json:"slot_percent,omitempty"`   // for the slot
	Others    *float64 `json:"others_percent,omitempty"` // for anybody else: the kernel, interrupts, other processes
	Steal     *float64 `json:"steal_percent,omitempty"`  // for the hypervisor
	Throttled *float64 `json:"throttled_percent,omitempty"`
	Heat      *int     `json:"heat_throttles,omitempty"` // how often a core was slowed down by heat
	// Interrupts are per second: of devices, on all of the slot's CPUs and on the one
	// that had most, and of CPUs among themselves and their timers.
	Interrupts *Interrupts `json:"interrupts_per_s,omitempty"`
}

// Interrupts are per second.
type Interrupts struct {
	Devices float64 `json:"devices"`
	Busiest float64 `json:"devices_busiest_cpu"`
	Local   float64 `json:"local"`
}

// Pressure is how much of the time at least one task of the slot waited for
// something, in per cent: "some" of the kernel's pressure stall information.
type Pressure struct {
	CPU    *float64 `json:"cpu_percent,omitempty"`
	Memory *float64 `json:"memory_percent,omitempty"`
	IO     *float64 `json:"io_percent,omitempty"`
}

// Memory is what memory.events of the slot counted meanwhile.
type Memory struct {
	AtLimit *int `json:"at_limit,omitempty"`  // times that the slot was at its limit
	Kills   *int `json:"oom_kills,omitempty"` // processes ended for want of memory
}

// Neighbours are the other slots of the node together, as a fact: what they do is
// nobody's fault.
type Neighbours struct {
	Slots   int      `json:"slots"`
	CPU     *float64 `json:"cpu_percent,omitempty"`     // of all their CPUs' time
	Busiest *float64 `json:"busiest_percent,omitempty"` // of its own, that of the busiest one
}
