package guard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/config"
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
	c := noise.Config{
		Slot: p.Name, CPUs: cpus, Cgroups: procs.root, Slice: procs.slice, Proc: procs.proc, Sys: "/sys",
		// A job has a process besides the agent.
		Alive: func() bool {
			list, err := procs.within(nil)
			return err != nil || len(list) > 1
		},
	}
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
			// Unpacking the probe maps a megabyte that nothing else needs.
			unpacked := sync.OnceFunc(func() { _ = Trim() })
			errs[i] = probe.Stream(ctx, probe.Options{GPU: g.UUID}, samplePeriod, func(s probe.Sample) { unpacked(); each(s) })
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

// record is called for a process of the agent's unit. It ends what the job left even if there is
// no record: that protects the artifacts, too.
func (s *cleaner) record(ctx context.Context, pid int) (rec noise.Record, err error) {
	keep, err := s.procs.above(pid)
	if err != nil {
		return rec, err
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	if s.noise == nil || s.noise.run == nil {
		err = refusal{http.StatusNotFound, "kbnode: no record: the guard did not see a job begin; it may have started later"}
	} else {
		reading, cancel := context.WithTimeout(ctx, readTime)
		defer cancel()
		rec, err = s.noise.run.Record(reading)
		rec.Profile = s.profile()
	}
	within, err1 := s.procs.endWithin(ctx, keep)
	beside, err2 := s.procs.endBeside(ctx)
	if within+beside > 0 {
		s.log.Info("processes ended before the upload", "processes", within+beside)
	}
	if left := errors.Join(err1, err2); left != nil {
		s.log.Warn("processes not ended before the upload", "err", left)
		rec.Notes = append(rec.Notes, "a process of the job was still running when this was written and may have overwritten files: "+text.Line(left.Error(), 500))
	}
	return rec, err
}

// made records the job profile of a container that the job has made.
func (s *cleaner) made(profile string) {
	if profile == config.ProfileStrict {
		s.strict.Store(true)
	} else {
		s.compatible.Store(true)
	}
}

// profile returns the profile of the job's containers: the looser one if there were both, "" if
// there were none.
func (s *cleaner) profile() string {
	switch {
	case s.compatible.Load():
		return config.ProfileCompatible
	case s.strict.Load():
		return config.ProfileStrict
	}
	return ""
}

// tellRecord answers a request for the record.
func (g *guard) tellRecord(c *call) error {
	peer, ok := c.r.Context().Value(peerKey{}).(*peerConn)
	if !ok {
		return errors.New("cannot identify the caller")
	}
	g.cleaner.mu.Lock()
	defer g.cleaner.mu.Unlock()
	rec, err := g.cleaner.record(context.WithoutCancel(c.r.Context()), peer.pid)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return answer(c.w, map[string]string{"message": string(text) + "\n"})
}
