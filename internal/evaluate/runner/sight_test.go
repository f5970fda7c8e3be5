package runner

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/test/must"
)

// The problem of these tests is examples/prefix_python as it was when the submission held its clock, and the same with
// a program of the shape of kernelbot's.
var clockShapes = map[string]string{"case": "testdata/clock/eval.py", "pool": "testdata/clock/pool.py"}

// clockJob returns a job of that problem, without a GPU.
func clockJob(t *testing.T, shape, submission string) *job {
	t.Helper()
	python, err := pythonDir()
	if err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
	type numbers map[string]int
	return newConfigJob(t, map[string]any{
		"lang": "py", "mode": "leaderboard", "main": "eval.py", "ranking_by": "geom", "seed": 71755,
		"sources": map[string]string{
			"submission.py": submission, "reference.py": must.Read(t, "testdata/clock/reference.py"), "eval.py": must.Read(t, clockShapes[shape]),
		},
		"tests":      []numbers{{"size": 1, "seed": 1}, {"size": 4099, "seed": 4}},
		"benchmarks": []numbers{{"size": 1000, "seed": 5}, {"size": 10000, "seed": 6}},
	}, "PATH="+python+":"+os.Getenv("PATH"))
}

// found returns what is implausible about a job, for the node and in the log.
func (j *job) found(t *testing.T) []witness.Finding {
	t.Helper()
	var found []witness.Finding
	text, err := os.ReadFile(filepath.Join(j.cmd.Dir, witness.File))
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(j.stdout.String()) {
		if reason, ok := strings.CutPrefix(line, "implausible: "); ok {
			lines = append(lines, strings.TrimSuffix(reason, "\n"))
		}
	}
	var reasons []string
	for _, f := range found {
		reasons = append(reasons, f.String())
	}
	must.Equal(t, reasons, lines)
	return found
}

// mean returns a mean in ns; 0 if the job did not pass.
func mean(t *testing.T, got map[string]any, i string) float64 {
	t.Helper()
	if at(got, "runs", "leaderboard", "run", "passed") != true {
		return 0
	}
	text, _ := at(got, "runs", "leaderboard", "run", "result", "benchmark."+i+".mean").(string)
	ns, err := strconv.ParseFloat(text, 64)
	must.Do(t, err)
	return ns
}

const accumulates = "from itertools import accumulate\n"

var honestKernels = []string{
	accumulates + "def custom_kernel(data): return list(accumulate(data))\n",
	`
def custom_kernel(data):
    sums, last = [], 0
    for n in data:
        last += n
        sums.append(last)
    return sums
`,
	accumulates + `
import os
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
def custom_kernel(data): return pool.submit(lambda: list(accumulate(data))).result()
`,
}

// TestHonestIsPlausible evaluates honest submissions, every second time on a busy machine. KBNODE_HONEST says how many.
func TestHonestIsPlausible(t *testing.T) {
	times, err := strconv.Atoi(os.Getenv("KBNODE_HONEST"))
	if err != nil {
		times = 4
	}
	for i := range times {
		shape := map[bool]string{true: "case", false: "pool"}[i/2%2 == 0]
		j := clockJob(t, shape, honestKernels[i%len(honestKernels)])
		quiet := func() {}
		if i%2 == 1 {
			quiet = keepBusy(t)
		}
		_, got := j.run(t)
		quiet()
		if mean(t, got, "1") == 0 {
			t.Fatalf("run %d of %s did not pass: %v\n%s", i, shape, got, j.stderr.String())
		}
		if found := j.found(t); found != nil {
			t.Errorf("run %d of %s: %v\n%v", i, shape, found, got)
		}
	}
}

// keepBusy uses all CPUs twice until the returned function is called.
func keepBusy(t *testing.T) (end func()) {
	t.Helper()
	var all []*exec.Cmd
	for range 4 {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		must.Do(t, cmd.Start())
		all = append(all, cmd)
	}
	return func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // its end is known
		}
	}
}

