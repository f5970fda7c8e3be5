package noise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
)

// node is a machine made of files: a slot with two CPUs, and CPU 0 for the rest.
type node struct {
	t   *testing.T
	dir string
}

const slice = "buildkite.slice/buildkite-gpu0.slice"

func newNode(t *testing.T) node {
	t.Helper()
	n := node{t, t.TempDir()}
	n.begin()
	return n
}

func (n node) put(name, text string) {
	n.t.Helper()
	must.Write(n.t, n.dir, name, text)
}

func pressure(some int) string {
	return fmt.Sprintf("some avg10=0.00 avg60=0.12 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", some)
}

// cpuStat returns a cpu.stat of Linux 6.12, in microseconds.
func cpuStat(usage, throttled int) string {
	return fmt.Sprintf("usage_usec %d\nuser_usec 1\nsystem_usec 2\nnice_usec 0\ncore_sched.force_idle_usec 0\nnr_periods 1\nnr_throttled 1\nthrottled_usec %d\nnr_bursts 0\nburst_usec 0\n", usage, throttled)
}

func (n node) slot(usage, throttled, some, kills int) {
	const dir = "cgroup/" + slice + "/"
	n.put(dir+"cpu.stat", cpuStat(usage, throttled))
	n.put(dir+"cpu.pressure", pressure(some))
	n.put(dir+"memory.pressure", pressure(2*some))
	n.put(dir+"io.pressure", pressure(3*some))
	n.put(dir+"memory.events", fmt.Sprintf("low 0\nhigh 0\nmax %d\noom %d\noom_kill %d\noom_group_kill 0\n", 10*kills, kills, kills))
	n.put(dir+"memory.stat", "anon 4096\nfile 8192\n")
	n.put(dir+"io.stat", "259:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n")
}

func (n node) begin() {
	n.slot(5_000_000, 100, 1000, 1)
	n.put("proc/stat", `cpu  1 1 1 1 1 1 1 1 0 0
cpu0 100 0 50 9000 10 0 5 0 0 0
cpu1 1000 10 200 9000 10 5 5 100 0 0
cpu2 1000 10 200 9000 10 5 5 100 0 0
`)
}

// end moves to ten seconds later: the slot used 12 s of CPU time, others 1 s.
func (n node) end() {
	n.slot(17_000_000, 2_000_100, 1_001_000, 3)
	n.put("proc/stat", `cpu  1 1 1 1 1 1 1 1 0 0
cpu0 100 0 50 9000 10 0 5 0 0 0
cpu1 1700 10 250 9100 10 5 5 120 0 0
cpu2 1500 10 200 9000 10 30 60 100 0 0
`)
}

func (n node) config(samples Samples) Config {
	return Config{
		Slot: "gpu0", CPUs: cpuset.Of(1, 2), Cgroups: filepath.Join(n.dir, "cgroup"), Slice: slice,
		Proc: filepath.Join(n.dir, "proc"), GPU: "GPU-1", Samples: samples,
	}
}

