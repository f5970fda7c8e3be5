package noise

import (
	"context"
	"math"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/shirou/gopsutil/v3/cpu"

	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// stopTime is how long sampling of a GPU may take to end, so that none outlives its job.
const stopTime = 5 * time.Second

// Config says what a slot's records are made from.
type Config struct {
	Slot    string // "gpu0"
	CPUs    cpuset.Set
	Cgroups string // where they are mounted
	Slice   string // the slot's, below that
	Proc    string // "/proc"
	GPU     string // IDs of the slot's GPUs, joined by commas; "" for none
	Part    string // the part of a GPU that the slot has; "" for all of it
	Samples Samples
}

// Run records one job.
type Run struct {
	c     Config
	gpu   *gpuRun
	stop  context.CancelFunc
	ended chan struct{} // closed when sampling has ended
	first chan struct{} // closed when begin and err are set
	begin reading
	err   error
}

// Start takes the first reading and begins to sample the GPU, without waiting for
// either. The caller must call Stop.
func Start(c Config) *Run {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Run{c: c, gpu: &gpuRun{reasons: map[string]int{}}, stop: cancel, ended: make(chan struct{}), first: make(chan struct{})}
	go func() {
		defer close(r.first)
		r.begin, r.err = c.read(ctx)
	}()
	go func() {
		defer close(r.ended)
		if c.Samples == nil {
			return
		}
		if err := c.Samples(ctx, r.gpu.add); err != nil && ctx.Err() == nil {
			r.gpu.ended(err)
		}
	}()
	return r
}

// Stop ends sampling. It may be called again, and Record may be called afterward.
func (r *Run) Stop() { r.stop() }

// Wait returns when sampling has ended, after at most five seconds.
func (r *Run) Wait() {
	select {
	case <-r.ended:
	case <-time.After(stopTime):
	}
}

// Record returns the record of the job until now. It lacks values that could not be
// read, with a note.
func (r *Run) Record(ctx context.Context) (Record, error) {
	select {
	case <-r.first:
	case <-ctx.Done():
		return Record{}, ctx.Err()
	}
	now, err := r.c.read(ctx)
	rec := Record{Schema: Schema, Slot: r.c.Slot, SharedGPU: r.c.Part, Begin: r.begin.at.UTC().Truncate(time.Millisecond), GPU: r.gpu.summary(r.c.GPU)}
	rec.CPU.CPUs = r.c.CPUs.String()
	rec.fill(r.begin, now, r.c.CPUs)
	if r.c.Samples == nil && r.c.GPU == "" {
		rec.GPU.Error = "" // the slot has none
	}
	rec.Noisy, rec.Why = Judge(rec)
	rec.Notes = notes(rec)
	for _, err := range []error{r.err, err} {
		if err != nil {
			rec.Notes = append(rec.Notes, "some facts could not be read: "+text.Line(err.Error(), 500))
			break
		}
	}
	return rec, nil
}

// fill sets what the slot's cgroup and its CPUs did between two readings.
func (rec *Record) fill(a, b reading, cpus cpuset.Set) {
	seconds := b.at.Sub(a.at).Seconds()
	rec.Seconds = round(seconds)
	if seconds <= 0 {
		return
	}
	var busy, steal float64
	known := 0
	for _, id := range cpus.Ints() {
		from, ok1 := a.times[id]
		to, ok2 := b.times[id]
		if ok1 && ok2 {
			busy += working(to) - working(from)
			steal += to.Steal - from.Steal
			known++
		}
	}
	all := seconds * float64(cpus.Len())
	if known == cpus.Len() && known > 0 {
		rec.CPU.Steal = percent(max(steal, 0), all)
	}
	from, to := a.slot, b.slot
	if from == nil || to == nil {
		return
	}
	slot := micro(from.GetCPU().GetUsageUsec(), to.GetCPU().GetUsageUsec())
	if cpus.Len() > 0 {
		rec.CPU.Slot = percent(slot, all)
		rec.CPU.Throttled = percent(micro(from.GetCPU().GetThrottledUsec(), to.GetCPU().GetThrottledUsec()), all)
	}
	if rec.CPU.Steal != nil {
		rec.CPU.Others = percent(max(busy-slot, 0), all)
	}
	rec.Pressure = Pressure{
		CPU:    waited(from.GetCPU().GetPSI(), to.GetCPU().GetPSI(), seconds),
		Memory: waited(from.GetMemory().GetPSI(), to.GetMemory().GetPSI(), seconds),
		IO:     waited(from.GetIo().GetPSI(), to.GetIo().GetPSI(), seconds),
	}
	if e, f := from.GetMemoryEvents(), to.GetMemoryEvents(); e != nil && f != nil {
		rec.Memory = Memory{Kills: new(int(grown(e.GetOomKill(), f.GetOomKill())))}
	}
}

// working returns how many seconds a CPU was busy. User includes guests.
func working(t cpu.TimesStat) float64 { return t.User + t.Nice + t.System + t.Irq + t.Softirq }

// waited returns nil if the kernel reports no pressure.
func waited(from, to *stats.PSIStats, seconds float64) *float64 {
	if from.GetSome() == nil || to.GetSome() == nil {
		return nil
	}
	return percent(micro(from.GetSome().GetTotal(), to.GetSome().GetTotal()), seconds)
}

// micro returns the growth of a counter of microseconds, in seconds.
func micro(from, to uint64) float64 { return float64(grown(from, to)) / 1e6 }

// grown returns the growth of a counter. If the cgroup was created again in between,
// the counter began at zero.
func grown(from, to uint64) uint64 {
	if to < from {
		return to
	}
	return to - from
}

func percent(part, whole float64) *float64 {
	p := round(min(100*part/whole, 100))
	return &p
}

func round(v float64) float64 { return math.Round(v*100) / 100 }
