//go:build nvcc

package nvcc

import (
	"bytes"
	"embed"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/test/must"
)

//go:embed task
var task embed.FS

// flags are what the engine gives nvcc before everything that is the task's.
const flags = "--std=c++20 -DNDEBUG -Xcompiler=-Wno-psabi -Xcompiler=-fno-strict-aliasing " +
	"--expt-extended-lambda --expt-relaxed-constexpr -forward-unknown-to-host-compiler " +
	"-O3 -Xnvlink=--verbose -Xptxas=--verbose -Xptxas=--warn-on-spills"

// tree is the directory that tree.sh made; make test-nvcc names it.
func tree(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("NVCC_TREE")
	if dir == "" {
		t.Fatal("NVCC_TREE does not name the tree with nvcc; run this through make test-nvcc")
	}
	return dir
}

// inside runs a program in the tree, as in a container: with its own processes
// and /proc, as root, and with no more environment than given.
func inside(t *testing.T, dir string, env []string, argv ...string) (stdout, stderr string, code int) {
	t.Helper()
	args := append([]string{"--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--root", tree(t), "--wd", dir, "env", "-i"}, env...)
	words := append([]string{"unshare"}, append(args, argv...)...)
	if os.Geteuid() != 0 {
		words = append([]string{"sudo"}, words...)
	}
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

var path = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// job is a directory in the tree with the binary beside it.
type job struct {
	host, dir string // the same directory, seen from outside and from inside
	kbnode    string
}

func newJob(t *testing.T) job {
	t.Helper()
	host, err := os.MkdirTemp(filepath.Join(tree(t), "tmp"), "job-") //nolint:usetesting // it must lie in the tree
	must.Do(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(host); err != nil {
			t.Error(err)
		}
	})
	binary, err := os.ReadFile(os.Getenv("KBNODE_BIN"))
	if err != nil {
		t.Fatalf("KBNODE_BIN does not name the binary: %v", err)
	}
	j := job{host: filepath.Join(host, "work"), dir: "/tmp/" + filepath.Base(host) + "/work"}
	j.kbnode = filepath.Join(filepath.Dir(j.dir), "kbnode")
	for _, err := range []error{
		os.Mkdir(j.host, 0o755),
		os.WriteFile(filepath.Join(host, "kbnode"), binary, 0o755),
		os.Mkdir(filepath.Join(j.host, "include"), 0o755),
		os.WriteFile(filepath.Join(j.host, "include", "scale.h"), []byte(text(t, "scale.h")), 0o644),
	} {
		must.Do(t, err)
	}
	return j
}

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := task.ReadFile("task/" + name)
	must.Do(t, err)
	return string(b)
}

// config is the task, with some members changed.
func config(t *testing.T, change map[string]any) []byte {
	t.Helper()
	c := map[string]any{
		"lang": "cu", "mode": "test", "arch": nil, "seed": 42,
		"sources":      map[string]string{"eval.cu": text(t, "eval.cu"), "submission.cu": text(t, "submission.cu")},
		"headers":      map[string]string{"task.h": text(t, "task.h")},
		"defines":      map[string]any{"CHECKED": nil, "FACTOR": "3"},
		"include_dirs": []string{"include"},
		"libraries":    []string{"m"}, "compile_flags": []string{"-lineinfo"},
		"tests":      []any{map[string]int{"size": 16}, map[string]int{"size": 1024}},
		"benchmarks": []any{map[string]int{"size": 4096}},
	}
	maps.Copy(c, change)
	b, err := json.Marshal(c)
	must.Do(t, err)
	return b
}

// evaluation is what result.json says of one run.
type evaluation struct {
	Compilation *result.Compilation
	Run         *struct {
		Success, Passed bool
		ExitCode        int `json:"exit_code"`
		Stdout, Stderr  string
		Result          map[string]string
	}
}

type outcome struct {
	Success bool
	Error   string
	System  struct{ Platform string }
	Runs    map[string]evaluation
}

func (j job) run(t *testing.T, change map[string]any) outcome {
	t.Helper()
	// nvcc names its files by its process id, which another job's may have too.
	env := append([]string{"TMPDIR=" + filepath.Dir(j.kbnode), "KERNELBOT_PAYLOAD=" + payload.Encode(config(t, change))}, path...)
	stdout, stderr, code := inside(t, j.dir, env, j.kbnode, "runner")
	if code != 0 {
		t.Errorf("kbnode runner: exit code %d", code)
	}
	b, err := os.ReadFile(filepath.Join(j.host, "result.json"))
	if err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	var r outcome
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("result.json: %s\nlog: %s%s", b, stdout, stderr)
		}
	})
	if !r.Success || r.Error != "" {
		t.Errorf("success is %v and the error %q", r.Success, r.Error)
	}
	return r
}

