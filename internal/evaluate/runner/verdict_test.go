package runner

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// plant leaves everything that a submission may leave for a later interpreter, loader
// or tool.
const plant = `
import glob, os, site, sys, sysconfig, tempfile
forge = "import os; os.write(3, b'forged: yes\\n')\n"
def put(path, text=forge):
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        open(path, "w").write(text)
    except OSError:
        pass
base = sysconfig.get_paths()["purelib"]
for where in (site.getusersitepackages(), base, os.environ["ROOT"] + "/home/.local/lib/python%d.%d/site-packages" % sys.version_info[:2]):
    put(where + "/x.pth", forge.strip() + "\n")
    put(where + "/sitecustomize.py"); put(where + "/usercustomize.py")
for where in (os.environ["ROOT"] + "/modules", ".", "lib"):
    put(where + "/sitecustomize.py"); put(where + "/usercustomize.py"); put(where + "/optional.py")
put("x-1.0.dist-info/entry_points.txt", "[judge]\nx = optional\n")
put(".config/x"); put("config.ncu-cfg"); put("nvcc.profile"); put("libm.so.6", "x"); put("package/x.py")
for home in (os.environ["HOME"], os.environ["ROOT"] + "/home"):
    for name in (".pythonrc", ".config/x", ".cache/torch_extensions/x", ".triton/cache/x", ".nv/ComputeCache/x", ".gdbinit"):
        put(home + "/" + name)
put(tempfile.gettempdir() + "/planted")
if not os.environ["KBNODE_TEST_LANDLOCK"]: put("/tmp/kbnode-test-planted"); put("/var/tmp/kbnode-test-planted")
for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH"):
    put(os.environ.get(name, os.environ["HOME"]) + "/planted")
`

// search is a judge that reports what it finds of that.
const search = `
import glob, os, sys, tempfile
from importlib import metadata
for d in (os.environ["HOME"], tempfile.gettempdir()) + tuple(os.environ.get(n, "/nowhere") for n in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")):
    for at, dirs, files in os.walk(d):
        for f in files:
            if os.path.join(at, f) != sys.argv[2]: o("forged: " + f + "\n")
for f in glob.glob("/tmp/kbnode-test-planted") + glob.glob("/var/tmp/kbnode-test-planted"): o("forged: " + f + "\n")
for f in os.listdir("."):
    if f not in ("eval.py", "submission.py", "__pycache__", "lib"): o("forged: " + f + "\n")
try:
    import optional
    o("forged: optional\n")
except ImportError:
    pass
if metadata.entry_points().select(group="judge"): o("forged: entry point\n")
o("check: pass\n")
`

// TestNothingIsPlanted has a submission leave everything it can for the programs after
// it, in an environment that an image may have.
func TestNothingIsPlanted(t *testing.T) {
	t.Parallel()
	for _, landlock := range []string{"", "0"} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			config := map[string]any{
				"lang": "py", "mode": "leaderboard", "main": "eval.py", "benchmarks": []map[string]int{{"a": 1}},
				"sources": map[string]string{"submission.py": plant, "eval.py": report + search + plant},
			}
			j := newConfigJob(t, config, "KBNODE_TEST_LANDLOCK="+landlock)
			modules := filepath.Join(j.dir, "modules")
			python, err := pythonDir()
			if err != nil {
				t.Skip(err)
			}
			if out, err := exec.CommandContext(t.Context(), filepath.Join(python, "python3"), "-m", "venv", "--without-pip", filepath.Join(j.dir, "venv")).CombinedOutput(); err != nil {
				t.Skipf("no venv: %v\n%s", err, out)
			}
			write(t, filepath.Join(j.dir, "home", ".local", "lib", "x"), "")
			write(t, filepath.Join(modules, "x.txt"), "")
			write(t, filepath.Join(j.cmd.Dir, "lib", "x.txt"), "")
			j.cmd.Env = append(j.cmd.Env, "ROOT="+j.dir, "HOME="+filepath.Join(j.dir, "home"), "PYTHONPATH=:"+modules+":lib", "LD_LIBRARY_PATH=",
				"TRITON_CACHE_DIR="+filepath.Join(j.dir, "triton"), "PATH="+filepath.Join(j.dir, "venv", "bin")+":"+getenvLast(j.cmd.Env, "PATH"))
			code, result := j.run(t)
			message, _ := at(result, "error").(string)
			if landlock == "0" { // it could write there, and is detected
				if code != 1 || !strings.Contains(message, "a program changed "+j.dir) {
					t.Errorf("exit code %d, error %q", code, message)
				}
				return
			}
			for _, name := range []string{"test", "benchmark", "leaderboard"} {
				run := at(result, "runs", name, "run")
				if at(run, "passed") != true || at(run, "result", "forged") != nil {
					t.Errorf("%s is %v\n%s", name, run, j.stderr.String())
				}
			}
		})
	}
}

func TestChangedFilesAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ submission, want string }{
		"rewritten":            {`open("lib/module.py", "a").write("x")`, "changed"},
		"with its times back":  {`import os; s = os.stat("lib/module.py"); open("lib/module.py", "r+").write("9"); os.utime("lib/module.py", ns=(s.st_atime_ns, s.st_mtime_ns))`, "changed"},
		"replaced by a link":   {`import os; os.remove("lib/module.py"); os.symlink("/dev/null", "lib/module.py")`, "changed"},
		"made executable":      {`import os; os.chmod("notes.txt", 0o755)`, "changed"},
		"removed":              {`import os; os.remove("lib/module.py")`, "removed"},
		"its directory, too":   {`import shutil; shutil.rmtree("lib")`, "removed"},
		"data":                 {`open("notes.txt", "a").write("x")`, "changed"},
		"git's settings":       {`open(".git/config", "a").write("[core]\nfsmonitor = evil\n")`, "changed"},
		"a pickle":             {`open("lib/weights.pt", "r+b").write(b"9")`, "changed"},
		"what was expected":    {`import os; os.remove("expected.json"); open("expected.json", "w").write("1")`, "changed"},
		"by another name":      {`import os; os.link("data", "x"); open("x", "r+").write("9"); os.remove("x")`, "changed"},
		"moved there and back": {`import os; os.rename("data", "x"); open("data", "w").write("9"); os.rename("x", "data")`, "changed"},
		"emptied":              {`open("values.npy", "w").close()`, "changed"},
		"bytecode may be made": {`import sys; sys.dont_write_bytecode = False; import lib.module`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
				"submission.py": c.submission, "eval.py": report + `o("check: pass\n")`,
			}}
			j := newConfigJob(t, config)
			write(t, filepath.Join(j.cmd.Dir, "lib", "module.py"), "1")
			for _, name := range []string{"notes.txt", ".git/config", "lib/weights.pt", "expected.json", "data", "values.npy"} {
				write(t, filepath.Join(j.cmd.Dir, name), "1")
			}
			_, result := j.run(t)
			message, _ := at(result, "error").(string)
			if c.want == "" && at(result, "runs", "test", "run", "passed") != true || c.want != "" && !strings.Contains(message, "a program "+c.want) {
				t.Errorf("error %q, want %q; result %v\n%s", message, c.want, result, j.stderr.String())
			}
		})
	}
}

// TestStoppedRunnerKeepsTheTime stops the runner until after a program's end, as a
// submission could before Linux 6.12.
func TestStoppedRunnerKeepsTheTime(t *testing.T) {
	t.Parallel()
	config := map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "test_timeout": 6, "sources": map[string]string{
		"submission.py": "", "eval.py": report + `open("now", "w").close(); time.sleep(6.5); o("check: pass\n"); open("end", "w").close()`,
	}}
	for range 6 { // select chooses either of two ready cases
		t.Run("", func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, config)
			must.Do(t, j.cmd.Start())
			waitFor(t, filepath.Join(j.cmd.Dir, "now"))
			must.Do(t, j.cmd.Process.Signal(syscall.SIGSTOP))
			waitFor(t, filepath.Join(j.cmd.Dir, "end"))
			time.Sleep(100 * time.Millisecond)
			must.Do(t, j.cmd.Process.Signal(syscall.SIGCONT))
			_, result := j.wait(t)
			if run := at(result, "runs", "test", "run"); at(run, "exit_code") != 114.0 || at(run, "passed") != false {
				t.Errorf("run is %v", run)
			}
		})
	}
}

// TestForgedResultDoesNotStay has a submission forge the result and prevent another
// from being written.
func TestForgedResultDoesNotStay(t *testing.T) {
	t.Parallel()
	config := map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": report + `open("result.json", "w").write("{}"); print("x" * 16000); o("check: pass\n")`,
	}}
	j := newConfigJob(t, config, "BUILDKITE=true")
	// A file size limit of 4 KiB imitates a full disk: the result is longer.
	j.cmd.Args = append([]string{"sh", "-c", `ulimit -f 8; exec "$0"`}, j.cmd.Path)
	j.cmd.Path = "/bin/sh"
	code, result := j.run(t)
	if code != exitNoResult || result != nil || strings.Contains(j.stdout.String(), "Passed:") || !strings.Contains(j.stderr.String(), "write result.json: ") {
		t.Errorf("exit code %d, result %v\n%s%s", code, result, j.stdout.String(), j.stderr.String())
	}
}

// TestNoDirectory checks the exit code if there is nowhere to write the result.
func TestNoDirectory(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	if code := Main(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "missing"), Stderr: &log}); code != exitNoResult || !strings.Contains(log.String(), "open the job's directory") {
		t.Errorf("exit code %d, %q", code, log.String())
	}
}
