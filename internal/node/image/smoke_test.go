package image

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestMain(m *testing.M) {
	if task := os.Getenv("KBNODE_TEST_TASK"); task != "" {
		os.Exit(runner.Main(context.Background(), runner.Options{Config: task, Stdout: io.Discard, Stderr: os.Stderr}))
	}
	os.Exit(m.Run())
}

// TestSmoke runs the canary's submission like a slot's container, with this machine's
// python3 and fake libraries.
func TestSmoke(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	const torch = `
class version:
    cuda = CUDA
    hip = None
__version__ = "2.9"
float32 = None
class cuda:
    @staticmethod
    def is_available(): return GPU
class T:
    def __init__(self, on): self.on = on
    def reshape(self, *a): return self
    def __mod__(self, n): return self
    def cpu(self): return T("cpu")
    def __matmul__(self, o): return self
def arange(n, dtype, device): return T(device)
def equal(a, b): return EQUAL
`
	with := func(cuda, gpu, equal string) string {
		return strings.NewReplacer("CUDA", cuda, "GPU", gpu, "EQUAL", equal).Replace(torch)
	}
	for _, tt := range []struct{ name, torch, submission, gpus, reason string }{
		{name: "a GPU that computes", torch: with(`"12.4"`, "True", "True")},
		{name: "a GPU that is not seen", torch: with(`"12.4"`, "False", "True"), reason: "torch 2.9 sees no GPU"},
		{name: "a slot without a GPU", torch: with(`"12.4"`, "False", "True"), gpus: "void"},
		{name: "a GPU that computes wrongly", torch: with(`"12.4"`, "True", "False"), reason: "torch 2.9 multiplies wrongly on the GPU"},
		{name: "torch without a GPU's runtime", torch: with("None", "False", "True")},
		{name: "torch that is broken", torch: "import nowhere", reason: "torch is there and cannot be imported: No module named 'nowhere'"},
		{name: "no torch", torch: "raise ModuleNotFoundError('none', name='torch')"},
		{name: "a wrong result", torch: "", submission: "def custom_kernel(data): return []", reason: "python3 computes wrongly"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := submission
			if tt.submission != "" {
				program = tt.submission
			}
			doc, err := json.Marshal(map[string]any{
				"lang": "py", "mode": "test", "main": "smoke.py", "tests": []map[string]int{{"size": 64}}, "benchmarks": []string{},
				"sources": map[string]string{"smoke.py": smoke, "submission.py": program, "torch.py": tt.torch},
			})
			must.Do(t, err)
			config := filepath.Join(t.TempDir(), "task.json")
			must.Do(t, os.WriteFile(config, doc, 0o600))
			// A process for each, as the runner ends all that its process started.
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "KBNODE_TEST_TASK="+config, "NVIDIA_VISIBLE_DEVICES="+tt.gpus)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text, err := os.ReadFile(filepath.Join(dir, "result.json"))
			must.Do(t, err)
			got, err := judge(Canary{}, slot.Outcome{}, nil, text)
			must.Do(t, err)
			want := Canary{Passed: tt.reason == "", Reason: tt.reason}
			must.Equal(t, want, got, cmpopts.IgnoreFields(Canary{}, "GPU", "Torch"))
		})
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		end    slot.Outcome
		said   string
		text   string
		reason string
	}{
		{name: "too many files", end: slot.Outcome{Reason: "nothing is uploaded: there are too many"}, said: "done\n", reason: "it left no result and exited with 0: nothing is uploaded: there are too many"},
		{name: "lost files", end: slot.Outcome{Lost: "nothing is uploaded: it may still run"}, said: "done\n", reason: "it left no result and exited with 0: nothing is uploaded: it may still run"},
		{name: "out of memory", end: slot.Outcome{ExitCode: 137, OutOfMemory: true}, reason: "it ran out of the slot's memory"},
		{name: "cut off", text: `{"success": tr`, reason: "it left no result and exited with 0:"},
		{name: "an error", text: `{"success": false, "error": "python3 is not there", "runs": {}}`, end: slot.Outcome{ExitCode: 1}, reason: "python3 is not there"},
		{name: "an error without words", text: `{}`, reason: "the runner reports neither success nor an error"},
		{name: "nothing run", text: `{"success": true, "runs": {}}`, reason: "nothing was run"},
		{name: "not passed", text: `{"success": true, "runs": {"test": {"run": {"passed": false, "exit_code": 1, "stderr": "x\nboom\n"}}}}`, reason: "boom"},
		{name: "control characters", text: `{"success": false, "error": "a\u001b[2Jb"}`, reason: "ab"},
	} {
		got, err := judge(Canary{}, tt.end, []byte(tt.said), []byte(tt.text))
		if err != nil || got.Reason != tt.reason || got.Passed {
			t.Errorf("%s: %+v, %v; want %q", tt.name, got, err, tt.reason)
		}
	}
}
