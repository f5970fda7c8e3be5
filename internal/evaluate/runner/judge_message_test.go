package runner

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestWorkersPassNoMessage has the worker of a judge's first case leave numbers with what the next one has, too: the pipes of
// stdout and stderr, the sources, and the processes above it. The next finds none.
func TestWorkersPassNoMessage(t *testing.T) {
	t.Parallel()
	judged(t, honest+`
def parent(pid):
    with open(f"/proc/{pid}/stat") as f: return int(f.read().rpartition(")")[2].split()[1])
above = [os.getppid()]
for pid in sorted(int(d) for d in os.listdir("/proc") if d.isdigit() and int(d) != os.getpid()):
    try:
        if parent(pid) in above: above.append(pid)
    except OSError: pass
assert len(above) > 2, above
number, found = 4711, []
def leave(name, get, put, want=number):
    if get() == want: found.append(name)
    try: put()
    except OSError: pass # another user's
flags = os.O_NONBLOCK | os.O_APPEND
for fd in 1, 2:
    leave(f"flags of {fd}", lambda: fcntl.fcntl(fd, fcntl.F_GETFL) & flags, lambda: fcntl.fcntl(fd, fcntl.F_SETFL, flags), flags)
    leave(f"size of {fd}", lambda: fcntl.fcntl(fd, 1032), lambda: fcntl.fcntl(fd, 1031, 1 << 17), 1 << 17) # F_GETPIPE_SZ, F_SETPIPE_SZ
    leave(f"mode of {fd}", lambda: os.fstat(fd).st_mode & 0o777, lambda: os.fchmod(fd, 0o711), 0o711)
    leave(f"group of {fd}", lambda: os.fstat(fd).st_gid, lambda: os.fchown(fd, -1, number))
    leave(f"time of {fd}", lambda: os.fstat(fd).st_atime_ns, lambda: os.utime(fd, ns=(number, number)))
leave("time of a source", lambda: os.stat("reference.py").st_mtime_ns, lambda: os.utime("reference.py", ns=(number, number)))
for i, pid in enumerate(above):
    for name, value in ("oom_score_adj", "700"), ("coredump_filter", "0x11"):
        def get():
            with open(f"/proc/{pid}/{name}") as f: return f.read().strip().lstrip("0")
        def put():
            with open(f"/proc/{pid}/{name}", "w") as f: f.write(value)
        leave(f"{name} of {i}", get, put, value.lstrip("0x"))
if found: raise ValueError(found)
`, "test", []int{0, 1, 2, 3}, func(t *testing.T, _ bool, result map[string]any) {
		t.Helper()
		if run := at(result, "runs", "test", "run"); at(run, "passed") != true {
			t.Errorf("%v", at(run, "result"))
		}
	})
}

// TestWorkersCache has a cache in the job's directory, where programs may write, but no worker: a library that uses it in the
// pre-run uses the worker's home.
func TestWorkersCache(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, judgeConfig(t, honest+`
cache = os.environ.get("TRITON_CACHE_DIR", os.environ["HOME"] + "/.triton/cache")
os.makedirs(cache)
open(cache + "/kernel.so", "w").close()
`, "test"), "TRITON_CACHE_DIR=cache")
	_, result := j.run(t)
	must.Equal(t, "pass", at(result, "runs", "test", "run", "result", "check"))
	if t.Failed() {
		t.Logf("%v\n%s", result, j.stderr.String())
	}
}

// TestWorkersPutBackModes has workers change a directory of the job's, or a file, in ways that Landlock does not rule.
func TestWorkersPutBackModes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]any{"of the step": "pass", "of the step/file": nil} {
		j := newConfigJob(t, judgeConfig(t, honest+fmt.Sprintf(`
name, s = %q, os.stat(%[1]q)
if s.st_mtime_ns == 4711 or s.st_mode & 0o777 == 0o711: raise ValueError(oct(s.st_mode))
if "POPCORN_SEED" not in os.environ: # not the pre-run
    os.chmod(name, 0o711); os.utime(name, ns=(4711, 4711))
`, name), "test"))
		write(t, filepath.Join(j.cmd.Dir, "of the step/file"), "")
		_, result := j.run(t)
		must.Equal(t, want, at(result, "runs", "test", "run", "result", "check"))
		must.Equal(t, want == nil, strings.Contains(fmt.Sprint(at(result, "error")), "changed"))
		if t.Failed() {
			t.Logf("%v\n%s", result, j.stderr.String())
		}
	}
}