// each gives one sample per second until there are no more.
func each(list ...nvml.Sample) Samples {
	return func(ctx context.Context, each func(nvml.Sample)) error {
		for _, s := range list {
			each(s)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
		<-ctx.Done()
		return nil
	}
}

func sample(clock, temperature uint32, reasons uint64) nvml.Sample {
	return nvml.Sample{Clock: &clock, Temperature: &temperature, Margin: new(90 - int32(temperature)), Power: new(clock * 500), Reasons: &reasons}
}

func recordOf(t *testing.T, r *Run) Record {
	t.Helper()
	rec, err := r.Record(t.Context())
	must.Do(t, err)
	return rec
}

func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		idle := nvml.Sample{Clock: new(uint32(345)), Temperature: new(uint32(50)), Busy: new(uint32(0))} // as of AMD
		r := Start(n.config(each(sample(345, 40, 1), sample(1980, 60, 0), sample(1980, 70, 4), sample(1965, 80, 0x44), sample(1200, 82, 0x40), idle)))
		time.Sleep(10 * time.Second)
		n.end()
		want := Record{
			Schema: Schema, Noisy: true, Slot: "gpu0", Seconds: 10, Begin: time.Now().Add(-10 * time.Second).UTC(),
			Why: []string{
				"hw_thermal_slowdown: the hardware slowed the GPU down because it was too hot, in 2 of 6 samples",
				"processes outside the slot used 6.5 % of its CPUs' time; more than 5 % is noise",
				"the slot's CPU quota throttled it for 10 % of the time; more than 1 % is noise",
				"tasks of the slot waited for memory for 20 % of the time; more than 5 % is noise",
				"tasks of the slot waited for the disk for 30 % of the time; more than 25 % is noise",
				"the slot ran out of memory and 2 of its processes were killed",
			},
			Notes: []string{"sw_power_cap: the GPU was at its power limit in 2 of 6 samples"},
			GPU: GPU{
				ID: "GPU-1", Samples: 6, Busy: 4, Clock: &Spread{1200, 1965, 1980}, LowClock: 1, Temperature: &Spread{40, 60, 82},
				Margin: new(8), Power: &Spread{172, 982, 990}, Reasons: map[string]int{"gpu_idle": 1, "sw_power_cap": 2, "hw_thermal_slowdown": 2},
			},
			CPU:      CPU{CPUs: "1-2", Slot: new(60.0), Others: new(6.5), Steal: new(1.0), Throttled: new(10.0)},
			Pressure: Pressure{CPU: new(10.0), Memory: new(20.0), IO: new(30.0)},
			Memory:   Memory{Kills: new(2)},
		}
		must.Equal(t, want, recordOf(t, r))
		r.Stop()
		r.Wait()
		if diff := cmp.Diff(want, recordOf(t, r)); diff != "" { // can be called again
			t.Error(diff)
		}
	})
}

// TestSamplesLost checks that a record is complete except for samples that fail, hang
// or never arrive.
func TestSamplesLost(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		samples Samples
		want    string // GPU.Error
		count   int
	}{
		{"none", func(context.Context, func(nvml.Sample)) error { return errors.New("no driver") }, "not sampled: no driver", 0},
		{
			"no more", func(_ context.Context, each func(nvml.Sample)) error {
				each(nvml.Sample{})
				return errors.New("the probe\x1b[31m crashed" + strings.Repeat("x", 1000))
			}, "sampling stopped: the probe crashed" + strings.Repeat("x", 500-len("the probe crashed")-1) + "…", 1,
		},
		{"hangs", func(context.Context, func(nvml.Sample)) error { time.Sleep(time.Hour); return nil }, "not sampled: the driver has not answered yet", 0},
		{"no sampler", nil, "not sampled: the driver has not answered yet", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				r := Start(n.config(row.samples))
				time.Sleep(10 * time.Second)
				n.end()
				rec := recordOf(t, r)
				if rec.GPU.Error != row.want || rec.GPU.Samples != row.count || rec.GPU.Clock != nil || rec.CPU.Slot == nil {
					t.Errorf("got %+v, %+v", rec.GPU, rec.CPU)
				}
				begun := time.Now()
				r.Stop()
				r.Wait()
				if d := time.Since(begun); d > stopTime {
					t.Errorf("its end took %v", d)
				}
				time.Sleep(time.Hour) // for the case that hangs
			})
		})
	}
}

