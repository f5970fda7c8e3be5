package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

// report is the beginning of a task's program: o() writes to POPCORN_FD.
const report = `import os, sys, time, signal, subprocess
fd = int(os.environ["POPCORN_FD"])
def o(s):
    b = s if isinstance(s, bytes) else s.encode()
    while b:
        b = b[os.write(fd, b):]
`

// daemon starts a process that leaves its session and its parents, has the job's directory in its command
// line, and writes its ID to the file pid.
const daemon = `
def daemon(then="time.sleep(60)"):
    code = "import os, sys, time\nos.setsid()\nif os.fork(): os._exit(0)\n" \
        "open('pid', 'w').write(str(os.getpid()))\n" + then
    subprocess.Popen([sys.executable, "-c", code, os.getcwd()], pass_fds=[fd]).wait()
    while not os.path.exists("pid") or not open("pid").read():
        time.sleep(0.005)
`

func TestPopcornOverPipeSize(t *testing.T) {
	t.Parallel()
	_, result := runPy(t, map[string]string{"eval.py": report + `o("big: " + "x" * 3_000_000 + "\ncheck: pass\n")`})
	run := at(result, "runs", "test", "run")
	if big, _ := at(run, "result", "big").(string); len(big) != 3_000_000 || at(run, "passed") != true {
		t.Errorf("%d bytes came through, passed is %v", len(big), at(run, "passed"))
	}
}

func TestOutputFloodIsBounded(t *testing.T) {
	t.Parallel()
	j, result := runPy(t, map[string]string{"eval.py": report + `
line = b"y" * 63 + b"\n"
for i in range(64): os.write(1, line * 16384); os.write(2, b"z\r\n")
o("check: pass")`})
	run := at(result, "runs", "test", "run")
	stdout, _ := at(run, "stdout").(string)
	if want := fmt.Sprintf("[...] %d lines omitted", 64*16384+1-254); !strings.HasSuffix(stdout, "\n"+want) {
		t.Errorf("stdout ends with %q, want %q", stdout[max(0, len(stdout)-60):], want)
	}
	if at(run, "stderr") != strings.Repeat("z\n", 64) || at(run, "passed") != true {
		t.Errorf("stderr %q", at(run, "stderr"))
	}
	quiet, _ := runPy(t, map[string]string{"eval.py": report})
	if more := peak(t, j) - peak(t, quiet); more > 16<<10 {
		t.Errorf("64 MiB of output took %d KiB of memory", more)
	}
}

// peak returns the peak memory of a job's runner and its programs, in KiB.
func peak(t *testing.T, j *job) int64 {
	t.Helper()
	usage, ok := j.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Fatal("the system gives no usage")
	}
	return usage.Maxrss
}

func TestNotUTF8(t *testing.T) {
	t.Parallel()
	_, result := runPy(t, map[string]string{
		"submission.py": `import sys; sys.stdout.buffer.write(b"-DTORCH_EXTENSION_NAME \xff")`,
		"eval.py": report + `
os.write(1, b"a\xffb\xe2\x82c\xf0\x9f\x98"); os.write(2, b"\xed\xa0\x80")
o(b"check: pass\nk\xff: v\xc3\n")`,
	})
	run := at(result, "runs", "test", "run")
	for _, c := range []struct{ got, want any }{
		{at(run, "stdout"), "a\ufffdb\ufffdc\ufffd"},
		{at(run, "stderr"), "\ufffd\ufffd\ufffd"},
		{at(run, "result", "k\ufffd"), "v\ufffd"},
		{at(run, "passed"), true},
		{at(result, "runs", "test", "compilation", "stdout"), "-DTORCH_EXTENSION_NAME \ufffd"},
	} {
		must.Equal(t, c.want, c.got)
	}
}

