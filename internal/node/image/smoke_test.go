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

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestMain(m *testing.M) {
	if task := os.Getenv("KBNODE_TEST_TASK"); task != "" {
		ctx, cancel := context.WithCancel(context.Background())
		if os.Getenv("KBNODE_TEST_ENDED") != "" {
			cancel()
		}
		os.Exit(runner.Main(ctx, runner.Options{Config: task, Stdout: io.Discard, Stderr: os.Stderr}))
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
    @staticmethod
    def device_count(): return 2
class T:
    def __init__(self, on, of): self.on, self.of = on, of
    def reshape(self, *a): return self
    def __mod__(self, n): return self
    def cpu(self): return T("cpu", self.of)
    def __matmul__(self, o): return self
def arange(n, dtype, device): return T(device, device)
def equal(a, b): return a.of == b.of and EQUAL
`
	with := func(cuda, gpu, equal string) string {
		return strings.NewReplacer("CUDA", cuda, "GPU", gpu, "EQUAL", equal).Replace(torch)
	}
	const none = "raise ModuleNotFoundError('none', name='torch')"
	for _, tt := range []struct {
		name, torch, submission, gpus, reason string

		prove    int // GPUs; 0 is a canary
		slot     int // what a canary knows of its slot's GPUs: n + 1 of them; 0 is nothing
		cuda     string
		visible  string // CUDA_VISIBLE_DEVICES
		computed string
		wrong    bool
	}{
		{name: "a GPU that computes", torch: with(`"12.4"`, "True", "True")},
		{name: "a GPU that is not seen", torch: with(`"12.4"`, "False", "True"), reason: "torch 2.9 sees no GPU"},
		{name: "a slot without a GPU", torch: with(`"12.4"`, "False", "True"), gpus: "void"},
		{name: "a GPU of CDI that is not seen", torch: with(`"12.4"`, "False", "True"), gpus: "void", visible: "GPU-1", reason: "torch 2.9 sees no GPU"},
		{name: "a slot without a GPU, and an image that names one", torch: with(`"12.4"`, "False", "True"), gpus: "void", visible: "0", slot: 1},
		{name: "a slot's GPU that is not seen", torch: with(`"12.4"`, "False", "True"), gpus: "void", slot: 2, reason: "torch 2.9 sees no GPU"},
		{name: "a GPU that computes wrongly", torch: with(`"12.4"`, "True", "False"), reason: "torch 2.9 multiplies wrongly on the GPU", wrong: true},
		{name: "GPUs of CDI to prove", torch: with(`"12.4"`, "True", "True"), prove: 2, gpus: "void", visible: "GPU-1,GPU-2", computed: "torch 2.9 multiplied matrices on each GPU"},
		{name: "one of CDI to prove that computes wrongly", torch: with(`"12.4"`, "True", "False"), prove: 1, gpus: "void", reason: "torch 2.9 multiplies wrongly on the GPU", wrong: true},
		{name: "torch without a GPU's runtime", torch: with("None", "False", "True")},
		{name: "torch that is broken", torch: "import nowhere", reason: "torch is there and cannot be imported: No module named 'nowhere'"},
		{name: "no torch", torch: none},
		{name: "two GPUs to prove", torch: with(`"12.4"`, "True", "True"), prove: 2, computed: "torch 2.9 multiplied matrices on each GPU"},
		{name: "the second of them computes wrongly", torch: with(`"12.4"`, "True", `a.of == "cuda:0"`), prove: 2, reason: "torch 2.9 multiplies wrongly on the GPU", wrong: true},
		{name: "only two of three are there", torch: with(`"12.4"`, "True", "True"), prove: 3, reason: "torch 2.9 sees 2 of 3 GPUs"},
		{name: "nothing that computes", torch: none, prove: 1, computed: "the container ran; nothing in the image computes on the GPU"},
		{name: "torch for CPUs, and no driver", torch: with("None", "False", "True"), prove: 1, computed: "the container ran; nothing in the image computes on the GPU"},
		{name: "the driver's library", torch: none, prove: 2, cuda: "2", computed: "the memory of each GPU keeps what is written"},
		{name: "the driver's library that sees one GPU of two", torch: none, prove: 2, cuda: "1", reason: "CUDA sees 1 of 2 GPUs"},
		{name: "a GPU that forgets", torch: none, prove: 1, cuda: "7", reason: "the memory of GPU 0 does not keep what is written", wrong: true},
		{name: "a GPU without memory", torch: none, prove: 1, cuda: "9", reason: "cuMemAlloc_v2 fails with CUDA error 2"},
		{name: "a wrong result", torch: "", submission: "def custom_kernel(data): return []", reason: "python3 computes wrongly"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := submission
			if tt.submission != "" {
				program = tt.submission
			}
			test := map[string]int{"size": 64}
			if tt.prove > 0 {
				test["gpus"] = tt.prove
			}
			if tt.slot > 0 {
				test["visible"] = tt.slot - 1
			}
			doc, err := json.Marshal(map[string]any{
				"lang": "py", "mode": "test", "main": "smoke.py", "tests": []map[string]int{test}, "benchmarks": []string{},
				"sources": map[string]string{"smoke.py": smoke, "submission.py": program, "torch.py": tt.torch},
			})
			must.Do(t, err)
			config := filepath.Join(t.TempDir(), "task.json")
			must.Do(t, os.WriteFile(config, doc, 0o600))
			// A process for each, as the runner ends all that its process started.
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "KBNODE_TEST_TASK="+config, "NVIDIA_VISIBLE_DEVICES="+tt.gpus, "CUDA_VISIBLE_DEVICES="+tt.visible)
			cmd.Dir = dir
			if tt.cuda != "" {
				cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+fakeCUDA(t, tt.cuda))
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text, err := os.ReadFile(filepath.Join(dir, "result.json"))
			must.Do(t, err)
			got, err := judge(Canary{}, slot.Outcome{}, nil, text)
			must.Do(t, err)
			want := Canary{Passed: tt.reason == "", Reason: tt.reason, Computed: tt.computed, Wrong: tt.wrong}
			must.Equal(t, want, got, cmpopts.IgnoreFields(Canary{}, "GPU", "Torch"))
		})
	}
}

// TestRunnerEnded checks that judge knows what the runner says of a job that a signal ended.
func TestRunnerEnded(t *testing.T) {
	t.Parallel()
	dir, config := t.TempDir(), filepath.Join(t.TempDir(), "task.json")
	doc, err := Smoke()
	must.Do(t, err)
	must.Do(t, os.WriteFile(config, doc, 0o600))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env, cmd.Dir = append(os.Environ(), "KBNODE_TEST_TASK="+config, "KBNODE_TEST_ENDED=1"), dir
	_ = cmd.Run() // it fails
	_, err = judge(Canary{}, slot.Outcome{ExitCode: 1}, nil, []byte(must.Read(t, filepath.Join(dir, "result.json"))))
	must.Err(t, err, ErrKilled.Error())
}

// fakeCUDA builds a driver's library with the calls that a proof makes, and returns its directory. It has so many GPUs; of 7 each
// forgets what is written, and of 9 none has memory.
func fakeCUDA(t *testing.T, gpus string) (dir string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	const source = `
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint64_t ptr;
static int at = -1, ready;
int cuInit(unsigned flags) { ready = flags == 0; return 0; }
int cuDeviceGetCount(int *n) { *n = GPUS; return ready ? 0 : 3; }
int cuDeviceGet(int *device, int k) { *device = k; return k < GPUS ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(device + 1); return 0; }
int cuCtxSetCurrent(void *context) { at = (int)(intptr_t)context; return 0; }
int cuMemAlloc_v2(ptr *p, size_t n) { *p = (ptr)(uintptr_t)calloc(n, 1); return GPUS == 9 ? 2 : at > 0 ? 0 : 201; }
int cuMemFree_v2(ptr p) { free((void *)(uintptr_t)p); return 0; }
int cuMemcpyHtoD_v2(ptr to, const void *from, size_t n) { if (GPUS != 7) memcpy((void *)(uintptr_t)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, ptr from, size_t n) { memcpy(to, (void *)(uintptr_t)from, n); return 0; }
`
	dir = t.TempDir()
	must.Write(t, dir, "cuda.c", source)
	out, err := exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-DGPUS="+gpus, "-o", filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "cuda.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		end    slot.Outcome
		said   string
		text   string
		reason string
		err    string
	}{
		{name: "too many files", end: slot.Outcome{Reason: "nothing is uploaded: there are too many"}, said: "done\n", reason: "it left no result and exited with 0: nothing is uploaded: there are too many"},
		{name: "lost files", end: slot.Outcome{Lost: "nothing is uploaded: it may still run"}, said: "done\n", err: "nothing is uploaded: it may still run"},
		{name: "an engine that ends", text: `{"success": false, "error": "` + result.Cancelled + `: terminated signal received", "runs": {}}`, end: slot.Outcome{ExitCode: 1}, err: ErrKilled.Error()},
		{name: "out of memory", end: slot.Outcome{ExitCode: 137, OutOfMemory: true}, reason: "it ran out of the slot's memory"},
		{name: "cut off", text: `{"success": tr`, reason: "it left no result and exited with 0:"},
		{name: "an error", text: `{"success": false, "error": "python3 is not there", "runs": {}}`, end: slot.Outcome{ExitCode: 1}, reason: "python3 is not there"},
		{name: "an error without words", text: `{}`, reason: "the runner reports neither success nor an error"},
		{name: "nothing run", text: `{"success": true, "runs": {}}`, reason: "nothing was run"},
		{name: "not passed", text: `{"success": true, "runs": {"test": {"run": {"passed": false, "exit_code": 1, "stderr": "x\nboom\n"}}}}`, reason: "boom"},
		{name: "control characters", text: `{"success": false, "error": "a\u001b[2Jb"}`, reason: "ab"},
	} {
		got, err := judge(Canary{}, tt.end, []byte(tt.said), []byte(tt.text))
		if err == nil && tt.err != "" || err != nil && err.Error() != tt.err || got.Reason != tt.reason || got.Passed {
			t.Errorf("%s: %+v, %v; want %q", tt.name, got, err, tt.reason)
		}
	}
}
