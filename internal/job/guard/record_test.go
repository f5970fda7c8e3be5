package guard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/machine/detect/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

// records gives a rig a GPU that is sampled by samples.
func (r *slotRig) records(samples noise.Samples) {
	r.noise = noiseConfig(testPolicy(), r.procs)
	r.noise.Samples = samples
	r.put(filepath.Join(r.procs.root, r.procs.slice, "cpu.stat"), "usage_usec 1000\n")
	r.put(filepath.Join(r.procs.proc, "stat"), "cpu  1 1 1 1\ncpu0 100 0 50 9000 10 0 5 0 0 0\n")
}

// sampled counts who samples the GPU.
type sampled struct{ by atomic.Int32 }

func (s *sampled) samples(ctx context.Context, each func(nvml.Sample)) error {
	s.by.Add(1)
	defer s.by.Add(-1)
	each(nvml.Sample{Clock: new(uint32(1965)), Reasons: new(uint64(0x40))})
	<-ctx.Done()
	return nil
}

// TestSampledName: slots with instances of one GPU must not share a sampler's lock.
func TestSampledName(t *testing.T) {
	t.Parallel()
	for want, g := range map[string]plan.PolicyGPU{"GPU-1": {UUID: "GPU-1"}, "MIG-1": {UUID: "GPU-1", Instance: "MIG-1"}} {
		must.Do(t, sample(t.Context(), plan.JobPolicy{Vendor: "nvidia", GPUs: []plan.PolicyGPU{g}}, func(_ context.Context, opts probe.Options, _ time.Duration, _ func(nvml.Sample)) error {
			must.Equal(t, want, opts.GPU)
			return nil
		}, nil))
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		gpu := &sampled{}
		r.records(gpu.samples)
		if _, err := r.record(true).read(t.Context()); !errors.Is(err, errNoRecord) {
			t.Errorf("of root's: %v", err)
		}
		job := jobRun{record: r.record(false)}
		time.Sleep(3 * time.Second)
		rec, err := job.record.read(t.Context())
		if err != nil || !rec.Noisy || rec.Seconds != 3 || rec.GPU.Samples != 1 || rec.Slot != "gpu0" || gpu.by.Load() != 1 {
			t.Errorf("it says %+v, %v, sampled by %d", rec, err, gpu.by.Load())
		}
		job.close()
		must.Equal(t, int32(0), gpu.by.Load())
	})
}

// TestSamplerHangs: a sampler that hangs delays neither the job's begin nor its end for long.
func TestSamplerHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t)
		r.records(func(context.Context, func(nvml.Sample)) error { time.Sleep(time.Hour); return nil })
		begun := time.Now()
		job := jobRun{record: r.record(false)}
		if d := time.Since(begun); d > 0 {
			t.Errorf("the begin took %v", d)
		}
		time.Sleep(time.Minute)
		rec, err := job.record.read(t.Context())
		if err != nil || !strings.HasPrefix(rec.GPU.Error, "not sampled: ") || rec.Noisy {
			t.Errorf("it says %+v, %v", rec, err)
		}
		begun = time.Now()
		job.close()
		if d := time.Since(begun); d > 6*time.Second {
			t.Errorf("the end took %v", d)
		}
		time.Sleep(time.Hour)
	})
}

// TestRecordOnAFullDisk leaves no part of a record where a job filled the disk: the upload would take it.
func TestRecordOnAFullDisk(t *testing.T) {
	t.Parallel()
	must.Root(t, "only root can make a small disk")
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("no small disk:", err)
	}
	t.Cleanup(func() { must.Do(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(dir, noise.Record{}); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	files, err := os.ReadDir(dir)
	must.Do(t, err)
	if len(files) != 1 {
		t.Errorf("%v", files)
	}
	must.Do(t, os.Remove(filepath.Join(dir, "fill")))
	must.Do(t, writeRecord(dir, noise.Record{}))
	info, err := os.Stat(filepath.Join(dir, result.NodeFile))
	must.Do(t, err)
	must.Equal(t, os.FileMode(0o644), info.Mode())
}
