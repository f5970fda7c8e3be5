package runner

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// copies is a problem whose output is its input, of 8 bytes times its size.
const copies = `
import os
from array import array
def make(seed, size): return array("q", os.urandom(8 * size))
def output(size): return array("q", bytes(8 * size))
def check(data, output): return "" if memoryview(data) == output else "is not the input"
`

// judgedCopies evaluates a submission to copies with large arrays.
func judgedCopies(t *testing.T, submission string, size int) (run any, stderr string) {
	t.Helper()
	config := judgeConfig(t, honest+submission, "benchmark")
	sources, _ := config["sources"].(map[string]string)
	sources["reference.py"] = copies
	config["benchmarks"] = []map[string]any{{"size": size}}
	j := newConfigJob(t, config)
	_, result := j.run(t)
	return at(result, "runs", "benchmark", "run"), j.stderr.String()
}

// TestLargeInputs evaluates an honest submission, also one that writes to its input.
func TestLargeInputs(t *testing.T) {
	t.Parallel()
	for _, kernel := range []string{"output[:] = data", "output[:] = data; data[:9] = output[9:18]"} {
		run, stderr := judgedCopies(t, "def custom_kernel(data, output): "+kernel+"\n", 1<<17)
		if at(run, "passed") != true {
			t.Errorf("%s: %v\n%s", kernel, run, stderr)
		}
	}
}

// TestWorkerSeesNoInputEarly has a submission watch for a large input while its judge hands it over.
func TestWorkerSeesNoInputEarly(t *testing.T) {
	t.Parallel()
	run, stderr := judgedCopies(t, `
def custom_kernel(data, output):
    number = words[GO]
    if not number & 1:
        output[:] = data
        return
    places = [memory, *next((f.f_locals["sources"] for f in frames() if "sources" in f.f_locals), [])]
    had = [bytes(p[HEAD:HEAD + 64]) for p in places]
    while words[GO] & 1:
        words[DONE] = number # of a call that does not count
        while words[GO] == number:
            if [bytes(p[HEAD:HEAD + 64]) for p in places] != had: raise ValueError("an input was here before its call")
        number = words[GO]
    raise ValueError("the call came first")
`, 1<<20)
	if said := fmt.Sprint(at(run, "result", "benchmark.0.error")); !strings.Contains(said, "the call came first") {
		t.Errorf("%v\n%s", run, stderr)
	}
}

// TestWorkerWritesNothingLate has a submission say that it is done, and write its output while its judge copies it.
func TestWorkerWritesNothingLate(t *testing.T) {
	t.Parallel()
	run, stderr := judgedCopies(t, `
calls = []
def custom_kernel(data, output):
    calls.append(words[GO])
    some = len(data) // 2
    output[:some] = data[:some]
    if len(calls) > 5: words[DONE] = words[GO] # the first call takes the memory
    output[some:] = data[some:]
`, 1<<21)
	must.Contain(t, fmt.Sprint(at(run, "result", "benchmark.0.error")), "is not the input")
	if t.Failed() {
		t.Logf("%v\n%s", run, stderr)
	}
}

// TestWorkerAnswersNothingEarly has a submission that takes 5 ms say that it is done before it is called: its output is known.
func TestWorkerAnswersNothingEarly(t *testing.T) {
	t.Parallel()
	config := judgeConfig(t, honest+`
calls = []
def custom_kernel(data, output):
    number = words[GO]
    calls.append(number)
    channel = next(f.f_locals["channel"] for f in frames() if "channel" in f.f_locals)
    while number & 1 or len(calls) > 1: # from the first call that does not count on, in place of its worker
        if number & 1:
            if words[1]: time.sleep(0.001) # longer than the judge warms up, so that the next one counts
            words[DONE] = number
            for _ in range(100): pass
            if words[1]: words[DONE] = number + 1
        else:
            time.sleep(0.005)
            words[DONE] = number
            channel.recv(1)
        while words[GO] == number: pass
        number = words[GO]
    time.sleep(0.005)
`, "benchmark")
	sources, _ := config["sources"].(map[string]string)
	sources["reference.py"] = `
from array import array
def make(seed, size): return array("q", [seed])
def output(size): return array("q", [0])
def check(data, output): return "" if output[0] == 0 else "is not 0"
`
	j := newConfigJob(t, config)
	_, result := j.run(t)
	run := at(result, "runs", "benchmark", "run")
	best, err := strconv.ParseFloat(fmt.Sprint(at(run, "result", "benchmark.0.best")), 64)
	if at(run, "passed") == true && (err != nil || best < 4e6) {
		t.Errorf("%v, %v\n%s", run, err, j.stderr.String())
	}
}