// clockAttacks are submissions that report less than a tenth of their time to a program in whose process they are, in
// one of the shapes or both. A name before a colon says which. Each is one public idea of shared/facts/timing.md.
var clockAttacks = map[string]string{
	"a clock that counts its calls": `
import itertools, time
steps = itertools.count()
time.perf_counter_ns = lambda: next(steps)
`,
	"a slower clock": `
import time
clock = time.perf_counter_ns
time.perf_counter_ns = lambda: clock() // 200
`,
	"case: the list of times": `
import sys
def custom_kernel(data):
    times = sys._getframe(2).f_locals["times"]
    times[:] = [1] * len(times)
    return list(accumulate(data))
`,
	"pool: the list of times": `
import random, sys
def custom_kernel(data):
    times = sys._getframe(1).f_locals.get("durations", [])
    times[:] = [random.randint(400, 600) for _ in times]
    return list(accumulate(data))
`,
	"pool: the statistics": `
import sys
def custom_kernel(data):
    judge = sys._getframe(1).f_globals
    judge["calculate_stats"] = lambda times: judge["Stats"](len(times), 1.0, 0.0, 0.0, 1.0, 1.0)
    return list(accumulate(data))
`,
	"pool: the mean of the statistics": `
import sys
patched = False
def custom_kernel(data):
    global patched
    judge = sys._getframe(1).f_globals
    honest = judge["calculate_stats"]
    def divided(times):
        stats = honest(times)
        stats.mean /= 100
        return stats
    if not patched: judge["calculate_stats"], patched = divided, True
    return list(accumulate(data))
`,
	"case: the encoder of the answer": `
import json
encode = json.dumps
json.dumps = lambda x, **k: encode({"times": [1] * 100} if "times" in x else x, **k)
`,
	"case: an answer before the program's": `
import json, os, sys
def custom_kernel(data):
    test = sys._getframe(2).f_locals["job"]["mode"] == "test"
    os.write(int(sys.argv[-1]), json.dumps({} if test else {"times": [3] * 100}).encode() + b"\n")
    os._exit(0)
`,
	"case: an answer with the same noise": `
import json, os, random, sys
def custom_kernel(data):
    test, noise = sys._getframe(2).f_locals["job"]["mode"] == "test", random.Random(1)
    os.write(int(sys.argv[-1]), json.dumps({} if test else {"times": [noise.randint(9000, 11000) for _ in range(100)]}).encode() + b"\n")
    os._exit(0)
`,
	"case: answers known before": `
import sys
answers = {}
def custom_kernel(data):
    if not answers:
        judge = sys._getframe(2).f_locals
        for call in range(130 if judge["job"]["mode"] != "test" else 1):
            d = judge["make"](judge["seed"](call), **judge["case"])
            answers[d[0], d[-1]] = list(accumulate(d))
    return answers[data[0], data[-1]]
`,
	"case: a check that finds nothing": `
import sys
patched = False
def custom_kernel(data):
    global patched
    if not patched:
        sys._getframe(2).f_locals["check"].__code__, patched = (lambda data, output: "").__code__, True
    return data
`,
	"a builtin that the check needs": `
import builtins
builtins.enumerate = lambda *a: ()
def custom_kernel(data): return data
`,
	"case: work before the clock is read": `
import sys, time
done = {}
def hook(frame, event, what):
    if event == "c_call" and what is time.perf_counter_ns and "data" in frame.f_locals and "output" not in frame.f_locals:
        done[id(frame.f_locals["data"])] = list(accumulate(frame.f_locals["data"]))
sys.setprofile(hook)
def custom_kernel(data): return done[id(data)]
`,
}

// TestAttacksAreNamed has submissions report times that they do not have.
func TestAttacksAreNamed(t *testing.T) {
	for name, attack := range clockAttacks {
		for shape := range clockShapes {
			if only, _, limited := strings.Cut(name, ":"); limited && only != shape {
				continue
			}
			t.Run(shape+"/"+name, func(t *testing.T) {
				if fast := !strings.Contains(attack, "def custom_kernel") || strings.Contains(attack, "_exit"); !fast && testing.Short() {
					t.Skip("short: its claims depend on the machine")
				}
				if !strings.Contains(attack, "def custom_kernel") {
					attack = honestKernels[0] + attack
				}
				// A machine that is busy may take its time in the few calls that are measured.
				for try := range 3 {
					j := clockJob(t, shape, accumulates+attack)
					_, got := j.run(t)
					ns := mean(t, got, "1")
					if ns == 0 {
						t.Fatalf("it did not pass: %v\n%s", got, j.stderr.String())
					}
					found := j.found(t)
					t.Logf("try %d: %.0f ns, %v", try, ns, found)
					if found != nil {
						return
					}
				}
				t.Error("nothing is implausible")
			})
		}
	}
}

// TestFindingsAreTheRunners has programs leave something under the name of the runner's file.
func TestFindingsAreTheRunners(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leaves, mean string
		want         []witness.Finding
	}{
		"a file, and honest":    {`open(name, "w").write('[{"evaluation": "x", "reason": "y"}]')`, "5000", nil},
		"a file":                {`open(name, "w").write("[]")`, "-5", []witness.Finding{{Evaluation: "benchmark", Case: "benchmark.0", Reason: `mean "-5" is negative`}}},
		"a closed directory":    {`os.makedirs(name + "/deep"); os.chmod(name, 0)`, "-5", []witness.Finding{{Evaluation: "benchmark", Case: "benchmark.0", Reason: `mean "-5" is negative`}}},
		"a link":                {`os.symlink("/dev/null", name)`, "-5", []witness.Finding{{Evaluation: "benchmark", Case: "benchmark.0", Reason: `mean "-5" is negative`}}},
		"text for the terminal": {`0`, `-\x1b[31m5`, []witness.Finding{{Evaluation: "benchmark", Case: "benchmark.0", Reason: `mean "-\x1b[31m5" is not a finite number`}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, map[string]any{
				"lang": "py", "mode": "benchmark", "main": "eval.py", "benchmarks": []map[string]int{{"a": 1}},
				"sources": map[string]string{"submission.py": "pass\n", "eval.py": `import os
name = "` + witness.File + `"
` + c.leaves + `
os.write(int(os.environ["POPCORN_FD"]), b"benchmark-count: 1\nbenchmark.0.runs: 3\nbenchmark.0.mean: ` + c.mean + `\ncheck: pass\n")
`},
			})
			if strings.HasPrefix(name, "a file") {
				write(t, filepath.Join(j.cmd.Dir, witness.File), "of an earlier job")
			}
			_, got := j.run(t)
			must.Equal(t, c.want, j.found(t))
			if at(got, "runs", "benchmark", "run", "passed") != true {
				t.Errorf("the verdict is another: %v", got)
			}
			if _, err := os.Lstat(filepath.Join(j.cmd.Dir, witness.File)); (err == nil) != (c.want != nil) {
				t.Error("the file: ", err)
			}
		})
	}
}
