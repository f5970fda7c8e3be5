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

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
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
		must.Do(t, os.RemoveAll(host))
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

// run returns the only evaluation of a job.
func (j job) run(t *testing.T, change map[string]any) *result.Evaluation {
	t.Helper()
	// nvcc names its files by its process id, which another job's may have too.
	env := append([]string{"TMPDIR=" + filepath.Dir(j.kbnode), "KERNELBOT_PAYLOAD=" + payload.Encode(config(t, change))}, path...)
	stdout, stderr, code := inside(t, j.dir, env, j.kbnode, "runner")
	text := must.Read(t, filepath.Join(j.host, result.File))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("result.json: %s\nlog: %s%s", text, stdout, stderr)
		}
	})
	r, err := result.Read([]byte(text))
	must.Do(t, err)
	if code != 0 || !r.Success || len(r.Runs) != 1 || r.Runs[0].Key != "test" || r.Runs[0].Value.Compilation == nil {
		t.Fatalf("exit code %d, error %q", code, r.Error)
	}
	return r.Runs[0].Value
}

// TestNoDevice compiles, for whatever GPU is there and for those of the fleet that this nvcc knows, and
// runs where no GPU is.
func TestNoDevice(t *testing.T) {
	t.Parallel()
	for arch, flag := range map[any]string{nil: "-arch=native", "80": "-gencode=arch=compute_80,code=sm_80", "90a": "-gencode=arch=compute_90a,code=sm_90a"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			ev := newJob(t).run(t, map[string]any{"arch": arch})
			c, says := ev.Compilation, []string{"ptxas info    : Compiling entry function '_Z12scale_kernelPfi' for", "bytes stack frame,", "ptxas info    : Used ", "nvlink info"}
			if arch != nil {
				says = append(says, "for 'sm_"+arch.(string)+"'")
			}
			must.Contain(t, c.Stdout+c.Stderr, says...)
			if !strings.Contains(c.NvccVersion, "release 12.4") || !strings.HasPrefix(c.NvccVersion, "nvcc: NVIDIA (R) Cuda compiler driver\n") {
				t.Errorf("nvcc's version is %q", c.NvccVersion)
			}
			command := "/usr/bin/nvcc " + flags + " -lineinfo -Iinclude -lm -DCHECKED -DFACTOR=3 eval.cu submission.cu " + flag + " -o eval.out"
			must.Equal(t, result.Compilation{NvccFound: true, Success: true, Command: command, NvccVersion: c.NvccVersion, Stdout: c.Stdout, Stderr: c.Stderr}, *c)
			if ev.Run == nil || !strings.HasPrefix(ev.Run.Stderr, "cudaMalloc: ") {
				t.Fatalf("run is %+v", ev.Run)
			}
			must.Equal(t, result.Run{
				ExitCode: 110, Stdout: "mode test, seed 42, header found\n", Result: result.Pairs[string]{{Key: "test-count", Value: "2"}, {Key: "test.0.spec", Value: "size: 16"}},
				Stderr: ev.Run.Stderr, Command: ev.Run.Command, Duration: ev.Run.Duration,
			}, *ev.Run)
		})
	}
}

// TestNotCompiled is about what nvcc refuses: there is no run then, and in a
// leaderboard job no further evaluation.
func TestNotCompiled(t *testing.T) {
	t.Parallel()
	sources := func(submission string) map[string]any {
		return map[string]any{"sources": map[string]string{"eval.cu": text(t, "eval.cu"), "submission.cu": submission}}
	}
	for says, change := range map[string]map[string]any{
		`submission.cu(10): error: identifier "nosuchname" is undefined`: sources(text(t, "submission.cu") + "\nint broken() { return nosuchname; }\n"),
		"undefined reference to `scale(float*, int)'":                    sources(""),
		"Unsupported gpu architecture 'compute_100'":                     {"arch": 100}, // newer than nvcc
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			change["mode"] = "leaderboard"
			ev := newJob(t).run(t, change)
			if c := ev.Compilation; ev.Run != nil || !c.NvccFound || c.Success || c.ExitCode == 0 || !strings.Contains(c.Stdout+c.Stderr, says) {
				t.Errorf("run %+v, compilation %+v", ev.Run, c)
			}
		})
	}
}

// TestCompiledOnce has each program of a job compile with nvcc, as torch's load_inline does. nvcc puts its process ID
// into what it makes, so equal products are of one compilation.
func TestCompiledOnce(t *testing.T) {
	t.Parallel()
	const build = `import os, subprocess, zlib
d = os.environ["HOME"] + "/.cache/torch_extensions/ext"
os.makedirs(d)
open(d + "/k.cu", "w").write("#include <vector>\n__global__ void k(float *x) { x[threadIdx.x] *= 2; }\nint f() { return std::vector<int>(3).size(); }\n")
for argv in (["nvcc", "-MD", "-MF", "k.o.d", "-arch=sm_80", "-O3", "-lineinfo", "-Xcompiler=-fPIC", "-c", "k.cu", "-o", "k.o"], ["g++-13", "k.o", "-shared", "-o", "k.so"]):
    p = subprocess.run(argv, cwd=d, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
made = [zlib.crc32(open(d + "/" + f, "rb").read()) for f in ("k.o", "k.o.d")]
print("-DTORCH_EXTENSION_NAME", made)
`
	j := newJob(t)
	c := config(t, map[string]any{
		"lang": "py", "mode": "leaderboard", "main": "eval.py", "headers": nil,
		"sources": map[string]string{"submission.py": build, "eval.py": build + `os.write(int(os.environ["POPCORN_FD"]), f"made: {made}\ncheck: pass\n".encode())`},
	})
	env := append([]string{"TMPDIR=" + filepath.Dir(j.kbnode), "KERNELBOT_PAYLOAD=" + payload.Encode(c)}, path...)
	stdout, stderr, _ := inside(t, j.dir, env, j.kbnode, "runner")
	r, err := result.Read([]byte(must.Read(t, filepath.Join(j.host, result.File))))
	must.Do(t, err)
	if len(r.Runs) != 3 || r.Runs[0].Value.Compilation == nil {
		t.Fatalf("%d runs, %+v\n%s%s", len(r.Runs), r.Runs, stdout, stderr)
	}
	for _, run := range r.Runs {
		made := run.Value.Run.Result.Get("made")
		must.Equal(t, "-DTORCH_EXTENSION_NAME "+made+"\n", run.Value.Compilation.Stdout)
	}
}

