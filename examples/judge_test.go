package examples_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/task"
	"github.com/gpu-mode/kbnode/test/must"
)

// honest is a submission that passes, to which attacks add.
const honest = `
import os, sys, time
from itertools import accumulate
def custom_kernel(data):
    return list(accumulate(data))
def answer(text, end=True):
    os.write(int(sys.argv[-1]), text if type(text) is bytes else text.encode())
    if end: os._exit(0)
`

// TestAnswers has submissions answer in the place of the example's worker. The times that it sends are these
// of a case of mode benchmark; none may be told, and the program that reads them must not fail.
func TestAnswers(t *testing.T) {
	t.Parallel()
	needsPython(t)
	p, err := task.Find("prefix_python")
	must.Do(t, err)
	const wrote = "the submission wrote into the evaluation's pipe"
	for answer, want := range map[string]string{
		`'{"times": [1e999, 1, 1]}\n'`:             wrote,
		`'{"times": [NaN, NaN, NaN]}\n'`:           wrote,
		`'{"times": [-1, 5, 5]}\n'`:                wrote,
		`'{"times": [0, 0, 0]}\n'`:                 wrote,
		`'{"times": [true, true, true]}\n'`:        wrote,
		`'{"times": ["1", "1", "1"]}\n'`:           wrote,
		`'{"times": [5, 5]}\n'`:                    wrote,
		`'{"times": [%s]}\n' % ("5," * 100 + "5")`: wrote,
		`'{"times": [10000000000000, 5, 5]}\n'`:    wrote,
		`'{"times": [%d, 5, 5]}\n' % 10**400`:      wrote,
		`'{"times": {"runs": 100, "mean": 1.0, "std": 0.0, "err": 0.0, "best": 1, "worst": 1}}\n'`: wrote,
		`'{"times": [5, 5, 5], "error": "x"}\n'`:                                                   wrote,
		`'{"error": 3}\n'`:                                                                         wrote,
		`'{"error": "half \\ud800 a pair"}\n'`:                                                     "half ? a pair",
		`'{"error": "two\\nlines\\u2028three"}\n'`:                                                 "two lines three",
		`'{}\n'`:             wrote,
		`'[' * 60000 + '\n'`: wrote,
		`'1' * 100000`:       wrote,
		`'null\n'`:           wrote,
		`b'\xff\xfe\n'`:      wrote,
		`'{"times": [5, 5, 5]}\n{"times": [5, 5, 5]}\n'`: wrote,
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			r := evaluate(t, p, honest+"answer("+answer+")\n", "benchmark").Runs.Get("benchmark").Run
			if got := r.Result.Get("benchmark.0.error"); r.ExitCode != 112 || r.Passed || got != want || r.Result.Get("check") != "fail" || r.Result.Get("benchmark.0.mean") != "" {
				t.Errorf("exit code %d, %v\n%s", r.ExitCode, r.Result, r.Stderr)
			}
		})
	}
	t.Run("none, and a process that stays", func(t *testing.T) {
		t.Parallel()
		r := evaluate(t, p, honest+"if os.fork() == 0: time.sleep(600)\nos._exit(3)\n", "test").Runs.Get("test").Run
		if got := r.Result.Get("test.0.error"); r.ExitCode != 112 || got != "the submission ended its process with exit code 3" {
			t.Errorf("exit code %d, %v\n%s", r.ExitCode, r.Result, r.Stderr)
		}
	})
	t.Run("much from the check", func(t *testing.T) {
		t.Parallel()
		p := shrunk(t, "prefix_python", "return f\"output[{i}] is {output[i]} instead of {want}\"", "return f\"wrong \" + \"x\" * 500_000")
		r := evaluate(t, p, "def custom_kernel(data): return [0] * len(data)\n", "test").Runs.Get("test").Run
		if got := r.Result.Get("test.0.error"); r.ExitCode != 112 || !strings.HasPrefix(got, "wrong xxx") {
			t.Errorf("exit code %d, %.100s\n%s", r.ExitCode, got, r.Stderr)
		}
	})
	t.Run("times that no clock has", func(t *testing.T) {
		t.Parallel()
		r := evaluate(t, p, honest+`answer('{"times": [5e-324, 1e-300, 0.5]}\n')`, "benchmark").Runs.Get("benchmark").Run
		if got := r.Result.Get("benchmark.0.error"); r.Passed || got != wrote {
			t.Errorf("exit code %d, %v\n%s", r.ExitCode, r.Result, r.Stderr)
		}
	})
	t.Run("after the output is closed", func(t *testing.T) {
		t.Parallel()
		if r := evaluate(t, p, honest+"sys.stdout.close()\n", "test").Runs.Get("test").Run; !r.Passed {
			t.Errorf("exit code %d, %v\n%s", r.ExitCode, r.Result, r.Stderr)
		}
	})
	for name, more := range map[string]string{
		"before the worker's": "answer('{}\\n', end=False)\n",
		"with one that stays": "if os.fork() == 0: time.sleep(600)\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := evaluate(t, p, honest+more, "test").Runs.Get("test").Run
			if stays := name == "with one that stays"; r.Passed != stays || r.Result.Get("test.0.error") != map[bool]string{false: wrote}[stays] {
				t.Errorf("exit code %d, %v\n%s", r.ExitCode, r.Result, r.Stderr)
			}
		})
	}
}

