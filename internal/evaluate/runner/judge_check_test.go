package runner

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestWorkerPlantsNoModule has a check that imports a module when it is first called. Without Landlock, root's worker puts a
// package of that name before it, and takes it away: whatever the judge imports, it must have before a worker runs.
func TestWorkerPlantsNoModule(t *testing.T) {
	t.Parallel()
	const submission = `
import os, shutil, time
from array import array
package = "/opt/lib/fractions"
os.mkdir(package)
with open(package + "/__init__.py", "w") as f:
    f.write("import sys; sys.modules['__main__'].one_line = lambda text: b''\n")
def custom_kernel(data):
    if os.fork() == 0:
        time.sleep(1)
        shutil.rmtree(package)
        os._exit(0)
    return array("q", bytes(8 * len(data)))
`
	j := containerJob(t, submission, "", "KBNODE_TEST_LANDLOCK=0", "PYTHONPATH=/opt/lib")
	config := judgeConfig(t, submission, "test")
	sources, _ := config["sources"].(map[string]string)
	sources["reference.py"] = strings.Replace(sources["reference.py"], "def check(data, output):\n", "def check(data, output):\n    import fractions, time\n    time.sleep(1.5)\n", 1)
	must.Equal(t, true, strings.Contains(sources["reference.py"], "fractions"))
	config["tests"] = []map[string]int{{"size": 1000}}
	j.setPayload(t, config)
	_, result := j.run(t)
	if run := at(result, "runs", "test", "run"); at(run, "passed") == true || at(run, "result", "check") != "fail" {
		t.Errorf("%v\n%s", result, j.stderr.String())
	}
}

// TestCheckRaises has an output with which a check has not reckoned: the submission fails, not the judge.
func TestCheckRaises(t *testing.T) {
	t.Parallel()
	config := judgeConfig(t, "def custom_kernel(data): return float('nan')\n", "test")
	sources, _ := config["sources"].(map[string]string)
	sources["reference.py"] = `
def make(seed, size): return float(seed)
def output(size): return 0.0
def check(data, output): return "" if int(output) == int(data) else "another number"
`
	j := newConfigJob(t, config)
	_, result := j.run(t)
	run := at(result, "runs", "test", "run")
	must.Equal(t, "check raised ValueError: cannot convert float NaN to integer", at(run, "result", "test.1.error"))
	if text, _ := at(run, "stderr").(string); at(run, "exit_code") != 112.0 || strings.Count(text, "\nValueError: cannot convert") != 2 {
		t.Errorf("%v\n%s", result, j.stderr.String())
	}
}

// TestFaultyProblem has a reference.py that does not fit its judge or its task.yml: the message names the fault, and no
// traceback leads through the judge. An exception in a function keeps its own.
func TestFaultyProblem(t *testing.T) {
	t.Parallel()
	const output, check = "def output(size): return 0\n", "def check(data, output): return ''\n"
	for reference, want := range map[string]string{
		"def make(seed, size): return seed\n" + output: "reference.py has no function check, which the judge calls",
		output + check: "reference.py has no function make, which the judge calls",
		"def make(seed, length): return seed\n" + output + check:                         "the case 'seed: 1; size: 1' of task.yml does not fit reference.py: make() got an unexpected keyword argument 'size'",
		"def make(seed, size): return seed\ndef output(): return 0\n" + check:            "the case 'seed: 1; size: 1' of task.yml does not fit reference.py: output() got an unexpected keyword argument 'size'",
		"def make(seed, size, had=[]): had.append(0); return had[:2]\n" + output + check: "what reference.make returns for another seed is a list of 2; a list of 1 is wanted",
		"def make(seed, size): return len(size)\n" + output + check:                      "the judge failed; its standard error says why",
	} {
		config := judgeConfig(t, "def custom_kernel(data): return data\n", "test")
		sources, _ := config["sources"].(map[string]string)
		sources["reference.py"] = reference
		config["tests"] = []map[string]int{{"size": 1, "seed": 1}}
		j := newConfigJob(t, config)
		_, result := j.run(t)
		run := at(result, "runs", "test", "run")
		said, _ := at(run, "stderr").(string)
		if got := at(run, "result", "test.0.error"); got != any(want) || strings.Contains(said, "Traceback") != strings.HasPrefix(want, "the judge failed") || at(run, "exit_code") != 1.0 {
			t.Errorf("%s: %v\n%s; want %s", reference, result, said, want)
		}
	}
}
