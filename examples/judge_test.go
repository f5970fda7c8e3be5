package examples_test

import (
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestPath has the judge import nothing of the job's directory, whatever leads there.
func TestPath(t *testing.T) {
	t.Parallel()
	needsPython(t)
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
}

// TestModesDiffer gives each mode other numbers, so that what a submission remembers of one is wrong in another.
func TestModesDiffer(t *testing.T) {
	t.Parallel()
	needsPython(t)
	p := shrunk(t, "prefix_python", `{"size": 1, "seed": 1}`, `{"size": 10000, "seed": 6}`)
	inputs := map[string]bool{}
	for _, mode := range []string{"test", "benchmark", "test"} {
		run := evaluate(t, p, "def custom_kernel(data):\n  raise ValueError(list(data[:3]))\n", mode).Runs[0].Value.Run
		inputs[run.Result.Get(mode+".0.error")] = true
	}
	if len(inputs) != 2 {
		t.Errorf("the same case in mode test, benchmark and test: %v", inputs)
	}
	if inputs[""] {
		t.Error("no input is shown")
	}
}

// TestCallsAreReported reports each call that counts, as the numbers are that come from them.
func TestCallsAreReported(t *testing.T) {
	t.Parallel()
	needsPython(t)
	p := shrunk(t, "prefix_python", `{"size": 1, "seed": 1}`, `{"size": 1000, "seed": 6}`)
	said := evaluate(t, p, "def custom_kernel(data, output):\n  s = 0\n  for i, n in enumerate(data):\n    s += n\n    output[i] = s\n", "benchmark").Runs[0].Value.Run.Result
	calls, sum := strings.Fields(said.Get("benchmark.0.calls")), 0.
	for _, call := range calls {
		ns, err := strconv.ParseFloat(call, 64)
		must.Do(t, err)
		sum += ns
	}
	mean, err := strconv.ParseFloat(said.Get("benchmark.0.mean"), 64)
	must.Do(t, err)
	must.Equal(t, said.Get("benchmark.0.runs"), strconv.Itoa(len(calls)))
	if got := sum / float64(len(calls)); math.Abs(got-mean) > 1 {
		t.Errorf("the mean of the calls is %f, and %f is reported", got, mean)
	}
}

// TestKinds has arrays of numpy of which only bytes would cross.
func TestKinds(t *testing.T) {
	t.Parallel()
	needsPython(t)
	const script = `
import runpy, types
layout = runpy.run_path("eval.py")["layout"]
def fits(kind, contiguous=True):
    dtype = types.SimpleNamespace(str="|" + kind + "8", kind=kind)
    try: return bool(layout(types.SimpleNamespace(dtype=dtype, shape=(2,), nbytes=16, flags=types.SimpleNamespace(c_contiguous=contiguous)), "numpy"))
    except Exception as e: return type(e).__name__ == "Unfit" and None
print([kind for kind in "biufcSUVOMm" if fits(kind)], fits("V"), fits("f", False))
`
	out, err := exec.CommandContext(t.Context(), "python3", "-c", script).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	must.Equal(t, "['b', 'i', 'u', 'f', 'c', 'S', 'U'] None None\n", string(out))
}

// TestNumpyBytes hands over an array of complex numbers, which Python's memoryview does not cast to bytes.
func TestNumpyBytes(t *testing.T) {
	t.Parallel()
	needsPython(t)
	const script = `
import runpy, types
judge = runpy.run_path("eval.py")
made = bytes(range(32))
ndarray = type("ndarray", (), {"__module__": "numpy", "shape": (2,), "nbytes": 32, "dtype": types.SimpleNamespace(str="<c16", kind="c"),
    "flags": types.SimpleNamespace(c_contiguous=True), "reshape": lambda self, n: self, "view": lambda self, dtype: {"u1": made}[dtype]})
sizes, memory = [64, 0], bytearray(96)
spec = judge["describe"](ndarray(), sizes)
judge["store"](spec, ndarray(), memory, None, "x")
print(spec, memory[64:] == made)
`
	out, err := exec.CommandContext(t.Context(), "python3", "-c", script).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	must.Equal(t, "['numpy', 64, '<c16', [2]] True\n", string(out))
}

func needsPython(t *testing.T) {
	t.Helper()
	if err := exec.Command("python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
}
