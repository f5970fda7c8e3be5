package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

const firstGPU = "GPU-00000000-0000-4000-8000-000000000000"

// take streams until there are n samples.
func take(t *testing.T, opts Options, n int) ([]nvml.Sample, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), must.Patience)
	defer cancel()
	var all []nvml.Sample
	opts.runDir = t.TempDir()
	err := Stream(ctx, opts, 20*time.Millisecond, func(s nvml.Sample) {
		all = append(all, s)
		if len(all) == n {
			cancel()
		}
	})
	return all, err
}

// waitExit waits until no process has this argument.
func waitExit(t *testing.T, argument string) {
	t.Helper()
	must.Until(t, "the end of "+argument, func() bool {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		return !slices.ContainsFunc(lines, func(l string) bool {
			text, err := os.ReadFile(l)
			return err == nil && strings.Contains(string(text), argument)
		})
	})
}

func TestStream(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	for _, row := range []struct {
		name, variant, config string
		want                  nvml.Sample
	}{
		{
			"a driver of today", "driver", "gpu.0.sm_clock = 1965\ngpu.0.clock_reasons = 0x44\ngpu.0.temperature = 88\ngpu.0.margin = -1\ngpu.0.power_mw = 990500\n",
			nvml.Sample{Clock: new(uint32(1965)), Temperature: new(uint32(88)), Margin: new(int32(-1)), Power: new(uint32(990500)), Busy: new(uint32(100)), Reasons: new(uint64(0x44))},
		},
		{"an old driver", "nosym", "sm_clock = 1410\nclock_reasons = 0x1\n", nvml.Sample{Clock: new(uint32(1410)), Temperature: new(uint32(31)), Power: new(uint32(142000)), Reasons: new(uint64(1))}},
		{"one that tells little", "driver", "power_mw = none\nbusy = none\nfail.nvmlDeviceGetTemperature = 999\n", nvml.Sample{Clock: new(uint32(120)), Margin: new(int32(54)), Reasons: new(uint64(1))}},
		{
			"a MIG device has the clocks of its GPU", "driver", "uuid = " + firstGPU + "\ncount = 1\nsm_clock = 1500\nbusy = none\npower_mw = none\nmargin = 7\n",
			nvml.Sample{Clock: new(uint32(1500)), Temperature: new(uint32(31)), Margin: new(int32(7)), Reasons: new(uint64(1))},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			opts := r.options(t, row.variant, row.config)
			opts.GPU = firstGPU
			got, err := take(t, opts, 3)
			if err != nil || len(got) < 3 {
				t.Fatalf("%d samples, %v", len(got), err)
			}
			must.Equal(t, slices.Repeat([]nvml.Sample{row.want}, 3), got[:3])
		})
	}
}

// A faulty sampler loses its samples, and leaves nothing behind.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	const line = `{"sm_clock_mhz":1}`
	for _, row := range []struct {
		name, script string
		samples      int
		want         string // in the error
	}{
		{"crashes", "echo '" + line + "'; echo \"$0: symbol lookup error: nvmlNew\" >&2; exit 127", 1, "the NVML probe crashed: symbol lookup error: nvmlNew (exit status 127)"},
		{"ends", "echo '" + line + "'", 1, "ended its samples"},
		{"prints garbage", "echo oops; exec sleep 1000", 0, "read a sample: invalid character"},
		{"prints a line without end", "exec tr '\\0' ' ' </dev/zero", 0, "a line of more than 4096 bytes"},
		{"is told of a lost GPU", `echo '{"error":"nvmlInit: GPU is\u001b[31m lost"}'; exit 3`, 0, "nvmlInit: GPU is lost"},
		{"closes its output", "exec >&-; exec sleep 1000", 0, "ended its samples"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			opts := Options{Path: script(t, row.script), GPU: "GPU-" + strings.ReplaceAll(row.name, " ", "-")}
			got, err := take(t, opts, -1)
			if len(got) != row.samples || err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%d samples, %v; want %d, %q", len(got), err, row.samples, row.want)
			}
			waitExit(t, opts.Path)
		})
	}
}

