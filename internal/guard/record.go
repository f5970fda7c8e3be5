package guard

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/inventory/probe"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// recordTime bounds the request, including processes that do not end; readTime is for the
	// counters, which take milliseconds.
	recordTime = 15 * time.Second
	readTime   = 3 * time.Second
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
		c.Samples = func(ctx context.Context, each func(probe.Sample)) error { return sample(ctx, p, each) }
	}
	return &recorder{config: c}
}

// sample samples all GPUs of a slot concurrently. An error of one does not stop the others.
func sample(ctx context.Context, p plan.JobPolicy, each func(probe.Sample)) error {
	errs := make([]error, len(p.GPUs))
	var all sync.WaitGroup
	for i, g := range p.GPUs {
		all.Go(func() {
			if p.Vendor == "amd" {
				dir, err := inventory.AMDDevice(g.Nodes)
				if err == nil {
					err = noise.AMD(dir, samplePeriod)(ctx, each)
				}
				errs[i] = err
				return
			}
			errs[i] = probe.Stream(ctx, probe.Options{GPU: g.UUID}, samplePeriod, each)
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

// noiseRecord returns the noise record of the job. It ends what the job left even if there is no record
// (errNoRecord): that protects the artifacts, too. A job of root's (noAgent) has no record, and nothing
// but its container.
func (k *cleaner) noiseRecord(ctx context.Context, pid int) (rec noise.Record, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pid == noAgent {
		return rec, errNoRecord
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	if k.noise == nil || k.noise.run == nil {
		err = errNoRecord
	} else {
		reading, cancel := context.WithTimeout(ctx, readTime)
		defer cancel()
		rec, err = k.noise.run.Record(reading)
		rec.Protection = noise.NodeProtection(k.procs.proc)
	}
	ended, left := k.procs.endBeside(ctx)
	if ended > 0 {
		k.log.Info("processes ended before the upload", "processes", ended)
	}
	if left != nil {
		k.log.Warn("processes not ended before the upload", "err", left)
		rec.Notes = append(rec.Notes, "a process of the job was still running when this was written and may have overwritten files: "+text.Line(left.Error(), 500))
	}
	return rec, err
}