func TestDaemonDies(t *testing.T) {
	t.Parallel()
	for name, sources := range map[string]map[string]string{
		"that holds stdout and POPCORN_FD": {"eval.py": report + daemon + `daemon(); o("check: pass\n")`},
		"of the pre-run": {
			"submission.py": report + daemon + "daemon()",
			"eval.py": report + `
def here(pid):
    try: return int(pid) not in (os.getpid(), os.getppid()) and os.readlink("/proc/%s/cwd" % pid) == os.getcwd()
    except OSError: return False
o("check: %s\n" % ("fail" if any(here(p) for p in os.listdir("/proc") if p.isdigit()) else "pass"))`,
		},
		"that spoils the result": {"eval.py": report + daemon + `
o("check: pass\n")
daemon("while True: open('result.json', 'w').write('spoiled')")`},
		"in the result's place": {"eval.py": report + `o("check: pass\n"); os.mkdir("result.json"); open("result.json/x", "w")`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, result := runPy(t, sources)
			if left := processesWith(t, j.cmd.Dir); left != nil {
				t.Errorf("alive: %v", left)
			}
			run := at(result, "runs", "test", "run")
			if at(run, "exit_code") != 0.0 || at(run, "passed") != true {
				t.Errorf("run is %v\n%s", run, j.stderr.String())
			}
		})
	}
}

func TestTimeoutEndsTheWholeTree(t *testing.T) {
	t.Parallel()
	j, result := runConfig(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "test_timeout": 2.5, "sources": map[string]string{
			"eval.py": report + daemon + `daemon(); o("check: pass\n"); print("so far\r\n", end="", flush=True); time.sleep(60)`,
		},
	})
	if left := processesWith(t, j.cmd.Dir); left != nil {
		t.Errorf("alive: %v", left)
	}
	run := at(result, "runs", "test", "run")
	if at(run, "exit_code") != 114.0 || at(run, "duration") != 2.5 || at(run, "passed") != false {
		t.Errorf("run is %v", run)
	}
}

// mayProfile reports whether this process has CAP_PERFMON or CAP_SYS_ADMIN.
func mayProfile(t *testing.T) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must.Do(t, err)
	_, after, _ := strings.Cut(string(status), "CapEff:")
	caps, err := strconv.ParseUint(strings.Fields(after)[0], 16, 64)
	must.Do(t, err)
	return caps&(1<<38|1<<21) != 0
}

// TestProcessesAboveAreOutOfSight starts the runner from a process with the payload in
// its environment, like a container's first process.
func TestProcessesAboveAreOutOfSight(t *testing.T) {
	t.Parallel()
	if version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 || version < 2 {
		t.Skip("this kernel has no Landlock of version 2: ", errno)
	}
	_, result := runPy(t, map[string]string{"eval.py": report + `
above = int([l for l in open("/proc/%d/status" % os.getppid()) if l.startswith("PPid:")][0].split()[1])
for what in ("environ", "mem", "maps", "fd/0"):
    try:
        open("/proc/%d/%s" % (above, what), "rb").read(1)
        o(what + ": open\n")
    except OSError as e:
        o(what + ": " + e.strerror + "\n")
os.mkdir("a"); open("b", "w"); os.rename("b", "a/b"); os.link("a/b", "c")
for name in ("a/b", "c"): os.remove(name)
os.rmdir("a")
o("check: pass\n")`})
	run := at(result, "runs", "test", "run")
	if at(run, "passed") != true {
		t.Errorf("run is %v", run)
	}
	denied := []string{"mem", "fd/0"}
	// Since Linux 6.15, a process that may profile the system may read these two of any
	// process.
	if !mayProfile(t) {
		denied = append(denied, "environ", "maps")
	}
	for _, what := range denied {
		if got := at(run, "result", what); got != "Permission denied" {
			t.Errorf("%s of the process above: %v", what, got)
		}
	}
}

