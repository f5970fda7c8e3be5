package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// benchProgram is a task's program. It prints output, in MB, then reports the peak
// memory of its parent, in KiB.
const benchProgram = `import os
line = b"x" * 1023 + b"\n"
for _ in range(%d): os.write(1, line * 1024)
status = open("/proc/%%d/status" %% os.getppid()).read()
peak = status.partition("VmHWM:")[2].split()[0]
os.write(int(os.environ["POPCORN_FD"]), b"check: pass\npeak: %%s\n" %% peak.encode())
`

// BenchmarkOwnCost measures what the runner adds to a trivial job: its memory, and the
// time of the job less that of its two programs run by themselves. It compares this
// with a minimal engine in Python. The three take turns, so that other load affects
// them equally, and the shortest time of each counts, which is the least disturbed.
func BenchmarkOwnCost(b *testing.B) {
	binary := benchBinary(b)
	floor, err := filepath.Abs("testdata/floor.py")
	must.Do(b, err)
	for _, c := range []struct {
		name   string
		rounds int
		stdout int // MB
		torch  bool
	}{
		{name: "trivial", rounds: 40},
		{name: "torch", rounds: 40, torch: true},
		{name: "stdout=64MB", rounds: 8, stdout: 64},
	} {
		b.Run(c.name, func(b *testing.B) {
			j := newBenchJob(b, c.stdout, c.torch)
			var whole, python, program, preRun cost
			for b.Loop() {
				for range c.rounds {
					python.least(j.run(b, "python3", floor))
					program.least(j.run(b, "python3", "program.py"))
					preRun.least(j.run(b, "python3", "pass.py"))
					whole.least(j.run(b, binary, "runner"))
				}
			}
			own := whole.wall - program.wall - preRun.wall
			pythonOwn := python.wall - program.wall - preRun.wall
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(own, "own-ms")
			b.ReportMetric(whole.cpu-program.cpu-preRun.cpu, "own-cpu-ms")
			b.ReportMetric(pythonOwn, "python-own-ms")
			b.ReportMetric(own/pythonOwn, "ratio")
			b.ReportMetric(j.peak(b), "own-MiB")
		})
	}
}

// benchJob is a job that can run repeatedly.
type benchJob struct {
	dir, bin string
	env      []string
}

func newBenchJob(b *testing.B, stdout int, torch bool) *benchJob {
	b.Helper()
	python, err := pythonDir()
	if err != nil {
		b.Skip("python3 cannot be run: ", err)
	}
	j := &benchJob{dir: b.TempDir(), bin: b.TempDir()} // without any vendor's tool on the PATH
	program := fmt.Sprintf(benchProgram, stdout)
	config, err := json.Marshal(map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
		"sources": map[string]string{"eval.py": program, "submission.py": "pass\n"},
	})
	must.Do(b, err)
	modules := b.TempDir()
	j.env = []string{
		"PATH=" + j.bin, "LANG=C.UTF-8", "PYTHONPATH=" + modules, "POPCORN_FD=1",
		"KERNELBOT_PAYLOAD=" + payload.Encode(config),
	}
	files := map[string]string{filepath.Join(j.dir, "program.py"): program, filepath.Join(j.dir, "pass.py"): "pass\n"}
	if torch {
		files[filepath.Join(modules, "torch", "version.py")] = "from typing import Optional\n__version__ = '2.9.0'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
	}
	for path, text := range files {
		must.Do(b, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(b, os.WriteFile(path, []byte(text), 0o644))
	}
	must.Do(b, os.Symlink(filepath.Join(python, "python3"), filepath.Join(j.bin, "python3")))
	return j
}

// run runs a command in the job's directory and environment. It must succeed.
func (j *benchJob) run(b *testing.B, argv ...string) cost {
	b.Helper()
	if argv[0] == "python3" {
		argv[0] = filepath.Join(j.bin, "python3")
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(b.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stderr = j.dir, j.env, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		b.Fatalf("%s: %v\n%s", argv, err, &stderr)
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return cost{ms(took), ms(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())}
}

// cost is the time of a process and of those that it waited for, in ms.
type cost struct{ wall, cpu float64 }

// least lowers a cost to that of another run; zero is none yet.
func (c *cost) least(o cost) {
	if c.wall == 0 {
		*c = o
	}
	c.wall, c.cpu = min(c.wall, o.wall), min(c.cpu, o.cpu)
}

// peak returns the peak memory of the last engine, in MiB, as seen by its program.
func (j *benchJob) peak(b *testing.B) float64 {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, result.File))
	must.Do(b, err)
	var result map[string]any
	must.Do(b, json.Unmarshal(text, &result))
	reported, _ := at(result, "runs", "test", "run", "result", "peak").(string)
	kib, err := strconv.ParseFloat(reported, 64)
	if err != nil || at(result, "runs", "test", "run", "passed") != true {
		b.Fatalf("the job did not pass: %s", text)
	}
	return kib / 1024
}
