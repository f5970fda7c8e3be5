// Package examples_test evaluates the examples with the runner's engine: the right
// submissions have to pass, the wrong and the cheating ones must not.
package examples_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestMain lets the test binary run as `kbnode runner`, which takes over
// the process that it runs in.
func TestMain(m *testing.M) {
	if compile.Invoked() {
		os.Exit(compile.Client())
	}
	if os.Getenv("KBNODE_TEST_RUNNER") != "" {
		os.Exit(runner.Main(context.Background(), runner.Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
	}
	code := m.Run()
	_ = os.RemoveAll(driver())
	os.Exit(code)
}

var timeLimits = regexp.MustCompile(`(_timeout": ?)[0-9]+`)

// evaluate runs a submission in a directory of its own.
func evaluate(t *testing.T, p *task.Task, submission, mode string) *result.Result {
	t.Helper()
	doc, err := p.Config(submission, "", mode)
	must.Do(t, err)
	if doc = timeLimits.ReplaceAllString(doc, "${1}900"); !strings.Contains(doc, `900`) { // for a busy machine
		t.Fatalf("no time limit in %s", doc)
	}
	self, err := os.Executable()
	must.Do(t, err)
	tools, err := filepath.Abs("testdata") // stand-ins for nvcc, torch and Triton
	must.Do(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "KBNODE_TEST_RUNNER=1", "GORACE=atexit_sleep_ms=0", "BUILDKITE=", "PATH="+tools+":"+os.Getenv("PATH"),
		"PYTHONPATH="+filepath.Join(tools, "gpu"), "LD_LIBRARY_PATH="+driver(), "PYTHONDONTWRITEBYTECODE=1", payload.Var+"="+payload.Encode([]byte(doc)))
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r, err := result.Read([]byte(must.Read(t, filepath.Join(cmd.Dir, result.File))))
	if err != nil || !r.Success {
		t.Fatalf("%v, %+v\n%s", err, r, out)
	}
	if _, passed := r.Verdict(); passed && strings.Contains(string(out), "\nimplausible: ") {
		t.Errorf("what passes here is honest: %s", out)
	}
	return r
}

// driver returns the directory of a stand-in for CUDA's driver.
var driver = sync.OnceValue(func() string {
	dir := filepath.Join(os.TempDir(), "kbnode-examples-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		panic(err)
	}
	// Without g++, no test needs it.
	_ = exec.Command("g++", "-O1", "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/gpu/driver.cpp", "-lpthread").Run()
	return dir
})

// outcome says of each run, in the order of a job's, whether it passed.
func outcome(r *result.Result) string {
	var words []string
	for _, e := range r.Runs {
		switch run := e.Value.Run; {
		case run == nil:
			words = append(words, e.Key+" does not compile: "+e.Value.Compilation.Stderr)
		case run.Passed && run.ExitCode == 0:
			words = append(words, e.Key+" passed")
		case !run.Passed && run.ExitCode == 112:
			words = append(words, e.Key+" failed")
		default:
			words = append(words, e.Key+" broke: "+run.Stderr)
		}
	}
	return strings.Join(words, ", ")
}

// failures lists what the cases report.
func failures(r *result.Result) string {
	var texts []string
	for _, e := range r.Runs {
		if e.Value.Run == nil {
			continue // outcome says why
		}
		for _, m := range e.Value.Run.Result {
			if strings.HasSuffix(m.Key, ".error") {
				texts = append(texts, m.Key+": "+m.Value)
			}
		}
	}
	return strings.Join(texts, "\n")
}

// expected is how a submission fares: the outcome by mode, and a part of the
// errors in mode leaderboard.
type expected struct {
	test, benchmark, leaderboard string
	where                        string
}

var (
	passes = expected{"test passed", "benchmark passed", "test passed, benchmark passed, leaderboard passed", ""}
	fails  = func(where string) expected {
		return expected{"test failed", "benchmark failed", "test failed", where}
	}
	// These do nothing that a test of one call could see.
	caught = func(where string) expected {
		return expected{"test passed", "benchmark failed", "test passed, benchmark failed", where}
	}
)

func TestPrefixPython(t *testing.T) {
	t.Parallel()
	if err := exec.Command("python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
	p, err := task.Find("prefix_python")
	must.Do(t, err)
	compare(t, p, "prefix_python", map[string]expected{
		"submission.py":      passes,
		"wrong.py":           fails("test.2.error: output["),
		"cheat.py":           caught("benchmark.0.error: call 2 of the same case: output[0] is "),
		"cheat_equal.py":     fails("test.0.error: the output is a Any; an array.array or memoryview of q[1] is wanted"),
		"cheat_input.py":     fails("test.0.error: output[0] is 0 instead of "),
		"cheat_reference.py": fails("test.2.error: output[0] is 0 instead of "),
	})
}

// TestPrefixPythonBreaks gives submissions that end in other ways than with an
// answer. The other cases are told all the same.
func TestPrefixPythonBreaks(t *testing.T) {
	t.Parallel()
	if err := exec.Command("python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
	p, err := task.Find("prefix_python")
	must.Do(t, err)
	for text, want := range map[string]string{
		"def custom_kernel(data):\n  raise ValueError('no\\nway')\n":              "ValueError: no way",
		"def custom_kernel(data):\n  import os; os.kill(os.getpid(), 11)\n":       "signal 11 (Segmentation fault) ended the submission's process",
		"def custom_kernel(data):\n  raise SystemExit\n":                          "SystemExit:",
		"def custom_kernel(data):\n  import os; os._exit(3)\n":                    "the submission ended its process with exit code 3",
		"def custom_kernel(data):\n  return data[:-1]\n":                          "the output is an array.array or memoryview of q[0]; an array.array or memoryview of q[1] is wanted",
		"def custom_kernel(data):\n  return None\n":                               "custom_kernel returned nothing; it must return the output, or take it as its second argument",
		"import nothing_here\n":                                                   "ModuleNotFoundError: No module named 'nothing_here'",
		"pass\n":                                                                  "the submission has no function custom_kernel",
		"import os\nos.write(int(os.environ['POPCORN_FD']), b'check: pass\\n')\n": "KeyError: 'POPCORN_FD'",
		"import os\nfor fd in range(3, 64):\n  try: os.write(fd, b'check: pass\\n')\n  except OSError: pass\n": "the submission has no function custom_kernel",

		"def custom_kernel(data, output, n):\n  return data\n": "custom_kernel takes 3 arguments; define custom_kernel(data) or custom_kernel(data, output)",
		"def custom_kernel(*, data):\n  return data\n":         "custom_kernel takes 0 arguments; define",
	} {
		r := evaluate(t, p, text, "test").Runs.Get("test").Run
		if r.Passed || r.ExitCode != 112 || !strings.HasPrefix(r.Result.Get("test.0.error"), want) || r.Result.Get("test-count") != "4" || r.Result.Get("check") != "fail" {
			t.Errorf("%q: exit code %d, %v", text, r.ExitCode, r.Result)
		}
	}
}

// TestWrapped evaluates a kernel that is no plain function and says of itself that it takes what it wraps.
func TestWrapped(t *testing.T) {
	t.Parallel()
	if err := exec.Command("python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
	p, err := task.Find("prefix_python")
	must.Do(t, err)
	plain, err := os.ReadFile("prefix_python/submission.py")
	must.Do(t, err)
	r := evaluate(t, p, string(plain)+`
import functools
class Kernel:
    def __init__(self, f):
        self.f = f
        functools.update_wrapper(self, lambda data, workspace, stream: None)
    def __call__(self, data):
        return self.f(data)
custom_kernel = Kernel(custom_kernel)
`, "test").Runs.Get("test").Run
	if !r.Passed {
		t.Errorf("exit code %d, %v", r.ExitCode, r.Result)
	}
}

// TestSeed holds the evaluation to other data for another seed.
func TestSeed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, seed := range []string{"", "seed: 1\n", "seed: 2\n", "seed: 2\n"} {
		p := shrunk(t, "prefix_python", "test_timeout:", seed+"test_timeout:")
		r := evaluate(t, p, "def custom_kernel(data):\n  raise ValueError(list(data))\n", "test")
		seen[r.Runs.Get("test").Run.Result.Get("test.0.error")] = true
	}
	if len(seen) != 3 {
		t.Errorf("data of no seed, two, and one of these again: %v", seen)
	}
}

// TestIdentityCUDA runs the example in CUDA on the CPU: a stand-in for nvcc makes
// C++ of it, so this says nothing of the real compiler and of a GPU.
func TestIdentityCUDA(t *testing.T) {
	t.Parallel()
	needs(t, "g++", "python3")
	p := shrunk(t, "identity_cuda", "1000003", "20003", "1048583", "10007", "33554467", "30011")
	compare(t, p, "identity_cuda", map[string]expected{
		"submission.cu": passes,
		"wrong.cu":      fails("test.2.error: 35 of 20003 values are wrong; the first is output[19968] = "),
		"cheat.cu":      caught("benchmark.0.error: call 2 of the same case: 30011 of 30011 values are wrong; the first is output[0] = "),
	})
}

// TestVectorAdd runs the examples for torch with stand-ins for torch, Triton and
// nvcc, on the CPU: this says that the evaluation tells right from wrong, and
// nothing of the real libraries.
func TestVectorAdd(t *testing.T) {
	t.Parallel()
	needs(t, "g++", "python3")
	for example, cheated := range map[string]string{"vectoradd_triton": "3001 of 3001 values", "vectoradd_cuda_inline": "3001 of 3001 values"} {
		p := shrunk(t, example, "1000003", "2051", "1048583", "2053", "33554467", "3001")
		compare(t, p, example, map[string]expected{
			"submission.py": passes,
			"wrong.py":      fails("test.2.error: "),
			"cheat.py":      caught("benchmark.0.error: call 2 of the same case: " + cheated),
		})
	}
}

// needs skips a test that compiles, which takes long, and one without its tools.
func needs(t *testing.T, tools ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("short")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("no ", tool)
		}
	}
}

// shrunk reads a copy of an example with other sizes.
func shrunk(t *testing.T, example string, sizes ...string) *task.Task {
	t.Helper()
	dir := t.TempDir()
	shared, err := filepath.Glob("*.py")
	must.Do(t, err)
	own, err := filepath.Glob(example + "/*")
	must.Do(t, err)
	for _, name := range append(shared, own...) {
		must.Write(t, dir, name, strings.NewReplacer(sizes...).Replace(must.Read(t, name)))
	}
	p, err := task.Find(filepath.Join(dir, example))
	must.Do(t, err)
	return p
}

// compare evaluates the submissions of an example.
func compare(t *testing.T, p *task.Task, example string, want map[string]expected) {
	t.Helper()
	for name, want := range want {
		t.Run(example+"/"+name, func(t *testing.T) {
			t.Parallel()
			text := must.Read(t, filepath.Join(example, name))
			board := evaluate(t, p, text, "leaderboard")
			got := expected{leaderboard: outcome(board), where: want.where}
			if example != "prefix_python" { // compiling takes long, and mode leaderboard has both others in it
				got.test, got.benchmark = want.test, want.benchmark
			} else {
				got.test, got.benchmark = outcome(evaluate(t, p, text, "test")), outcome(evaluate(t, p, text, "benchmark"))
			}
			must.Equal(t, want, got, cmp.AllowUnexported(expected{}))
			if reported := failures(board); !strings.Contains(reported, want.where) || (want.where == "") != (reported == "") {
				t.Errorf("reported is %q; want %q", reported, want.where)
			}
			if want.where != "" || t.Failed() {
				return
			}
			for _, key := range []string{"mean", "std", "err", "best", "worst", "runs"} {
				if v := board.Runs.Get("leaderboard").Run.Result.Get("benchmark.0." + key); v == "" {
					t.Errorf("the leaderboard has no %s: %v", key, board.Runs.Get("leaderboard").Run.Result)
				}
			}
		})
	}
}
