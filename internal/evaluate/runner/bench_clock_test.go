package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// timedInside is a submission that times each call, as a judge in its process would.
const timedInside = `
import time
from array import array
from itertools import accumulate
clock, times = time.perf_counter_ns, []
def kernel(data, output):
    output[:] = array("q", accumulate(data))
def custom_kernel(data, output):
    begin = clock()
    kernel(data, output)
    times.append(clock() - begin)
    if len(times) == 100: print("inside:", sorted(times)[50], flush=True)
`

// BenchmarkClock compares the times of the examples' judge with those of a clock in the submission's process, of the same
// calls: of about 100 µs with arrays of 8 KB, and of 1 ms with 80 KB.
func BenchmarkClock(b *testing.B) {
	binary := benchBinary(b)
	for _, size := range []int{1200, 10000} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			var ratios []float64
			for b.Loop() {
				for range 5 {
					run := benchJudge(b, binary, timedInside, "../../../examples/eval.py", "../../../examples/prefix_python/reference.py", "benchmark", size)
					_, text, _ := strings.Cut(run.Stdout, "inside: ")
					inside, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
					must.Do(b, err)
					ratios = append(ratios, number(b, run, "benchmark.0.median")/inside)
					b.ReportMetric(inside/1000, "inside-µs")
					b.ReportMetric(number(b, run, "benchmark.0.handover")/1000, "handover-µs")
				}
			}
			slices.Sort(ratios)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratios[len(ratios)/2], "ratio")
		})
	}
}

// BenchmarkJudge compares an evaluation by the examples' judge with one by a judge in the submission's process: of a
// trivial test, and of a leaderboard run. They take turns, and the shortest of each counts.
func BenchmarkJudge(b *testing.B) {
	binary := benchBinary(b)
	const list = "from itertools import accumulate\ndef custom_kernel(data): return list(accumulate(data))\n"
	const arrays = "from array import array\nfrom itertools import accumulate\ndef custom_kernel(data): return array('q', accumulate(data))\n"
	for _, c := range []struct {
		name, mode string
		size       int
	}{{"trivial", "test", 1}, {"leaderboard", "leaderboard", 10000}} {
		b.Run(c.name, func(b *testing.B) {
			inside, apart := math.Inf(1), math.Inf(1)
			for b.Loop() {
				for range 10 {
					begin := time.Now()
					benchJudge(b, binary, list, "testdata/clock/eval.py", "testdata/clock/reference.py", c.mode, c.size)
					middle := time.Now()
					benchJudge(b, binary, arrays, "../../../examples/eval.py", "../../../examples/prefix_python/reference.py", c.mode, c.size)
					inside, apart = min(inside, middle.Sub(begin).Seconds()), min(apart, time.Since(middle).Seconds())
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(inside*1000, "inside-ms")
			b.ReportMetric(apart*1000, "apart-ms")
			b.ReportMetric(apart/inside, "ratio")
		})
	}
}

func number(b *testing.B, run *result.Run, key string) float64 {
	b.Helper()
	v, err := strconv.ParseFloat(run.Result.Get(key), 64)
	must.Do(b, err)
	return v
}

// benchBinary builds the runner.
func benchBinary(b *testing.B) string {
	b.Helper()
	binary := filepath.Join(b.TempDir(), "kbnode")
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "../../../cmd/kbnode-runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build kbnode: %v\n%s", err, out)
	}
	return binary
}

// benchJudge evaluates a submission, and returns the last run.
func benchJudge(b *testing.B, binary, submission, judge, reference, mode string, size int) *result.Run {
	b.Helper()
	cases := []map[string]int{{"size": size}}
	config, err := json.Marshal(map[string]any{
		"lang": "py", "mode": mode, "main": "eval.py", "tests": cases, "benchmarks": cases, "seed": 1,
		"sources": map[string]string{"submission.py": submission, "eval.py": must.Read(b, judge), "reference.py": must.Read(b, reference)},
	})
	must.Do(b, err)
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), binary, "runner")
	cmd.Dir = b.TempDir()
	cmd.Env = append(os.Environ(), "KERNELBOT_PAYLOAD="+payload.Encode(config))
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	r, err := result.Read([]byte(must.Read(b, filepath.Join(cmd.Dir, result.File))))
	must.Do(b, err)
	run := r.Runs[len(r.Runs)-1].Value.Run
	if run == nil || !run.Passed {
		b.Fatalf("%+v\n%s", r, out)
	}
	return run
}