// TestCUDAIsCompiledOnce has each evaluation of a leaderboard job tell what its eval.out is. nvcc puts its process ID into it.
func TestCUDAIsCompiledOnce(t *testing.T) {
	t.Parallel()
	const eval = `#include <cstdio>
#include <cstdlib>
int main() {
	unsigned sum = 1;
	std::FILE *self = std::fopen("/proc/self/exe", "rb"), *report = fdopen(std::atoi(std::getenv("POPCORN_FD")), "w");
	for (int c; (c = std::fgetc(self)) != EOF;) sum = sum * 31 + c;
	return std::fprintf(report, "made: %u\ncheck: pass\n", sum) < 0;
}
`
	j := newJob(t)
	c := config(t, map[string]any{"mode": "leaderboard", "arch": "80", "headers": nil, "sources": map[string]string{"eval.cu": eval, "submission.cu": "__global__ void k() {}\n"}})
	env := append([]string{"TMPDIR=" + filepath.Dir(j.kbnode), "KERNELBOT_PAYLOAD=" + payload.Encode(c)}, path...)
	stdout, stderr, _ := inside(t, j.dir, env, j.kbnode, "runner")
	r, err := result.Read([]byte(must.Read(t, filepath.Join(j.host, result.File))))
	must.Do(t, err)
	if len(r.Runs) != 3 {
		t.Fatalf("%d runs, %+v\n%s%s", len(r.Runs), r.Runs, stdout, stderr)
	}
	first := r.Runs[0].Value.Run.Result.Get("made")
	for _, run := range r.Runs {
		if made := run.Value.Run.Result.Get("made"); made != first || made == "" {
			t.Errorf("%s ran %q, not %q", run.Key, made, first)
		}
	}
}

// TestPoisonedNvcc has the program before the others compile with a compiler and a header of its own. A later one gives
// nvcc the same options, with honest files in the same places, and gets an honest product.
func TestPoisonedNvcc(t *testing.T) {
	t.Parallel()
	const build = `import os, subprocess
home = os.environ["HOME"]
os.makedirs(home + "/bin")
open(home + "/k.cu", "w").write('#ifndef MARK\n#define MARK "honest"\n#endif\n#include <vector>\nconst char *mark = MARK;\n__global__ void k() {}\n')
open(home + "/x.h", "w").write(HEADER)
open(home + "/bin/g++-13", "w").write("#!/bin/sh\nexec /usr/bin/g++-13 " + FLAG + ' "$@"\n')
os.chmod(home + "/bin/g++-13", 0o755)
made = []
for more in (["--compiler-bindir", home + "/bin/g++-13"], ["-Xcompiler=-include," + home + "/x.h"], ["-Xcompiler", "-B" + home + "/bin"], ["-I" + home]):
    p = subprocess.run(["nvcc", "-arch=sm_80", "-c", *more, home + "/k.cu", "-o", home + "/k.o"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    product = open(home + "/k.o", "rb").read()
    made.append("forged" if b"forged" in product else "honest" if b"honest" in product else "nothing")
print("-DTORCH_EXTENSION_NAME", made)
`
	j := newJob(t)
	c := config(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "headers": nil,
		"sources": map[string]string{
			"submission.py": `HEADER, FLAG = '#define MARK "forged"\n', "'-DMARK=\"forged\"'"` + "\n" + build,
			"eval.py":       `HEADER, FLAG = "", ""` + "\n" + build + `os.write(int(os.environ["POPCORN_FD"]), f"made: {made}\ncheck: pass\n".encode())`,
		},
	})
	env := append([]string{"TMPDIR=" + filepath.Dir(j.kbnode), "KERNELBOT_PAYLOAD=" + payload.Encode(c)}, path...)
	stdout, stderr, _ := inside(t, j.dir, env, j.kbnode, "runner")
	r, err := result.Read([]byte(must.Read(t, filepath.Join(j.host, result.File))))
	must.Do(t, err)
	if len(r.Runs) != 1 || r.Runs[0].Value.Compilation == nil || r.Runs[0].Value.Run == nil {
		t.Fatalf("%d runs, %+v\n%s%s", len(r.Runs), r.Runs, stdout, stderr)
	}
	must.Equal(t, "['honest', 'honest', 'honest', 'honest']", r.Runs[0].Value.Run.Result.Get("made"))
	must.Contain(t, r.Runs[0].Value.Compilation.Stdout, "['forged', 'forged'")
}