// TestUnreadable checks that unreadable values are missing, with a note.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		harm  func(node)
		check func(Record) bool
		note  string
	}{
		{"no kernel with pressure", func(n node) {
			for _, f := range []string{"cpu", "memory", "io"} {
				_ = os.Remove(filepath.Join(n.dir, "cgroup", slice, f+".pressure"))
			}
		}, func(r Record) bool { return r.Pressure == Pressure{} && r.CPU.Slot != nil }, "the kernel does not report pressure"},
		{"no slice", func(n node) { _ = os.RemoveAll(filepath.Join(n.dir, "cgroup", slice)) },
			func(r Record) bool {
				return r.CPU.Slot == nil && r.CPU.Others == nil && r.CPU.Steal != nil
			}, "some facts could not be read: read cgroup: stat "},
		{"no /proc/stat", func(n node) { n.put("proc/stat", "") },
			func(r Record) bool { return r.CPU.Others == nil && r.CPU.Steal == nil && r.CPU.Slot != nil }, "read /proc/stat: no CPU found"},
		{"a CPU of the slot is offline", func(n node) { n.put("proc/stat", "cpu  1\ncpu1 1 0 0 0 0 0 0 0 0 0\n") },
			func(r Record) bool { return r.CPU.Others == nil && r.CPU.Steal == nil }, ""},
		{"a counter that is none", func(n node) { n.put("cgroup/"+slice+"/cpu.stat", "usage_usec -\n") },
			func(r Record) bool { return r.CPU.Slot == nil }, "some facts could not be read: read cgroup " + slice},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				row.harm(n)
				r := Start(n.config(nil))
				time.Sleep(10 * time.Second)
				rec := recordOf(t, r)
				r.Stop()
				if !row.check(rec) {
					t.Errorf("got %+v", rec)
				}
				if all := strings.Join(rec.Notes, "\n"); !strings.Contains(all, row.note) {
					t.Errorf("notes %q, want %q in them", all, row.note)
				}
			})
		})
	}
}

// TestCountersFall covers a slot whose cgroup was created again: its counters begin at
// zero.
func TestCountersFall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.end()
		r := Start(n.config(nil))
		time.Sleep(10 * time.Second)
		n.begin()
		rec := recordOf(t, r)
		r.Stop()
		if *rec.CPU.Slot != 25 || *rec.CPU.Others != 0 || *rec.Pressure.CPU < 0 || *rec.Memory.Kills < 0 || *rec.CPU.Steal < 0 {
			t.Errorf("got %+v %+v %+v", rec.CPU, rec.Pressure, rec.Memory)
		}
	})
}

// TestRecordIsSmall checks that a record is small, whatever happened and for however
// long.
func TestRecordIsSmall(t *testing.T) {
	t.Parallel()
	g := gpuRun{reasons: map[string]int{}}
	for i := range uint32(100_000) {
		g.add(sample(i, i%300, ^uint64(1)))
	}
	g.ended(errors.New(strings.Repeat("x", 1<<20)))
	rec := Record{Seconds: 1e6, GPU: g.summary(strings.Repeat("G", 64)), CPU: CPU{CPUs: strings.Repeat("1000,", 400), Others: new(99.99)}}
	rec.Noisy, rec.Why = Judge(rec)
	rec.Notes = notes(rec)
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil || len(text) > 12<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if g := rec.GPU; g.Samples != 100_000 || len(g.Reasons) != 63 || g.LowClock != 37_500 || *g.Clock != (Spread{0, 49_999, 99_999}) {
		t.Errorf("%d samples, %d reasons, %d low of %+v MHz", g.Samples, len(g.Reasons), g.LowClock, g.Clock)
	}
}

func TestAMD(t *testing.T) {
	t.Parallel()
	n := node{t, t.TempDir()}
	n.put("pp_dpm_sclk", "0: 132Mhz\n1: 1305Mhz *\n2: 2100Mhz\n")
	n.put("gpu_busy_percent", "97\n")
	n.put("hwmon/hwmon7/temp1_input", "40000\n")
	n.put("hwmon/hwmon7/temp2_input", "71500\n")
	n.put("hwmon/hwmon7/temp2_crit", "100000\n")
	n.put("hwmon/hwmon7/power1_average", "652000000\n")
	ctx, cancel := context.WithCancel(t.Context())
	count := 0
	if err := AMD(n.dir, time.Millisecond)(ctx, func(s nvml.Sample) {
		want := nvml.Sample{Clock: new(uint32(1305)), Busy: new(uint32(97)), Temperature: new(uint32(71)), Margin: new(int32(29)), Power: new(uint32(652000))}
		must.Equal(t, want, s)
		count++
		if count == 3 {
			cancel()
		}
	}); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{"": "none is marked as active", "S: 19Mhz *\n": "", "0: x *\n": "none is marked as active", "0: 132Mhz\n": "none is marked as active"} {
		n.put("pp_dpm_sclk", text)
		_, err := SampleAMD(n.dir)
		must.Err(t, err, want)
	}
	if _, err := SampleAMD(filepath.Join(n.dir, "none")); err == nil {
		t.Error("a GPU that is away has samples")
	}
}