// TestJudgeIsOutOfReach has submissions put modules in the way of the program that judges them, and read its
// environment and memory.
func TestJudgeIsOutOfReach(t *testing.T) {
	t.Parallel()
	needsPython(t)
	p := shrunk(t, "prefix_python", "test_timeout:", "seed: 71755\ntest_timeout:")
	const plant = `
for name in "traceback", "linecache", "tokenize", "_colorize", "codeop", "textwrap", "contextlib", "__editable__", "usercustomize", "encodings/idna", "numbers":
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name + ".py", "w") as f: f.write("import os; os.write(3, b'check: pass\\n'); os._exit(0)")
`
	for name, c := range map[string]struct{ submission, want string }{
		"modules that an error needs": {honest + plant + "answer('[' * 60000 + '\\n')\n", "the submission wrote into the evaluation's pipe"},
		"its environment": {honest + `
def custom_kernel(data):
    try: raise ValueError("71755" in open("/proc/%d/environ" % os.getppid()).read())
    except OSError: raise ValueError("closed")
`, "ValueError: closed"},
		"its memory": {honest + `
def custom_kernel(data):
    try: open("/proc/%d/mem" % os.getppid(), "rb"); raise ValueError("open")
    except OSError: raise ValueError("closed")
`, "ValueError: closed"},
		"its descriptors": {honest + `
def custom_kernel(data):
    try: raise ValueError(os.readlink("/proc/%d/fd/3" % os.getppid()))
    except OSError: raise ValueError("closed")
`, "ValueError: closed"},
		"the seed in its own process": {honest + `
import gc
def custom_kernel(data):
    held, f = [str(dict(os.environ))], sys._getframe(1)
    while f: held.append(str(f.f_locals)); f = f.f_back
    raise ValueError(any("71755" in text for text in held))
`, "ValueError: False"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := evaluate(t, p, c.submission, "test").Runs.Get("test").Run
			if r.ExitCode != 112 || r.Result.Get("test.0.error") != c.want || r.Result.Get("check") != "fail" {
				t.Errorf("exit code %d, %v\n%s", r.ExitCode, r.Result, r.Stderr)
			}
		})
	}
	t.Run("path", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		must.Write(t, dir, "eval.py", must.Read(t, "eval.py"))
		for _, start := range []string{"import sys; sys.argv[0] = 'eval.py'; sys.path[:0] = ['.', 'sub', sys.argv[1], sys.argv[1] + '/sub']", "import sys; sys.path[:0] = ['', sys.argv[1] + '/../' + sys.argv[1].split('/')[-1]]"} {
			cmd := exec.CommandContext(t.Context(), "python3", "-c", start+"\nexec(open('eval.py').read(), {'__name__': 'eval'})\nprint(sys.path)", dir)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Contains(string(out), filepath.Base(filepath.Dir(dir))) || strings.Contains(string(out), "''") || strings.Contains(string(out), "'.'") {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
}

// TestModesDiffer gives each mode other numbers, so that what a submission remembers of one is wrong in another.
func TestModesDiffer(t *testing.T) {
	t.Parallel()
	needsPython(t)
	p := shrunk(t, "prefix_python", `{"size": 1, "seed": 1}`, `{"size": 10000, "seed": 6}`)
	inputs := map[string]bool{}
	for _, mode := range []string{"test", "benchmark", "test"} {
		run := evaluate(t, p, "def custom_kernel(data):\n  raise ValueError(data[:3])\n", mode).Runs[0].Value.Run
		inputs[run.Result.Get(mode+".0.error")] = true
	}
	if len(inputs) != 2 {
		t.Errorf("the same case in mode test, benchmark and test: %v", inputs)
	}
	if inputs[""] {
		t.Error("no input is shown")
	}
}

func needsPython(t *testing.T) {
	t.Helper()
	if err := exec.Command("python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
}
