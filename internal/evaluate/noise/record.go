// Package noise records how quiet a job's slot was: what slowed its GPU down, and who else
// used its CPUs. A record consists of two readings of the
// kernel's counters, at the start of the job and when the record is requested, and
// samples of the GPU in between. Judge reports whether a timing of that job should be
// trusted. The package only reads.
package noise

import (
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
)

// Schema is the version of Record. It increases when a field changes its meaning or is
// removed, not when one is added.
const Schema = 2

// Record is the content of node.json: how quiet a job's slot was. A value that was not
// reported is absent, never zero. docs/results.md describes the fields.
type Record struct {
	Schema int      `json:"schema"`
	Noisy  bool     `json:"noisy"`           // a timing should not be trusted
	Why    []string `json:"why,omitempty"`   // sentences, if Noisy
	Notes  []string `json:"notes,omitempty"` // what makes no timing noisy, and what could not be read
	// Implausible is why the times of the job's result cannot be what a clock measured. It is independent of Noisy.
	Implausible []witness.Finding `json:"implausible,omitempty"`

	Slot string `json:"slot"`
	// SharedGPU is the part of a GPU that the slot has, if it is not all of it: the
	// profile of a MIG instance ("1g.23gb") or the mode of a partition ("CPX").
	SharedGPU string `json:"shared_gpu,omitempty"`
	// Profile is the job profile of its containers, "compatible" if any of them had
	// that, "" without containers.
	Profile string `json:"profile,omitempty"`
	// Image is what the job's container was made of; absent without containers.
	Image      Image      `json:"image,omitzero"`
	Protection Protection `json:"protection"`
	Begin      time.Time  `json:"begin"`   // of the job
	Seconds    float64    `json:"seconds"` // from there to the record

	GPU      GPU      `json:"gpu"`
	CPU      CPU      `json:"cpu"`
	Pressure Pressure `json:"pressure"`
	Memory   Memory   `json:"memory"`
}

// Image is the image of a container.
type Image struct {
	Name string `json:"name"` // in full, by which the job asked for it
	ID   string `json:"id"`   // the engine's
	// Kept reports whether kbnode keeps the name up to date, so that no job moves it.
	Kept bool `json:"kept"`
}

// GPU summarizes the samples of the slot's GPU.
type GPU struct {
	ID      string `json:"id"`              // UUID, or PCI address
	Error   string `json:"error,omitempty"` // why there are no samples, or no more
	Samples int    `json:"samples"`
	Busy    int    `json:"busy_samples"` // of them, with work on the GPU
	// Clock is of busy samples, in MHz. LowClock is how many of them were below LowClock
	// percent of the median.
	Clock       *Spread `json:"sm_clock_mhz,omitempty"`
	LowClock    int     `json:"low_clock_samples"`
	Temperature *Spread `json:"temperature_c,omitempty"`
	Margin      *int    `json:"margin_c,omitempty"` // the smallest distance to the slowdown
	Power       *Spread `json:"power_w,omitempty"`
	// Reasons are why the clocks were not higher, by NVIDIA's names, with the number of
	// samples.
	Reasons map[string]int `json:"clock_reasons,omitempty"`
}

// Spread summarizes a distribution.
type Spread struct {
	Min    int `json:"min"`
	Median int `json:"median"`
	Max    int `json:"max"`
}

// CPU is what the slot's CPUs did. Percentages are of their total time.
type CPU struct {
	CPUs      string   `json:"cpus"`
	Slot      *float64 `json:"slot_percent,omitempty"`   // for the slot
	Others    *float64 `json:"others_percent,omitempty"` // for anyone else: the kernel, interrupts, other processes
	Steal     *float64 `json:"steal_percent,omitempty"`  // for the hypervisor
	Throttled *float64 `json:"throttled_percent,omitempty"`
}

// Pressure is how much of the time at least one task of the slot waited for something,
// in percent: "some" of the kernel's pressure stall information.
type Pressure struct {
	CPU    *float64 `json:"cpu_percent,omitempty"`
	Memory *float64 `json:"memory_percent,omitempty"`
	IO     *float64 `json:"io_percent,omitempty"`
}

// Memory is what the slot's memory.events counted during the job.
type Memory struct {
	Kills *int `json:"oom_kills,omitempty"` // processes killed for lack of memory
}
