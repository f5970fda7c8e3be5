package guard

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/detect/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

const (
	// readTime is for the counters, which take milliseconds.
	readTime = 3 * time.Second
	// samplePeriod is the time between two samples of the GPU.
	samplePeriod = time.Second
)

// errNoRecord means that a job has no noise record.
var errNoRecord = errors.New("a job of root's has no record")

func noiseConfig(p plan.JobPolicy, procs slotProcs) noise.Config {
	cpus, _ := cpuset.Parse(p.CPUs) // if it cannot be read, no container starts
	c := noise.Config{Slot: p.Name, CPUs: cpus, Cgroups: procs.root, Slice: procs.slice, Proc: procs.proc}
	var names []string
	for _, g := range p.GPUs {
		names, c.Part = append(names, g.UUID), g.Part
	}
	c.GPU = strings.Join(names, ",")
	if len(p.GPUs) > 0 {
		c.Samples = func(ctx context.Context, each func(nvml.Sample)) error { return sample(ctx, p, probe.Stream, each) }
	}
	return c
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

// recorder keeps the noise record of the job.
type recorder struct {
	run  *noise.Run // nil keeps none
	proc string
}

// record begins a job's record without waiting for anything. One of root's has none.
func (g *guard) record(root bool) recorder {
	if root {
		return recorder{}
	}
	return recorder{noise.Start(g.noise), g.procs.proc}
}

// end ends sampling, which then no longer holds the GPU.
func (r recorder) end() {
	if r.run != nil {
		r.run.Stop()
		r.run.Wait()
	}
}

func (r recorder) read(ctx context.Context) (rec noise.Record, err error) {
	if r.run == nil {
		return rec, errNoRecord
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	rec, err = r.run.Record(ctx)
	rec.Protection = noise.NodeProtection(r.proc)
	return rec, err
}
