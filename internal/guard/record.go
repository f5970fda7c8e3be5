package guard

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/detect"
	"github.com/gpu-mode/kbnode/internal/detect/probe"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/nvml"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	// readTime is for the counters, which take milliseconds.
	readTime = 3 * time.Second
	// samplePeriod is the time between two samples of the GPU.
	samplePeriod = time.Second
)

// recorder keeps the noise record of the slot's job. The cleaner's lock protects it.
type recorder struct {
	config noise.Config
	run    *noise.Run // of the last job that began; nil without one
}

func newRecorder(p plan.JobPolicy, procs slotProcs) *recorder {
	cpus, _ := cpuset.Parse(p.CPUs) // if it cannot be read, no container starts
	c := noise.Config{Slot: p.Name, CPUs: cpus, Cgroups: procs.root, Slice: procs.slice, Proc: procs.proc}
	var names []string
	for _, g := range p.GPUs {
		names, c.Part = append(names, g.UUID), g.Part
	}
	if c.GPU = strings.Join(names, ","); len(p.GPUs) > 0 {
		c.Samples = func(ctx context.Context, each func(nvml.Sample)) error { return sample(ctx, p, probe.Stream, each) }
	}
	return &recorder{config: c}
}

// streamer is probe.Stream.
type streamer func(ctx context.Context, opts probe.Options, every time.Duration, each func(nvml.Sample)) error

// sample samples all GPUs of a slot concurrently. An error of one does not stop the others.
func sample(ctx context.Context, p plan.JobPolicy, stream streamer, each func(nvml.Sample)) error {
	errs := make([]error, len(p.GPUs))
	var all sync.WaitGroup
	for i, g := range p.GPUs {
		all.Go(func() {
			if p.Vendor == "amd" {
				dir, err := detect.AMDDevice(g.Nodes)
				if err == nil {
					err = noise.AMD(dir, samplePeriod)(ctx, each)
				}
				errs[i] = err
				return
			}
			// By its instance: other slots sample theirs of the same GPU at the same time.
			errs[i] = stream(ctx, probe.Options{GPU: cmp.Or(g.Instance, g.UUID)}, samplePeriod, each)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// begin begins a job's record without waiting for anything.
func (r *recorder) begin() {
	if r != nil {
		r.end()
		r.run = noise.Start(r.config)
	}
}

// end ends sampling, and returns a function that waits until sampling no longer holds the GPU.
func (r *recorder) end() (wait func()) {
	if r == nil || r.run == nil {
		return func() {}
	}
	run := r.run
	run.Stop()
	r.run = nil
	return run.Wait
}

// noiseRecord returns the noise record of the job. One of root's has none (errNoRecord).
func (k *cleaner) noiseRecord(ctx context.Context) (rec noise.Record, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.noise == nil || k.noise.run == nil {
		return rec, errNoRecord
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	rec, err = k.noise.run.Record(ctx)
	rec.Protection = noise.NodeProtection(k.procs.proc)
	return rec, err
}
