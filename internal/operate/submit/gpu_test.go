package submit

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestGPUOfMachines checks that a build for the GPUs of a recorded machine goes to the queue in
// the machine's plan, no matter how the GPU is named.
func TestGPUOfMachines(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../plan/testdata/*.plan.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no plans: %v", err)
	}
	tags := regexp.MustCompile(`tags="queue=([^,]+),gpu=([^,]+),.*gpu-model=([^,]+),`)
	found := 0
	for _, file := range files {
		text := must.Read(t, file)
		if !strings.Contains(text, "warning: no queue is set") {
			continue // its operator chose another, or it has no GPU
		}
		for _, m := range tags.FindAllStringSubmatch(text, -1) {
			queue, key, model := m[1], m[2], strings.ReplaceAll(m[3], "-", " ")
			names := map[string]string{queue: queue, strings.ToUpper(queue): queue, key: key, model: key, strings.ToUpper(key) + "_BK": key, strings.ToUpper(key) + "x8": key + "x8"}
			if strings.HasPrefix(key, "mi") {
				names[strings.ToUpper(key)+"X"] = key
			}
			if key == "l40s" {
				delete(names, "L40S_BK") // kernelbot's test machine
			}
			for name, want := range names {
				if g, err := GPUOf(name); err != nil || g.Queue != want || g.AMD() != strings.HasPrefix(key, "mi") {
					t.Errorf("%s: --gpu %q is %+v, %v; its slots are in %s", filepath.Base(file), name, g, err, want)
				}
			}
			found++
		}
	}
	if found < 10 {
		t.Errorf("only %d plans tell their GPUs", found)
	}
}

func TestGPUOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		// kernelbot's, from all of its runners
		"B200_BK": {"b200", "100"}, "H100_BK": {"h100", "90a"}, "MI300_BK": {"mi300", ""}, "L40S_BK": {"test", "89"}, "b200_bk": {"b200", "100"},
		"T4": {"t4", "75"}, "L4": {"l4", "89"}, "L4x4": {"l4x4", "89"}, "A100": {"a100", "80"}, "H100": {"h100", "90a"}, "B200": {"b200", "100"}, "L40S": {"l40s", "89"},
		"MI300": {"mi300", ""}, "MI250": {"mi250", ""}, "MI300x8": {"mi300x8", ""}, "MI355X": {"mi355", ""}, "B200_Nebius": {"b200", "100"}, "h200": {"h200", "90a"}, "B300": {"b300", "103"},
		// the other branch's, whose queues have the vendor's name
		"nvidia-h100": {"nvidia-h100", "90a"}, "NVIDIA_H100": {"nvidia-h100", "90a"}, "amd-mi250": {"amd-mi250", ""}, "amd-mi300": {"amd-mi300", ""}, "AMD_MI250": {"amd-mi250", ""},
		"nebius-h100": {"nebius-h100", "90a"}, "nvidia-h100-0": {"nvidia-h100-0", "90a"},
		// models, as people and drivers name them
		"MI300X": {"mi300", ""}, "MI325X": {"mi325", ""}, "mi250x": {"mi250", ""}, "AMD Instinct MI355X": {"mi355", ""}, "NVIDIA H100 80GB HBM3": {"h100", "90a"},
		"RTX 4090": {"rtx-4090", "89"}, "RTX4090": {"rtx-4090", "89"}, "GB200": {"gb200", "100"}, "b200-1g-23gb": {"b200-1g-23gb", "100"}, "MI300-CPX": {"mi300-cpx", ""},
		"b200-1g-23gbx2": {"b200-1g-23gbx2", "100"}, "b200-1g-23gb-no-me": {"b200-1g-23gb-no-me", "100"},
		"b200-1g-23gb-x--0123456789abcdef": {"b200-1g-23gb-x--0123456789abcdef", "100"},
	} {
		if got, err := GPUOf(name); err != nil || [2]string{got.Queue, got.Arch} != want {
			t.Errorf("%s is %+v, %v, want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"", "B2000", "NVIDIA", "tpu", "nvidia-", "h100-what", "h100x", "x8", "b200_aws", "google-tpu-0", "h100\nx"} {
		if g, err := GPUOf(name); err == nil || !strings.Contains(err.Error(), "is not a type of GPU") {
			t.Errorf("%q is %+v, %v", name, g, err)
		}
	}
	if _, err := GPUOf("H1OO"); err == nil || !strings.Contains(err.Error(), "H100") {
		t.Errorf("a typo: %v", err)
	}
}

func TestFits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		queue, gpu, arch string
		ok               bool
	}{
		{"b200", "", "90a", false}, {"b200", "", "90", false}, {"b200", "", "100a", true}, {"b200", "", "100f", true}, {"b200", "", "103", false},
		{"b300", "", "100", true}, {"b300", "", "100a", false}, {"h100", "", "90", true}, {"h100", "", "80", false}, {"l40s", "", "80", true}, {"a100", "", "89", false},
		{"mi300", "", "90a", false}, {"mi300", "", "", true}, {"test", "", "89", true}, {"test", "H100_BK", "", false}, {"h100", "H100_BK", "100", false},
		{"h100", "B200_BK", "", false}, {"b200", "b200-1g-23gb", "", false}, {"b200-1g-23gb", "B200_BK", "", true}, {"b200-1g-23gb", "b200-2g-45gb", "", false},
		{"mi300x8", "MI300x8", "", true}, {"nvidia-h100", "H100_BK", "", true}, {"amd-mi250", "MI300_BK", "", false}, {"l40s", "L40S_BK", "", true},
		{"kernels", "H100_BK", "100", true}, {"kernels", "", "1", true}, {"b200", "tpu", "100", true}, {"b200", "", "sm_90", true}, {"", "", "90a", true},
	} {
		if err := (Target{Queue: tt.queue}).Fits(tt.gpu, tt.arch); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	for model, arch := range archs {
		if g, ok := find(model); !ok || g.Queue != model || g.Arch != arch {
			t.Errorf("%s is %+v", model, g)
		}
	}
	if g, ok := find("test"); ok {
		t.Errorf("a queue that only kernelbot's table knows may be another one of that name: %+v", g)
	}
}

// TestBothNames checks that pipelines of either launcher find their variables.
func TestBothNames(t *testing.T) {
	t.Parallel()
	for text, both := range map[string]bool{`{"a":1}`: true, fmt.Sprintf("%q", must.Random(300_000)): false} {
		j, err := Request{RunID: "r", Target: Target{Queue: "b200"}, Payload: text}.Job()
		must.Do(t, err)
		env := j.Build.Env
		if env["KERNELBOT_QUEUE"] != "b200" || env["GPU_QUEUE"] != "b200" {
			t.Errorf("the queues are %q and %q", env["KERNELBOT_QUEUE"], env["GPU_QUEUE"])
		}
		old, has := env[payload.OldVar]
		if has != both || both && (old != env[payload.Var] || old == "") || !both && env[payload.Var+"_1"] == "" {
			t.Errorf("both %t: %d bytes in %s, %d in %s", both, len(env[payload.Var]), payload.Var, len(old), payload.OldVar)
		}
		for name, value := range env {
			if len(name)+len(value) > 128<<10 {
				t.Errorf("%s has %d bytes", name, len(value))
			}
		}
	}
}

// TestEnding checks how exit statuses are explained.
func TestEnding(t *testing.T) {
	t.Parallel()
	status := func(n int) *int { return &n }
	for _, row := range []struct {
		job  buildkite.Job
		want string
	}{
		{buildkite.Job{ExitStatus: status(-1), SignalReason: "process_run_error"}, "the payload may be too large"},
		{buildkite.Job{ExitStatus: status(-1)}, "the agent was lost"},
		{buildkite.Job{ExitStatus: status(-1), SignalReason: "agent_refused"}, "refused the job"},
		{buildkite.Job{ExitStatus: status(96)}, "refused the step"},
		{buildkite.Job{ExitStatus: status(127)}, "was not found in the image"},
		{buildkite.Job{ExitStatus: status(137)}, "memory"},
		{buildkite.Job{ExitStatus: status(255)}, "the node could not run the job"},
		{buildkite.Job{ExitStatus: status(3)}, "the job failed; see its log (exit status 3)"},
	} {
		if got, ok := ending(buildkite.Build{State: "failed"}, &row.job); ok || !strings.Contains(got, row.want) {
			t.Errorf("%+v: %q, want %q", row.job, got, row.want)
		}
	}
}

// TestMissing reads how libraries say what a machine lacks, as people saw it.
func TestMissing(t *testing.T) {
	t.Parallel()
	must.Equal(t, "there is no GPU that programs can use", Missing(&result.Result{Error: `mode "profile" needs a GPU, and none is seen here; profile it where there is one`}))
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
		must.Equal(t, "", Missing(r))
		run.Result, run.Passed = nil, true
		run.Stderr = tt.stderr
		must.Equal(t, "", Missing(r))
	}
	r := &result.Result{Runs: result.Pairs[*result.Evaluation]{{Key: "test", Value: &result.Evaluation{Compilation: &result.Compilation{}}}}}
	must.Equal(t, "nvcc is not on the PATH"+alsoNone, Missing(r))
}

func TestCheckSize(t *testing.T) {
	t.Parallel()
	for n, ok := range map[int]bool{0: true, maxEnviron: true, maxEnviron + 1: false} {
		if err := CheckSize(strings.Repeat("x", n)); (err == nil) != ok {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
