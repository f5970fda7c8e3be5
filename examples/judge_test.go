package examples_test

import (
	"os/exec"
	"path/filepath"
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

func needsPython(t *testing.T) {
	t.Helper()
	if err := exec.Command("python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
}
