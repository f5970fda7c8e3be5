package runner

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// libraries is what a program reports of the stand-ins in testdata/libraries.
const libraries = `
sys.path.insert(0, os.environ["IMAGE"])
import aiter, aiter.jit, flydsl, caching
def tries(name, f, *args):
    try: o("%s: %s\n" % (name, f(*args)))
    except OSError as e: o("%s: %s\n" % (name, type(e).__name__))
tries("old", aiter.jit.module, "module_old"); tries("new", aiter.jit.module, "module_new"); tries("again", aiter.jit.again, "module_old")
tries("old kernel", flydsl.kernel, "old"); tries("new kernel", flydsl.kernel, "new")
for name in caching.WHERE: tries(name, caching.kernel, name)
tries("numba", caching.numba)
o("jit: %s\n" % os.environ.get("AITER_JIT_DIR"))
o("check: pass\n")
`

// TestLibrariesCompile has programs use libraries that keep what they compile, in an image that has some of it, and whose
// directories access(2) says that root may write to.
func TestLibrariesCompile(t *testing.T) {
	t.Parallel()
	if landlockVersion() == 0 {
		t.Skip("this kernel has no Landlock")
	}
	works := map[string]any{
		"old": "of the image", "new": "compiled", "again": "compiled", "old kernel": "of the image", "new kernel": "compiled",
		"numba": "compiled", "check": "pass",
	}
	for _, library := range []string{"cupy", "cutlass", "deep_gemm", "flashinfer", "helion", "inductor", "pyximport", "tilelang", "tinygrad", "triton", "tvm_ffi"} {
		works[library] = "compiled"
	}
	for _, row := range []struct {
		name string
		user int
		env  string // IMAGE is the directory of the image
		jit  string // directory for aiter's modules, relative to the program's home unless it is absolute
	}{
		{"as root", 0, "", ".aiter/jit"},
		{"as another user", 65534, "", ".aiter/jit"},
		{"the image names directories of its own", 0, "AITER_JIT_DIR=IMAGE/aiter/jit FLYDSL_RUNTIME_CACHE_DIR=IMAGE/aiter/jit/flydsl_cache " +
			"TRITON_CACHE_DIR=IMAGE/triton TORCHINDUCTOR_CACHE_DIR=IMAGE/none CACHEDB=IMAGE/none/cache.db NUMBA_CACHE_DIR=IMAGE/numba " +
			"CUPY_CACHE_DIR=IMAGE/none CUTE_DSL_CACHE_DIR=IMAGE/none DG_JIT_CACHE_DIR=IMAGE/none FLASHINFER_WORKSPACE_BASE=IMAGE/none " +
			"HELION_CACHE_DIR=IMAGE/none TILELANG_CACHE_DIR=IMAGE/none TVM_FFI_CACHE_DIR=IMAGE/none", ".aiter/jit"},
		{"the job names one of its own", 0, "TRITON_CACHE_DIR=kernels/triton TORCHINDUCTOR_CACHE_DIR=kernels/inductor", ".aiter/jit"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			own := ""
			if strings.Contains(row.env, "kernels") { // it is used
				own = `o("there: %s\n" % sorted(os.listdir("kernels")))` + "\n"
			}
			j := newConfigJob(t, map[string]any{
				"lang": "py", "mode": "leaderboard", "main": "eval.py", "benchmarks": []map[string]int{{"a": 1}},
				"sources": map[string]string{"submission.py": "import os, sys\ndef o(s): pass\n" + libraries, "eval.py": report + libraries + own},
			})
			image := filepath.Join(j.dir, "image")
			must.Do(t, os.CopyFS(image, os.DirFS("testdata/libraries")))
			write(t, filepath.Join(image, "triton", "kernel"), "warm")
			j.cmd.Env = append(j.cmd.Env, "IMAGE="+image, "PYTHONPATH="+image, "PYTHONDONTWRITEBYTECODE=1")
			j.cmd.Env = append(j.cmd.Env, strings.Fields(strings.ReplaceAll(row.env, "IMAGE", image))...)
			j.standIn(t, "nvidia-smi", "exit 9")
			j.standIn(t, "rocm-smi", `echo '{"card0": {"Card Series": "Test MI"}}'`)
			if row.user != 0 {
				j.become(t, row.user)
				must.Do(t, exec.CommandContext(t.Context(), "chown", "-R", "0", image).Run())
			}
			before := below(t, image)
			_, result := j.run(t)
			for _, name := range []string{"test", "benchmark", "leaderboard"} {
				got, _ := at(result, "runs", name, "run", "result").(map[string]any)
				jit, _ := got["jit"].(string)
				home := strings.TrimSuffix(jit, "/"+row.jit)
				if home == jit || !strings.HasPrefix(home, filepath.Join(j.dir, "tmp")+"/") {
					t.Errorf("%s: aiter compiles in %s", name, jit)
				}
				delete(got, "jit")
				if own != "" && got["there"] != "['inductor', 'triton']" {
					t.Errorf("%s: the job's directory has %v", name, got["there"])
				}
				delete(got, "there")
				must.Equal(t, works, got)
			}
			if t.Failed() {
				t.Logf("%v\n%s", result, j.stderr.String())
			}
			must.Equal(t, before, below(t, image))
		})
	}
}