// compiles is a job that comes as far as a machine without a GPU lets it.
func compiles(t *testing.T, change map[string]any, archFlag string) evaluation {
	t.Helper()
	j := newJob(t)
	r := j.run(t, change)
	ev := r.Runs["test"]
	if len(r.Runs) != 1 || ev.Compilation == nil || ev.Run == nil {
		t.Fatalf("runs are %+v", r.Runs)
	}
	c := *ev.Compilation
	if !c.NvccFound || !c.Success || c.ExitCode != 0 {
		t.Errorf("nvcc found %v, success %v, exit code %d", c.NvccFound, c.Success, c.ExitCode)
	}
	if !strings.Contains(c.NvccVersion, "release 12.4") || !strings.HasPrefix(c.NvccVersion, "nvcc: NVIDIA (R) Cuda compiler driver\n") {
		t.Errorf("nvcc's version is %q", c.NvccVersion)
	}
	want := "/usr/bin/nvcc " + flags + " -lineinfo -Iinclude -lm -DCHECKED -DFACTOR=3 eval.cu submission.cu " + archFlag + " -o eval.out"
	if diff := cmp.Diff(want, c.Command); diff != "" {
		t.Errorf("command: %s", diff)
	}
	for _, line := range []string{"ptxas info    : Compiling entry function '_Z12scale_kernelPfi' for", "bytes stack frame,", "ptxas info    : Used ", "nvlink info"} {
		if !strings.Contains(c.Stdout+c.Stderr, line) {
			t.Errorf("nvcc did not say %q", line)
		}
	}
	return ev
}

// TestNoDevice compiles for whatever GPU is there and runs where none is.
func TestNoDevice(t *testing.T) {
	t.Parallel()
	ev := compiles(t, nil, "-arch=native")
	if ev.Run.ExitCode != 110 || ev.Run.Success || ev.Run.Passed {
		t.Errorf("exit code %d, success %v, passed %v; want 110, false, false", ev.Run.ExitCode, ev.Run.Success, ev.Run.Passed)
	}
	if want := "mode test, seed 42, header found\n"; ev.Run.Stdout != want {
		t.Errorf("stdout is %q, want %q", ev.Run.Stdout, want)
	}
	if !strings.HasPrefix(ev.Run.Stderr, "cudaMalloc: ") {
		t.Errorf("stderr is %q", ev.Run.Stderr)
	}
	want := map[string]string{"test-count": "2", "test.0.spec": "size: 16"}
	if diff := cmp.Diff(want, ev.Run.Result); diff != "" {
		t.Errorf("result: %s", diff)
	}
}

// TestArchitectures compiles for those of the fleet that this nvcc knows.
func TestArchitectures(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"80", "90a"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			ev := compiles(t, map[string]any{"arch": arch}, "-gencode=arch=compute_"+arch+",code=sm_"+arch)
			if c := ev.Compilation; !strings.Contains(c.Stdout+c.Stderr, "for 'sm_"+arch+"'") {
				t.Errorf("nvcc did not compile for sm_%s", arch)
			}
			if ev.Run.ExitCode != 110 {
				t.Errorf("exit code %d, want 110", ev.Run.ExitCode)
			}
		})
	}
}

// TestNotCompiled is about what nvcc refuses: there is no run then, and in a
// leaderboard job no further evaluation.
func TestNotCompiled(t *testing.T) {
	t.Parallel()
	sources := func(submission string) map[string]string {
		return map[string]string{"eval.cu": text(t, "eval.cu"), "submission.cu": submission}
	}
	for _, tt := range []struct {
		name   string
		change map[string]any
		says   string
	}{
		{"an error in the submission", map[string]any{"sources": sources(text(t, "submission.cu") + "\nint broken() { return nosuchname; }\n")}, `submission.cu(10): error: identifier "nosuchname" is undefined`},
		{"a function that is missing", map[string]any{"sources": sources("")}, "undefined reference to `scale(float*, int)'"},
		{"an architecture newer than nvcc", map[string]any{"arch": 100}, "Unsupported gpu architecture 'compute_100'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.change["mode"] = "leaderboard"
			j := newJob(t)
			r := j.run(t, tt.change)
			ev := r.Runs["test"]
			if len(r.Runs) != 1 || ev.Run != nil || ev.Compilation == nil {
				t.Fatalf("runs are %+v; want one without a run", r.Runs)
			}
			c := *ev.Compilation
			if !c.NvccFound || c.Success || c.ExitCode == 0 {
				t.Errorf("nvcc found %v, success %v, exit code %d", c.NvccFound, c.Success, c.ExitCode)
			}
			if !strings.Contains(c.Stdout+c.Stderr, tt.says) {
				t.Errorf("nvcc did not say %q but\n%s%s", tt.says, c.Stdout, c.Stderr)
			}
		})
	}
}
