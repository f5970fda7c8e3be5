package noise

import (
	"fmt"
	"slices"
)

// Limits beyond which a timing should not be trusted. Those without a source are
// kbnode's own.
const (
	// LowClock is the percentage of its median below which a clock is low. nvbench
	// discards samples below 75 percent of the default clock (docs/cli_help.md).
	LowClock = 75
	// lowSamples is how many samples have to be low: one may be from the moment when
	// the GPU starts to work.
	lowSamples = 2
	// lowMargin is in degrees Celsius: NVIDIA's management library counts down to the
	// slowdown, and DCGM and gpud warn when nothing is left.
	lowMargin = 5
	// othersLimit and stealLimit are in percent of the time of the slot's CPUs.
	othersLimit    = 5
	stealLimit     = 1
	throttledLimit = 1 // by cpu_quota, in percent of the slot's CPU time
	// Pressure is in percent of the whole job's time, including its cold start. A job's
	// own tasks wait for each other too.
	cpuLimit    = 25
	memoryLimit = 5
	ioLimit     = 25
	// shortest is how many seconds a job needs for the kernel's ticks to mean anything.
	shortest = 2
)

// clockReasons are NVML's, in the order of their bits (nvmlClocksEventReason*). Reasons
// that slow a GPU below its settings make a timing worthless; at its power limit a GPU
// works as it should.
var clockReasons = [64]struct {
	name  string
	noise string // "" if it is not noise
}{
	0: {name: "gpu_idle"}, 1: {name: "applications_clocks_setting"}, 2: {name: "sw_power_cap"},
	3: {"hw_slowdown", "the hardware slowed the GPU down"},
	4: {name: "sync_boost"},
	5: {"sw_thermal_slowdown", "the driver slowed the GPU down because it was too hot,"},
	6: {"hw_thermal_slowdown", "the hardware slowed the GPU down because it was too hot,"},
	7: {"hw_power_brake_slowdown", "the power supply slowed the GPU down (power brake)"},
	8: {name: "display_clock_setting"},
}

// Judge reports whether a timing of this job should not be trusted, and why. It uses
// only the record.
func Judge(r Record) (noisy bool, why []string) {
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if r.SharedGPU != "" {
		say("the slot has part of a GPU (%s): jobs on the other parts share its power, heat and memory system, and the samples cover the whole GPU", r.SharedGPU)
	}
	for _, reason := range clockReasons {
		if n := r.GPU.Reasons[reason.name]; n > 0 && reason.noise != "" {
			say("%s: %s in %d of %d samples", reason.name, reason.noise, n, r.GPU.Samples)
		}
	}
	if c := r.GPU.Clock; c != nil && r.GPU.LowClock >= lowSamples {
		say("the GPU's clock fell to %d MHz, with a median of %d MHz; it was below %d %% of that in %d of %d samples",
			c.Min, c.Median, LowClock, r.GPU.LowClock, r.GPU.Busy)
	}
	if m := r.GPU.Margin; m != nil && *m <= lowMargin {
		say("the GPU was hot: its margin to the slowdown temperature was %d °C", *m)
	}
	if r.Seconds >= shortest {
		check := func(v *float64, limit float64, sentence string) {
			if v != nil && *v > limit {
				say(sentence+"; more than %v %% is noise", *v, limit)
			}
		}
		check(r.CPU.Others, othersLimit, "processes outside the slot used %v %% of its CPUs' time")
		check(r.CPU.Steal, stealLimit, "the hypervisor took %v %% of the CPUs' time")
		check(r.CPU.Throttled, throttledLimit, "the slot's CPU quota throttled it for %v %% of the time")
		check(r.Pressure.CPU, cpuLimit, "tasks of the slot waited for a CPU for %v %% of the time")
		check(r.Pressure.Memory, memoryLimit, "tasks of the slot waited for memory for %v %% of the time")
		check(r.Pressure.IO, ioLimit, "tasks of the slot waited for the disk for %v %% of the time")
	}
	if n := r.Memory.Kills; n != nil && *n > 0 {
		say("the slot ran out of memory and %d of its processes were killed", *n)
	}
	return len(why) > 0, why
}

// notes returns facts about a record that do not make it noisy.
func notes(r Record) (all []string) {
	if n := r.GPU.Reasons[clockReasons[2].name]; n > 0 {
		all = append(all, fmt.Sprintf("%s: the GPU was at its power limit in %d of %d samples", clockReasons[2].name, n, r.GPU.Samples))
	}
	if r.GPU.Error != "" {
		all = append(all, "gpu: "+r.GPU.Error)
	}
	if r.Seconds < shortest {
		all = append(all, fmt.Sprintf("the job was shorter than %d s, so CPUs and pressure were not judged", shortest))
	}
	if p := r.Pressure; p.CPU == nil && p.Memory == nil && p.IO == nil {
		all = append(all, "the kernel does not report pressure (needs psi=1 on its command line)")
	}
	return slices.Clip(all)
}