// TestCompiledAgain counts what a leaderboard job compiles when its eval.py imports the submission: the import by itself, once,
// and each evaluation start with an empty cache.
func TestCompiledAgain(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	compiled := make(chan string)
	go func() {
		defer close(compiled)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the job is over
			}
			text, _ := io.ReadAll(conn)
			_ = conn.Close()
			compiled <- string(text)
		}
	}()
	submission := fmt.Sprintf(`
import os, socket, sys
cache = os.path.expanduser("~/.cache/torch_extensions")
new = not os.path.exists(cache)
os.makedirs(cache, exist_ok=True)
with socket.create_connection(("127.0.0.1", %d)) as s: s.sendall(b"compiled " if new else b"found "); s.sendall(" ".join(sys.argv[:2]).encode())
`, listener.Addr().(*net.TCPAddr).Port)
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "leaderboard", "main": "eval.py", "benchmarks": []map[string]int{{"a": 1}},
		"sources": map[string]string{"submission.py": submission, "eval.py": report + `import submission; o("check: pass\n")`},
	})
	var got []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for text := range compiled {
			got = append(got, text)
		}
	}()
	code, result := j.run(t)
	must.Do(t, listener.Close())
	<-done
	if code != 0 || at(result, "runs", "leaderboard", "run", "passed") != true {
		t.Errorf("exit code %d, %v\n%s", code, result, j.stderr.String())
	}
	must.Equal(t, []string{"compiled submission.py", "compiled eval.py test", "compiled eval.py benchmark", "compiled eval.py leaderboard"}, got)
}

// TestTableOfCaches has each variable with its origin, once, and in the documents.
func TestTableOfCaches(t *testing.T) {
	t.Parallel()
	page, known := must.Read(t, "../../../docs/engine.md"), map[string]bool{}
	for _, c := range caches {
		if known[c.variable] || c.variable == "" || c.library == "" || c.source == "" {
			t.Errorf("%+v", c)
		}
		known[c.variable] = true
		if row := strings.ReplaceAll(fmt.Sprintf("| %s | `%s` | %s |\n", c.library, c.variable, c.since), "|  |", "| |"); !strings.Contains(page, row) {
			t.Errorf("docs/engine.md does not have the row %s", row)
		}
	}
}

// below returns the files below a directory with their contents.
func below(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	must.Do(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			found[path] = must.Read(t, path)
		}
		return err
	}))
	return found
}

// TestNothingStaysInACache has variables of a container's environment lead to places that programs share. The pre-run fills
// each, and puts a link to the image in its place.
func TestNothingStaysInACache(t *testing.T) {
	t.Parallel()
	names := []string{"TRITON_CACHE_DIR=/tmp/kernels", "CUPY_CACHE_DIR=/dev/shm/a/b", "XDG_CACHE_HOME=cache", "TORCH_EXTENSIONS_DIR=/opt/lib/extensions"}
	const submission = `
import os, shutil
for name in ("TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR", "HOME"):
    dir = os.environ.get(name, "/opt/lib/extensions")
    try:
        os.makedirs(dir, exist_ok=True); open(dir + "/planted", "w").close()
        if name != "HOME": os.rename(dir, dir + ".old"); os.symlink("/opt/lib", dir)
    except OSError: pass
`
	const judge = `
for name in ("TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR"):
    dir = os.environ.get(name)
    o("%s: %s\n" % (name, dir))
    if dir:
        if os.path.lexists(dir) or os.path.lexists(dir + ".old"): o("found: %s\n" % dir)
        os.makedirs(dir); open(dir + "/kernel", "w").close()
o("check: pass\n")`
	for _, landlock := range []string{"", "0"} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			j := containerJob(t, submission, judge, append(names, "KBNODE_TEST_LANDLOCK="+landlock)...)
			code, result := j.run(t)
			passes(t, j, code, result)
			must.Equal(t, any(map[string]any{
				"TRITON_CACHE_DIR": "/tmp/kernels", "CUPY_CACHE_DIR": "/dev/shm/a/b", "XDG_CACHE_HOME": "cache", "TORCH_EXTENSIONS_DIR": "None", "check": "pass",
			}), at(result, "runs", "test", "run", "result"))
		})
	}
}

// TestClears tells where programs may leave what the next one does not find.
func TestClears(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.Do(t, err)
	here, tmp := filepath.Join(dir, "here"), filepath.Join(dir, "tmp")
	write(t, filepath.Join(here, "kept", "x"), "")
	write(t, filepath.Join(tmp, "cache", "x"), "")
	write(t, filepath.Join(dir, "image", "x"), "")
	link(t, tmp, filepath.Join(dir, "image", "to-tmp"))
	link(t, "../image", filepath.Join(tmp, "to-image"))
	link(t, "none", filepath.Join(tmp, "nowhere"))
	e := &engine{dir: here, areas: []*area{{dir: here}, {dir: tmp, kind: temporaryArea}, {dir: dir, kind: containerArea}}}
	for path, want := range map[string]bool{
		"new": true, "new/deep": true, here + "/new": true, "kept/new": true,
		"kept": false, here: false, ".": false, "../new": false, "new/../../new": false,
		tmp: true, tmp + "/cache": true, tmp + "/cache/new/deep": true, tmp + "/cache/x": true, dir + "/image/to-tmp/new": true,
		dir + "/image": false, dir + "/image/new": false, tmp + "/to-image": false, tmp + "/to-image/new": false,
		tmp + "/nowhere": false, tmp + "/nowhere/new": false, tmp + "/../image/new": false, tmp + "/cache/x/new": false, "/proc/new": false,
	} {
		if _, got := e.clears(path); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
}