// TestProcessesAboveRoot tests the same without Landlock, as root with the capabilities
// of a job's container, below a process that has the same.
func TestProcessesAboveRoot(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Getuid() != 0 {
		t.Skip("it takes root and setpriv: ", err)
	}
	config := map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": report + `
above = int([l for l in open("/proc/%d/status" % os.getppid()) if l.startswith("PPid:")][0].split()[1])
try:
    o("environ: %s\n" % (b"KERNELBOT_PAYLOAD" in open("/proc/%d/environ" % above, "rb").read()))
except OSError as e:
    o("environ: %s\n" % e.strerror)
o("check: pass\n")`,
	}}
	j := newConfigJob(t, config, "KBNODE_TEST_LANDLOCK=0")
	j.cmd.Args = []string{
		setpriv, "--bounding-set", "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+sys_chroot,+setfcap",
		"sh", "-c", `"$0"; exit $?`, j.cmd.Path,
	}
	j.cmd.Path = setpriv
	if _, result := j.run(t); at(result, "runs", "test", "run", "result", "environ") != "Permission denied" {
		t.Errorf("result is %v\n%s", result, j.stderr.String())
	}
}

func TestSecretsAreOutOfSight(t *testing.T) {
	t.Parallel()
	attacks(t, "", `
def look(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""
print(b"5EC2E7" in look("/proc/self/environ"), b"VISIBLE=1" in look("/proc/self/environ"), len(look(f"/proc/{os.getppid()}/environ")), len(os.listdir("/proc/self/fd")))
o("check: pass")`, func(t *testing.T, _ *job, _ int, result map[string]any) {
		// Open: the standard three, POPCORN_FD, and the listing itself.
		must.Equal(t, "False True 0 5\n", at(result, "runs", "test", "run", "stdout"))
	}, func(_ *testing.T, j *job) {
		j.cmd.ExtraFiles = []*os.File{os.Stdin, os.Stdin}
		j.cmd.Env = append(j.cmd.Env, "BUILDKITE_AGENT_ACCESS_TOKEN=5EC2E7", "BUILDKITE_AGENT_JOB_API_TOKEN=5EC2E7", "BUILDKITE_AGENT_JOB_API_SOCKET=5EC2E7",
			"SUBMISSION_PAYLOAD=5EC2E7", "KERNELBOT_PAYLOAD_0=5EC2E7", "VISIBLE=1")
	})
}

func TestPreRunCannotJudge(t *testing.T) {
	t.Parallel()
	honest := report + `import random, reference
try:
    import helper
except ImportError:
    o("helper: none\n")
o("link: %s\n" % os.path.islink("eval.py"))
o("check: " + reference.verdict() + "\ndata: %s\n" % any(map(os.path.exists, ("data.txt", "GNUmakefile"))))`
	for name, submission := range map[string]string{
		"rewriting sources": `for n in ("eval.py", "reference.py"): open(n, "w").write("import os; os.write(3, b'check: pass')")`,
		"a source as a directory": `import os
os.remove("reference.py"); os.mkdir("reference.py"); open("reference.py/x", "w")`,
		"a source as a link": `import os
open("evil", "w").write("def verdict(): return 'pass'"); os.remove("reference.py"); os.symlink("evil", "reference.py")`,
		"a source as a link to the same text": `import os, shutil
shutil.copy("eval.py", "copy.txt"); os.remove("eval.py"); os.symlink("copy.txt", "eval.py")`,
		"a source as a pipe": `import os
os.remove("reference.py"); os.mkfifo("reference.py")`,
		"planted byte code": `import importlib.util, os, py_compile
st = os.stat("reference.py")
open("evil.py", "w").write("def verdict(): return 'pass'".ljust(st.st_size)[:st.st_size])
os.utime("evil.py", (st.st_atime, st.st_mtime))
py_compile.compile("evil.py", importlib.util.cache_from_source("reference.py")); os.remove("evil.py")`,
		"a package over a source": `import os
os.mkdir("reference"); open("reference/__init__.py", "w").write("def verdict(): return 'pass'")`,
		"a pipe that looks like a package": `import os
os.mkfifo("random")`,
		"a file of 8 TiB":            `open("huge", "w").truncate(1 << 43); open("huge.json", "w").truncate(1 << 43)`,
		"a module over Python's own": `open("random.py", "w").write("import os; os.write(3, b'check: pass'); os._exit(0)")`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, result := runPy(t, map[string]string{
				"submission.py": "for n in ('helper.py', 'data.txt', 'GNUmakefile'): open(n, 'w').write('0')\n" + submission,
				"eval.py":       honest,
				"reference.py":  "def verdict():\n    return 'fail' # and enough room for another program\n",
			})
			run := at(result, "runs", "test", "run")
			if at(run, "result", "check") != "fail" || at(run, "result", "helper") != "none" || at(run, "result", "data") != "False" || at(run, "result", "link") != "False" {
				t.Errorf("run is %v\n%s", run, j.stderr.String())
			}
		})
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	config := map[string]any{"lang": "py", "mode": "leaderboard", "main": "eval.py", "ranking_by": "geom", "sources": map[string]string{
		"eval.py": report + daemon + `
if sys.argv[1] == "test": o("check: pass"); sys.exit()
daemon(); print("so far", flush=True); open("now", "w").close(); time.sleep(60)`,
	}}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			cancelWith(t, sig, config)
		})
	}
}

func cancelWith(t *testing.T, sig syscall.Signal, config any) {
	j := newConfigJob(t, config)
	must.Do(t, j.cmd.Start())
	waitFor(t, filepath.Join(j.cmd.Dir, "now"))
	// No signal that can be caught ends or stops the runner, but the one that asks it to end.
	for s := range syscall.Signal(65) {
		switch s {
		case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGKILL, syscall.SIGSTOP,
			32, 33, 34: // Go leaves these to C libraries
			continue
		}
		must.Do(t, j.cmd.Process.Signal(s))
	}
	must.Do(t, j.cmd.Process.Signal(sig))
	code, result := j.wait(t)
	if message, _ := at(result, "error").(string); code != 1 || at(result, "success") != false || !strings.Contains(message, "cancelled") {
		t.Errorf("exit code %d, success %v, error %q", code, at(result, "success"), message)
	}
	if at(result, "runs", "test", "run", "passed") != true || at(result, "runs", "benchmark", "run", "stdout") != "so far\n" ||
		at(result, "runs", "benchmark", "run", "success") != false || at(result, "runs", "leaderboard") != nil {
		t.Errorf("runs are %v", at(result, "runs"))
	}
	if left := processesWith(t, j.cmd.Dir); left != nil {
		t.Errorf("alive: %v", left)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	good := func(change map[string]any) map[string]any {
		c := map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]any{"eval.py": "", "submission.py": ""}}
		for k, v := range change {
			c[k] = v
			if v == "-" {
				delete(c, k)
			}
		}
		return c
	}
	for name, c := range map[string]struct {
		config any
		raw    string // instead of a config
		want   string
	}{
		"no lang":                 {config: good(map[string]any{"lang": "-"}), want: "lang: is missing"},
		"unknown lang":            {config: good(map[string]any{"lang": "rs"}), want: "lang: is 'rs'; it must be one of py, cu"},
		"unknown mode":            {config: good(map[string]any{"mode": "script"}), want: "mode: is 'script'"},
		"two faults":              {config: good(map[string]any{"mode": 1, "tests": nil}), want: "mode: is 1; it must be one of test, benchmark, leaderboard, private, profile, compare; tests: is a null"},
		"thousands of faults":     {config: good(map[string]any{"tests": make([]int, 5000)}), want: "tests[19]: is a number; it must be an object; and more"},
		"no name as main":         {config: good(map[string]any{"main": ""}), want: `main: "" is not among the sources`},
		"main not in sources":     {config: good(map[string]any{"main": "x.py"}), want: `main: "x.py" is not among the sources`},
		"sources are a list":      {config: good(map[string]any{"sources": []int{}}), want: "sources: is a list"},
		"a source without text":   {config: good(map[string]any{"sources": map[string]any{"eval.py": nil}}), want: `sources: "eval.py" is a null`},
		"no benchmark to rank":    {config: good(map[string]any{"mode": "leaderboard"}), want: "benchmarks: mode leaderboard"},
		"tests are no objects":    {config: good(map[string]any{"tests": []int{1}}), want: "tests[0]: is a number"},
		"a limit in words":        {config: good(map[string]any{"test_timeout": "1"}), want: "test_timeout: is '1'"},
		"a seed with NUL":         {config: good(map[string]any{"seed": "\x00"}), want: "seed: holds"},
		"a name above":            {config: good(map[string]any{"sources": map[string]any{"eval.py": "", "../x": ""}}), want: `"../x" leads out`},
		"an absolute name":        {config: good(map[string]any{"sources": map[string]any{"eval.py": "", "/etc/x": ""}}), want: `"/etc/x" leads out`},
		"a name through a link":   {config: good(map[string]any{"sources": map[string]any{"eval.py": "", "up/x": ""}}), want: `"up/x" leads out`},
		"a link that leads out":   {config: good(map[string]any{"sources": map[string]any{"eval.py": "", "out": ""}}), want: `"out" is a link`},
		"a directory not there":   {config: good(map[string]any{"sources": map[string]any{"eval.py": "", "no/x": ""}}), want: "directories are not created"},
		"a directory as a source": {config: good(map[string]any{"sources": map[string]any{"eval.py": "", "dir": ""}}), want: "is not a file but a directory"},
		"an empty name":           {config: good(map[string]any{"sources": map[string]any{"eval.py": "", "": ""}}), want: "is not a file name"},
		"half a surrogate pair":   {raw: payload.Encode([]byte(`{"lang":"py","mode":"test","main":"e","sources":{"e":"\ud800"}}`)), want: "surrogate"},
		"a bomb":                  {raw: payload.Encode(make([]byte, 50<<20)), want: "more than 16777216 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, c.config)
			if c.raw != "" {
				j = newJob(t, "SUBMISSION_PAYLOAD="+c.raw)
			}
			link(t, "..", filepath.Join(j.cmd.Dir, "up"))
			link(t, "../secret", filepath.Join(j.cmd.Dir, "out"))
			for path, text := range map[string]string{"secret": "untouched", "work/eval.py": "untouched", "work/dir/x": ""} {
				write(t, filepath.Join(j.dir, path), text)
			}
			code, result := j.run(t)
			message, _ := at(result, "error").(string)
			if code != 1 || at(result, "success") != false || !strings.Contains(message, c.want) {
				t.Errorf("exit code %d, error %q, want %q in it", code, message, c.want)
			}
			must.Contain(t, j.stderr.String(), message)
			for _, part := range []string{"system", "runs"} {
				if m, ok := at(result, part).(map[string]any); !ok || len(m) > 0 {
					t.Errorf("%s is %v", part, at(result, part))
				}
			}
			for _, path := range []string{"secret", "work/eval.py"} {
				if text, err := os.ReadFile(filepath.Join(j.dir, path)); err != nil || string(text) != "untouched" {
					t.Errorf("%s was touched: %q, %v", path, text, err)
				}
			}
		})
	}
}

func TestWithoutPayload(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		env  []string
		code int
		want string // in the log, stdout for exit code 0
	}{
		{"outside of a job", nil, 1, "set KERNELBOT_PAYLOAD or SUBMISSION_PAYLOAD"},
		{"a build of a push", []string{"BUILDKITE=true", "BUILDKITE_SOURCE=webhook"}, 0, "nothing to evaluate"},
		{"a build through the API", []string{"BUILDKITE=true", "BUILDKITE_SOURCE=api"}, 1, "set KERNELBOT_PAYLOAD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t, c.env...)
			code, result := j.run(t)
			log := j.stderr.String()
			if c.code == 0 {
				log = j.stdout.String()
			}
			if code != c.code || (result == nil) != (c.code == 0) || !strings.Contains(log, c.want) {
				t.Errorf("exit code %d, result %v, log %q", code, result, log)
			}
		})
	}
}

func TestNoPython(t *testing.T) {
	t.Parallel()
	j := newJob(t, "KERNELBOT_PAYLOAD="+payload.Encode([]byte(`{"lang":"py","mode":"test","main":"e","sources":{"e":""}}`)), "PATH=/nowhere:.")
	code, result := j.run(t)
	if message, _ := at(result, "error").(string); code != 1 || !strings.Contains(message, "python3 is not on the PATH; install it") {
		t.Errorf("exit code %d, error %q", code, message)
	}
	if entries, err := os.ReadDir(j.cmd.Dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestThreadsAreReady counts the runner's threads while a program runs: one that then takes all
// processes of the container must not keep Go from making a thread, because Go would exit.
func TestThreadsAreReady(t *testing.T) {
	t.Parallel()
	_, got := runPy(t, map[string]string{"eval.py": `import os
print("check: pass", file=os.fdopen(int(os.environ["POPCORN_FD"]), "w"), flush=True)
print([l for l in open(f"/proc/{os.getppid()}/status") if l.startswith("Threads:")][0].split()[1])
`}, "GOMAXPROCS=1")
	out, _ := at(got, "runs", "test", "run", "stdout").(string)
	if n, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || n < 19 {
		t.Errorf("the runner has %q threads, want 16 spare ones besides those that it needs", out)
	}
}

// TestOutOfMemory has a program that does not say why its run fails: the kernel ended it, with others.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{
		"submission.py": "", "eval.py": report + `
with open("events", "w") as f: f.write("low 0\nmax 9\noom 4\noom_kill 2\noom_group_kill 0\n")
sys.stderr.write("cut"); sys.stderr.flush()
os.kill(os.getpid(), signal.SIGKILL)
`}})
	j.cmd.Env = append(j.cmd.Env, "KBNODE_TEST_MEMORY="+filepath.Join(j.cmd.Dir, "events"))
	_, result := j.run(t)
	must.Equal(t, "cut\nkbnode: memory ran out, and the kernel ended 2 processes\n", fmt.Sprint(at(result, "runs", "test", "run", "stderr")))
}