// A GPU that hangs in the driver blocks only its own sampler, which does not end when its
// input does.
func TestStreamHangs(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	for name, row := range map[string]struct {
		variant, config string
		samples         int
	}{
		"at the start": {"hang", "", 0},
		"later":        {"driver", "gpu.0.hang.nvmlDeviceGetPowerUsage = 3600\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := r.options(t, row.variant, row.config)
			opts.GPU, opts.runDir = firstGPU, t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			must.Err(t, Stream(ctx, opts, 10*time.Millisecond, func(nvml.Sample) { t.Error("a sample") }), "")
			if d := time.Since(begun); d > must.Patience {
				t.Errorf("it took %v", d)
			}
		})
	}
}

func TestOneSampler(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	held, _ := tryLock(filepath.Join(dir, "sample-"+lockName("GPU-1")))
	opts := Options{Path: script(t, "flock -n 3 || exit 8; echo '{}'; cat >/dev/null"), GPU: "GPU-1", runDir: dir}
	ctx, cancel := context.WithCancel(t.Context())
	must.Err(t, Stream(ctx, opts, time.Second, func(nvml.Sample) { t.Error("a sample") }), "an earlier sampler of this GPU has not ended")
	opts.GPU = "GPU-2"
	if err := Stream(ctx, opts, time.Second, func(nvml.Sample) { cancel() }); err != nil {
		t.Errorf("of another GPU: %v", err)
	}
	must.Do(t, held.Close())
	opts.GPU = "GPU-1"
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), must.Patience)
		if err := Stream(ctx, opts, time.Second, func(nvml.Sample) { cancel() }); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		cancel()
	}
}

// TestStreamDies starts itself as the calling process and kills it: the probe must not
// outlive it.
func TestStreamDies(t *testing.T) {
	t.Parallel()
	if pidFile := os.Getenv("KBNODE_TEST_STREAM"); pidFile != "" {
		opts := Options{Path: os.Getenv("KBNODE_TEST_PROBE"), GPU: "GPU-1", runDir: filepath.Dir(pidFile)}
		_ = Stream(t.Context(), opts, time.Second, func(nvml.Sample) {})
		return
	}
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	path := script(t, "echo $$ >"+pidFile+".new; mv "+pidFile+".new "+pidFile+"; trap '' TERM INT HUP; while :; do sleep 0.1; done")
	proc, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], "-test.run=^TestStreamDies$"},
		&os.ProcAttr{Env: append(os.Environ(), "KBNODE_TEST_STREAM="+pidFile, "KBNODE_TEST_PROBE="+path)})
	must.Do(t, err)
	pid := 0
	must.Until(t, "the sampler", func() bool {
		text, _ := os.ReadFile(pidFile)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid != 0
	})
	must.Do(t, errors.Join(proc.Kill(), ignore(proc.Wait())))
	must.Until(t, "the end of what outlives who started it", func() bool {
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || strings.Contains(string(state), ") Z ")
	})
}

func ignore(_ *os.ProcessState, err error) error { return err }

// Someone tells a job's process to stop, and its sampler with it; the samples go on until the job has ended.
func TestStreamIgnoresStop(t *testing.T) {
	t.Parallel()
	opts := needRig(t).options(t, "driver", "")
	opts.GPU, opts.runDir = firstGPU, t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), must.Patience)
	defer cancel()
	count := 0
	err := Stream(ctx, opts, 20*time.Millisecond, func(nvml.Sample) {
		count++
		switch count {
		case 1:
			pid := samplerOf(t, opts.runDir)
			must.Err(t, syscall.Kill(pid, syscall.SIGTERM), "")
			if prio, err := syscall.Getpriority(syscall.PRIO_PROCESS, pid); err != nil || prio != 20-10 { // as the kernel encodes it
				t.Errorf("priority %d, %v", prio, err)
			}
		case 10:
			cancel()
		}
	})
	if err != nil || ctx.Err() != context.Canceled {
		t.Errorf("%d samples, %v, %v", count, err, ctx.Err())
	}
}

// samplerOf returns the child that has the lock of this directory.
func samplerOf(t *testing.T, dir string) int {
	t.Helper()
	links, _ := filepath.Glob("/proc/[0-9]*/fd/3")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, dir) {
			if pid, _ := strconv.Atoi(strings.Split(l, "/")[2]); pid != os.Getpid() {
				return pid
			}
		}
	}
	t.Fatal("no sampler")
	return 0
}
