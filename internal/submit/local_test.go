package submit

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/result"
)

// TestMissing reads how libraries say what a machine lacks, as people saw it.
func TestMissing(t *testing.T) {
	t.Parallel()
	const trace = "Traceback (most recent call last):\n  File \"reference.py\", line 3, in <module>\n    import x\n"
	const noGPU = "there is no GPU that programs can use"
	const alsoNone = ", and " + noGPU
	for _, tt := range []struct{ gpu, stderr, want string }{
		{"", trace + "ModuleNotFoundError: No module named 'torch'\n", "python3 has no module torch" + alsoNone},
		{"", trace + "ModuleNotFoundError: No module named 'triton.language'\n", "python3 has no module triton" + alsoNone},
		{"", trace + "RuntimeError: torch sees no GPU\n", noGPU},
		{"", trace + "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU\n", noGPU},
		{"", trace + "RuntimeError: No HIP GPUs are available\n", noGPU},
		{"", trace + "AssertionError: Torch not compiled with CUDA enabled\n", noGPU},
		{"NVIDIA B200", trace + "AssertionError: Torch not compiled with CUDA enabled\n", "torch 2.9.0+cpu is built without CUDA"},
		{"NVIDIA B200", trace + "RuntimeError: No CUDA GPUs are available\n", ""}, // the submission may have hidden it
		{"", "eval.cu:12: CUDA driver version is insufficient for CUDA runtime version\n", noGPU},
		{"", trace + "RuntimeError: 0 active drivers ([]). There should only be one.\n", noGPU},
		{"", trace + "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.\n", "nvcc is not on the PATH" + alsoNone},
		{"", trace + "RuntimeError: Ninja is required to load C++ extensions\n", "ninja is not on the PATH"},
		{"", trace + "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.\n", "gcc is not on the PATH"},
		{"", trace + "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n", "the library libcudart.so.12 is not installed"},
		{"", trace + "FileNotFoundError: [Errno 2] No such file or directory: 'nvidia-smi'\n", "nvidia-smi is not on the PATH"},
		{"", trace + "FileNotFoundError: [Errno 2] No such file or directory: '/data/table.npy'\n", ""},
		{"", trace + "ValueError: No module named 'torch' in the answer\n", ""},
		{"", "printed: ModuleNotFoundError: No module named 'torch'\n", ""},
		{"NVIDIA B200", trace + "ModuleNotFoundError: No module named 'torch'\n", "python3 has no module torch"},
		{"", trace + "ModuleNotFoundError: No module named 'numpy'\n", "python3 has no module numpy"},
		{"", "", ""},
	} {
		r := &result.Result{Success: true, System: &result.System{GPU: tt.gpu, Torch: "2.9.0+cpu"}}
		run := &result.Run{ExitCode: 1, Stderr: tt.stderr}
		r.Runs = result.Pairs[*result.Evaluation]{{Key: "test", Value: &result.Evaluation{Run: run}}}
		if got := Missing(r); got != tt.want {
			t.Errorf("%q is %q, want %q", tt.stderr, got, tt.want)
		}
		run.Stderr = ""
		run.Result = result.Pairs[string]{{Key: "test.0.status", Value: "fail"}, {Key: "test.0.error", Value: tt.stderr}}
		if got := Missing(r); got != tt.want {
			t.Errorf("as a test's error, %q is %q, want %q", tt.stderr, got, tt.want)
		}
		run.Result = append(run.Result, result.Pair[string]{Key: "test.1.status", Value: "pass"})
		if got := Missing(r); got != "" {
			t.Errorf("a test passed, and %q is missing", got)
		}
		run.Result, run.Passed = nil, true
		run.Stderr = tt.stderr
		if got := Missing(r); got != "" {
			t.Errorf("it passed, and %q is missing", got)
		}
	}
	r := &result.Result{Runs: result.Pairs[*result.Evaluation]{{Key: "test", Value: &result.Evaluation{Compilation: &result.Compilation{}}}}}
	if got := Missing(r); got != "nvcc is not on the PATH"+alsoNone {
		t.Errorf("no compiler: %q", got)
	}
}

func TestCheckSize(t *testing.T) {
	t.Parallel()
	for n, ok := range map[int]bool{0: true, maxEnviron: true, maxEnviron + 1: false} {
		if err := CheckSize(strings.Repeat("x", n)); (err == nil) != ok {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
