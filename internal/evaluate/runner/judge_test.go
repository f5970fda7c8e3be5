package runner

import (
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// judgeConfig is the payload of a submission to the examples' judge.
func judgeConfig(t *testing.T, submission, mode string) map[string]any {
	t.Helper()
	// Both sides spin, which makes many calls slow where tests share two cores.
	judge := strings.Replace(must.Read(t, "../../../examples/eval.py"), "\nMIN_RUNS, MAX_RUNS = 3, 100\n", "\nMIN_RUNS, MAX_RUNS = 3, 20\n", 1)
	return map[string]any{
		"lang": "py", "mode": mode, "main": "eval.py", "test_timeout": 30, "benchmark_timeout": 30, "ranked_timeout": 30,
		"tests": []map[string]any{{"size": 1000}, {"size": 10}}, "benchmarks": []map[string]any{{"size": 2000}}, "seed": 424242,
		"sources": map[string]string{
			"submission.py": submission, "eval.py": judge,
			"reference.py": must.Read(t, "../../../examples/prefix_python/reference.py"),
		},
	}
}

// judged runs the examples' judge on a submission. The kinds are 0 to 3: as root or, if odd, as another user; from 2, without
// Landlock.
func judged(t *testing.T, submission, mode string, kinds []int, check func(t *testing.T, landlock bool, result map[string]any)) {
	t.Helper()
	for _, kind := range kinds {
		user, landlock := []int{0, 65534}[kind%2], []string{"", "0"}[kind/2]
		t.Run(fmt.Sprintf("user=%d,landlock=%s", user, landlock), func(t *testing.T) {
			t.Parallel()
			config := judgeConfig(t, submission, mode)
			if kind == 2 { // the runner looks at all files after each worker
				config["test_timeout"] = 120
			}
			j := newConfigJob(t, config, "KBNODE_TEST_LANDLOCK="+landlock, "TEST_LANDLOCK="+landlock)
			if user != 0 {
				j.become(t, user)
			}
			_, result := j.run(t)
			check(t, landlock == "", result)
			if t.Failed() {
				t.Logf("%v\n%s", result, j.stderr.String())
			}
		})
	}
}

// TestJudgeOutOfReach has a submission look for ways to its judge, and to the worker before it.
func TestJudgeOutOfReach(t *testing.T) {
	t.Parallel()
	judged(t, must.Read(t, "testdata/judge/reach.py"), "test", []int{0, 1, 2, 3}, func(t *testing.T, _ bool, result map[string]any) {
		t.Helper()
		if run := at(result, "runs", "test", "run"); at(run, "passed") != true || at(run, "result", "fence") != "kbnode" {
			t.Errorf("%v", at(run, "result"))
		}
	})
}

// TestJudgeSaysWhereTheLimitCame has a submission that never returns from its first case, and claims others.
func TestJudgeSaysWhereTheLimitCame(t *testing.T) {
	t.Parallel()
	config := judgeConfig(t, honest+`
def custom_kernel(data):
    for fd in range(1, 64):
        try: os.write(fd, b"test.7.spec: mine\n")
        except OSError: pass
    time.sleep(1000)
`, "test")
	config["test_timeout"] = 10
	j := newConfigJob(t, config)
	_, result := j.run(t)
	run := at(result, "runs", "test", "run")
	if said := fmt.Sprint(at(run, "stderr")); at(run, "exit_code") != 114.0 || !strings.Contains(said, "kbnode: the time limit came in test 0 (size: ") || !strings.HasSuffix(said, "); 0 of 2 had passed\n") {
		t.Errorf("%v", run)
	}
}

// honest is the submission that attacks are based on. They replace custom_kernel, and may say wrong, right or either: what
// they do must not pass, must pass in an honest time, or may do one of both.
const honest = `
import ctypes, fcntl, json, mmap, os, signal, sys, threading, time
from array import array
from itertools import accumulate

def honest(data): return array("q", accumulate(data))
def custom_kernel(data): return honest(data)

memory = mmap.mmap(3, 0)
words = memoryview(memory)[:512].cast("Q")
GO, DONE, FAILED, HEAD = 0, 16, 32, 4096
def frames():
    f = sys._getframe(1)
    while f: yield f; f = f.f_back
`

var judgeAttacks = []struct{ name, text, want string }{
	{"clock", `
for name in "perf_counter_ns", "monotonic_ns", "monotonic", "perf_counter", "time", "sleep":
    setattr(time, name, lambda *a: 0)
libc = ctypes.CDLL(None)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
at = ctypes.cast(libc.clock_gettime, ctypes.c_void_p).value
page = at & ~4095
if libc.mprotect(page, 8192, 7) == 0: ctypes.memmove(at, b"\x31\xc0\xc3" if os.uname().machine == "x86_64" else b"\x00\x00\x80\xd2\xc0\x03\x5f\xd6", 3 if os.uname().machine == "x86_64" else 8)
`, "right"},
	{"statistics, check and json", `
import __main__, builtins
for name in "statistics", "judge", "calls", "shortest", "supervise", "store", "leaves", "layout":
    setattr(__main__, name, lambda *a: {"runs": 100, "mean": 1.0, "std": 0.0, "err": 0.0, "best": 1.0, "worst": 1.0})
json.dumps = lambda *a, **k: '{"runs": 100}'
builtins.min = builtins.max = builtins.sum = lambda *a: 1
def custom_kernel(data): return honest(data)
`, "wrong"},
	{"frames", `
import gc
for f in frames():
    for name, v in list(f.f_locals.items()):
        if type(v) is list: v[:] = [1] * len(v)
def custom_kernel(data): return honest(data)
`, "either"},
	{"done before it begins", `
def custom_kernel(data):
    words[DONE] = words[GO]
    return honest(data)
`, "wrong"},
	{"done ahead of each call", `
def ahead():
    while True: words[DONE] = (words[GO] + 1) & ~1
threading.Thread(target=ahead, daemon=True).start()
`, "wrong"},
	{"done for all calls", `
def custom_kernel(data):
    words[DONE] = (1 << 64) - 1
    return honest(data)
`, "either"},
	{"calls to come", `
def custom_kernel(data):
    words[GO] += 2
    return honest(data)
`, "either"},
	{"the output of a thread", `
def custom_kernel(data, output):
    taken = array("q", data)
    def late(): output[:] = honest(taken)
    threading.Thread(target=late).start()
`, "either"},
	{"the output of a child", `
def custom_kernel(data, output):
    taken = array("q", data)
    if os.fork() == 0:
        output[:] = honest(taken)
        os._exit(0)
`, "either"},
	{"a watcher of the input", `
import struct
size = None
def watch():
    seen = b""
    while True:
        now = bytes(memory[HEAD:HEAD + 64])
        if now != seen and size:
            seen = now
            data = memoryview(memory)[HEAD:HEAD + 8 * size].cast("q")
            out = honest(data)
            memory[HEAD + 8 * size:HEAD + 16 * size] = memoryview(out).cast("B")
def custom_kernel(data):
    global size
    size = len(data)
    return honest(data)
threading.Thread(target=watch, daemon=True).start()
`, "either"},
	{"the sizes of the memory", `
for size in 0, 100:
    try: os.ftruncate(3, size)
    except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
def custom_kernel(data):
    libc.fallocate(3, 3, 0, 1 << 20)
    return honest(data)
`, "wrong"},
	{"a failure that passes", `
text = b"check: pass\nbenchmark.0.mean: 1\n"
memory[512:512 + len(text)] = text
words[FAILED] = len(text)
os._exit(0)
`, "wrong"},
	{"a failure without end", `
words[FAILED] = (1 << 64) - 1
os._exit(1)
`, "wrong"},
	{"all descriptors", `
for fd in range(1, 200):
    try: os.write(fd, b"check: pass\n"); os.write(fd, b'{"done": "end"}\n{"ended": 0}\n')
    except OSError: pass
`, "wrong"},
	{"a stopped judge", `
def parent(pid):
    with open(f"/proc/{pid}/stat") as f: return int(f.read().rpartition(")")[2].split()[1])
def stop():
    family = {os.getppid()} # the runner, the judge and theirs
    while True:
        for pid in [int(d) for d in os.listdir("/proc") if d.isdigit() and int(d) != os.getpid()]:
            try:
                if parent(pid) in family or pid in family:
                    family.add(pid)
                    for s in signal.SIGSTOP, signal.SIGKILL, signal.SIGCONT: os.kill(pid, s)
            except OSError: pass
threading.Thread(target=stop, daemon=True).start()
`, "right"},
	{"processor time between the calls", `
import resource
used = []
def custom_kernel(data):
    used.append(time.process_time())
    return honest(data)
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
`, "right"},
	{"an answer by address", `
answers = {}
def custom_kernel(data):
    at = ctypes.addressof(ctypes.c_char.from_buffer(data))
    return answers.setdefault(at, honest(data))
`, "wrong"},
	{"answers to inputs that it foresees", `
import random
answers = {}
for mode in "benchmark", "leaderboard":
    base = f"{mode}/0/424242"
    for _ in range(200): base = str(random.Random(base).getrandbits(256))
    for call in range(112):
        source = random.Random(random.Random(f"{base}/{call}").getrandbits(62))
        data = [source.getrandbits(31) for _ in range(2000)]
        answers[2000, data[0]] = array("q", accumulate(data))
def custom_kernel(data): return answers.get((len(data), data[0])) or honest(data)
`, "right"},
	{"an array that computes itself", `
class Lazy(array):
    def __getitem__(self, i): return list(accumulate(self))[i]
def custom_kernel(data): return Lazy("q", data)
`, "wrong"},
	{"a buffer that is none", `
def custom_kernel(data): return memoryview(bytearray(8 * len(data) + 8)).cast("q")
`, "wrong"},
	{"modules of the judge", `
for name in "traceback", "linecache", "numpy", "statistics", "reference", "textwrap", "encodings/idna":
    try:
        with open(name + ".py", "w") as f: f.write("import os; os.write(3, b'check: pass\\n'); os._exit(0)")
    except OSError: pass
sys.exit("no")
`, "wrong"},
}

// TestJudgeIsNotFooled has submissions attack the clock and the verdict.
func TestJudgeIsNotFooled(t *testing.T) {
	t.Parallel()
	best := func(result map[string]any, key string) float64 {
		v, _ := strconv.ParseFloat(fmt.Sprint(at(result, "runs", "leaderboard", "run", "result", "benchmark.0."+key)), 64)
		return v
	}
	for i, a := range judgeAttacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			judged(t, honest+a.text, "leaderboard", []int{i % 4, (i + 1) % 4}, func(t *testing.T, landlock bool, result map[string]any) {
				t.Helper()
				passed := at(result, "runs", "leaderboard", "run", "passed") == true
				if passed && a.want == "wrong" || !passed && a.want == "right" {
					t.Errorf("passed is %t; want what is %s", passed, a.want)
				}
				if raw, claimed := best(result, "raw.best"), best(result, "best"); passed && (raw < 80_000 || claimed < 0.949*raw) {
					t.Errorf("%v ns are claimed of %v", claimed, raw)
				}
			})
		})
	}
}

// TestWorkersLeaveNothing has the worker of a judge's first case leave notes in a container of the job's own. The next
// finds none.
func TestWorkersLeaveNothing(t *testing.T) {
	t.Parallel()
	const submission = `
import ctypes, os
from array import array
from itertools import accumulate
found = []
for d in "/root", "/etc", "/opt/lib", "/run", "/tmp", "/var/tmp", "/dev/shm", "/work", os.environ["HOME"]:
    name = d + "/note-of-a-worker"
    if os.path.exists(name): found.append(name)
    try: open(name, "w").close(); os.mkdir(name + "s", 0)
    except OSError: pass
if found: raise ValueError(found)
print("left:", sum(os.path.exists(d + "/note-of-a-worker") for d in ("/etc", "/dev/shm", os.environ["HOME"])))
def custom_kernel(data): return array("q", accumulate(data))
`
	for landlock, left := range map[string]string{"": "left: 2", "0": "left: 3"} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			j := containerJob(t, submission, "", "KBNODE_TEST_LANDLOCK="+landlock)
			j.setPayload(t, judgeConfig(t, submission, "test"))
			_, result := j.run(t)
			run := at(result, "runs", "test", "run")
			if out := fmt.Sprint(at(run, "stdout")); at(run, "passed") != true || strings.Count(out, left) != 2 {
				t.Errorf("%v\n%v\n%s", result, out, j.stderr.String())
			}
		})
	}
}

// TestJudgeOnOneCore has a judge that cannot spin beside its worker.
func TestJudgeOnOneCore(t *testing.T) {
	t.Parallel()
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		t.Skip(err)
	}
	j := newConfigJob(t, judgeConfig(t, honest, "leaderboard"))
	j.cmd.Args = []string{taskset, "-c", "0", j.cmd.Path}
	j.cmd.Path = taskset
	_, result := j.run(t)
	if run := at(result, "runs", "leaderboard", "run"); at(run, "passed") != true || at(run, "result", "handover") == nil {
		t.Errorf("%v\n%s", result, j.stderr.String())
	}
}

// TestJudgeLeavesAWorker has a program pass without ending its worker, which changed a file of the image: it may have been
// taken over.
func TestJudgeLeavesAWorker(t *testing.T) {
	t.Parallel()
	const judge = `
import json, socket
control = socket.socket(fileno=int(os.environ["KBNODE_WORKER"]))
change = "open('/etc/ssl/openssl.cnf', 'a').write('x')"
socket.send_fds(control, [json.dumps({"argv": ["/usr/bin/python3", "-c", change]}).encode()], [1, 2])
while "ended" not in json.loads(control.recv(1000)): pass
o("check: pass\n")
`
	for landlock, want := range map[string]bool{"": true, "0": false} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			j := containerJob(t, "", judge, "KBNODE_TEST_LANDLOCK="+landlock)
			code, result := j.run(t)
			if passed := at(result, "runs", "test", "run", "passed") == true; passed != want || (code == 0) != want {
				t.Errorf("exit code %d, %v\n%s", code, result, j.stderr.String())
			}
		})
	}
}

// TestJudgeReadsNoAnswers has a program that asks without reading the answers, and sends the descriptor on which it asks along:
// it stays open in what the runner has not read.
func TestJudgeReadsNoAnswers(t *testing.T) {
	t.Parallel()
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": report + `
import socket, time
control = socket.socket(fileno=int(os.environ["KBNODE_WORKER"]))
control.setblocking(False)
o("check: pass\n")
end = time.monotonic() + 1
while time.monotonic() < end:
    try: socket.send_fds(control, [b'{"do": "%s"}' % (b"x" * 4000)], [control.fileno()])
    except BlockingIOError: time.sleep(0.01)
os._exit(0)
`},
	})
	defer time.AfterFunc(must.Patience, func() { _ = j.cmd.Process.Kill() }).Stop()
	code, result := j.run(t)
	passes(t, j, code, result)
}

// TestWorkersEndWhole has a judge end a worker that has many processes, one of which takes long to end, and compilers: in
// groups of their own. None may be there when the judge measures what the hand-over takes.
func TestWorkersEndWhole(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	const judge = report + `
import json, socket, sys, time
control = socket.socket(fileno=int(os.environ["KBNODE_WORKER"]))
def left(worker):
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit(): continue
            stat = open("/proc/%s/stat" % name).read().rpartition(")")[2].split()
            if int(stat[2]) == worker: yield "worker's"
            if b"slowly.c" in open("/proc/%s/cmdline" % name, "rb").read() and int(stat[1]) == os.getppid(): yield "compiler" # not its client
        except OSError: pass
start = """
import mmap, os, subprocess, threading, time
subprocess.Popen(["cc", "-c", "slowly.c"])
def programs():
    while True: subprocess.run(["/bin/true"])
for _ in range(4): threading.Thread(target=programs).start()
for i in range(20):
    if os.fork() == 0:
        m = mmap.mmap(-1, 1 << (29 if i == 0 else 12))
        for at in range(0, len(m), 4096): m[at] = 1
        time.sleep(1000)
time.sleep(1000)
"""
socket.send_fds(control, [json.dumps({"argv": [sys.executable, "-c", start]}).encode()], [1, 2])
worker = json.loads(control.recv(1000))["pid"]
end = time.monotonic() + 60
while not ("compiler" in left(worker) and len(list(left(worker))) > 20) and time.monotonic() < end: time.sleep(0.01)
time.sleep(1)
before = set(left(worker))
control.send(b'{"do": "end"}')
answer = json.loads(control.recv(1000))
o("ended: %s, of %s are left: %s\ncheck: pass\n" % (answer.get("done"), sorted(before), list(left(worker))))
`
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": judge},
	})
	j.standIn(t, "cc", "while :; do :; done\n")
	_, result := j.run(t)
	must.Equal(t, "end, of ['compiler', \"worker's\"] are left: []", fmt.Sprint(at(result, "runs", "test", "run", "result", "ended")))
	if t.Failed() {
		t.Logf("%v\n%s", result, j.stderr.String())
	}
}

// TestJudgeKeepsItsCore has a submission, its threads, its programs and its compilers reach for the judge's core: where the
// judge waits, one of them would work.
func TestJudgeKeepsItsCore(t *testing.T) {
	t.Parallel()
	if runtime.NumCPU() < 2 {
		t.Skip("there is one core")
	}
	const submission = honest + `
import struct, subprocess
libc, all = ctypes.CDLL(None), ctypes.create_string_buffer(b"\xff" * 128, 128)
others = os.sched_getaffinity(0)
def reach():
    os.sched_setaffinity(0, range(os.cpu_count()))
    libc.sched_setaffinity(0, 128, all)
    libc.sched_setaffinity(threading.get_native_id(), 128, all)
    found.append(os.sched_getaffinity(0))
    # size, policy, flags, nice, priority, runtime (the slice), deadline, period; SYS_sched_setattr and _getattr
    attributes = ctypes.create_string_buffer(struct.pack("<IIQiIQQQ", 48, 0, 0, 0, 0, 90_000_000, 0, 0), 48)
    now = ctypes.create_string_buffer(48)
    set, get = (314, 315) if os.uname().machine == "x86_64" else (274, 275)
    if libc.syscall(set, 0, attributes, 0) or libc.syscall(get, 0, now, 48, 0): raise OSError
    slices.append(struct.unpack("<IIQiIQQQ", now.raw)[5])
found, slices = [], []
reach()
threads = [threading.Thread(target=reach)]
for t in threads: t.start(); t.join()
child = "import os; os.sched_setaffinity(0, range(os.cpu_count())); print(len(os.sched_getaffinity(0)))"
counts = [subprocess.check_output([sys.executable, "-c", child])]
if "KBNODE_COMPILERS" in os.environ: counts.append(subprocess.check_output(["cc", "-c", "cores.c"]))
if found != [others] * 2 or any(int(c) != len(others) for c in counts): raise ValueError((others, found, counts))
if 90_000_000 in slices: raise ValueError(slices)
print(len(counts), "kept")
`
	for landlock, kept := range map[string]string{"": "2 kept", "0": "1 kept"} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			if landlock == "" {
				needCompilers(t)
			}
			j := newConfigJob(t, judgeConfig(t, submission, "benchmark"), "KBNODE_TEST_LANDLOCK="+landlock)
			j.standIn(t, "cc", "nproc\n")
			_, result := j.run(t)
			run := at(result, "runs", "benchmark", "run")
			if at(run, "passed") != true || !strings.Contains(fmt.Sprint(at(run, "stdout")), kept) {
				t.Errorf("%v\n%s", at(run, "result"), j.stderr.String())
			}
		})
	}
}

// TestWorkerCores has a judge ask for cores that cannot be.
func TestWorkerCores(t *testing.T) {
	t.Parallel()
	for _, core := range []int{-1, 1024} {
		got := (&workers{}).answer(message{text: fmt.Appendf(nil, `{"argv": ["python3"], "cores": [0, %d]}`, core)})
		must.Equal(t, fmt.Sprintf("core %d cannot be: give some of those that sched_getaffinity returns, below 1024", core), got.Error)
	}
}

// TestWorkerChoosesNoCall has a submission wake up so late that its case would end after the calls that it likes.
func TestWorkerChoosesNoCall(t *testing.T) {
	t.Parallel()
	const submission = honest + `
import socket
received, calls, slept = socket.socket.recv, [0], []
def late(self, *args):
    message = received(self, *args)
    if calls[0] >= 5 and not slept: slept.append(time.sleep(1.2))
    return message
socket.socket.recv = late
def custom_kernel(data):
    calls[0] += 1
    for _ in range(1 + calls[0] % 2): result = honest(data) # the mean is not known early
    return result
`
	config := judgeConfig(t, submission, "benchmark")
	sources, _ := config["sources"].(map[string]string)
	short := strings.Replace(sources["eval.py"], "\nMAX_SECONDS = 10 ", "\nMAX_SECONDS = 1 ", 1)
	must.Equal(t, true, short != sources["eval.py"])
	sources["eval.py"] = short
	j := newConfigJob(t, config)
	_, result := j.run(t)
	run := at(result, "runs", "benchmark", "run")
	if runs, _ := strconv.Atoi(fmt.Sprint(at(run, "result", "benchmark.0.runs"))); runs < 10 {
		t.Errorf("%v\n%s", run, j.stderr.String())
	}
}

// TestWorkerTakesNoTime has a submission use up the time of its calls in the first one, which does not count, and be late before
// those that do.
func TestWorkerTakesNoTime(t *testing.T) {
	t.Parallel()
	config := judgeConfig(t, honest+`
calls = [0]
def custom_kernel(data):
    calls[0] += 1
    if calls[0] == 1: time.sleep(1.2)
    elif words[GO] & 1 and calls[0] < 20: time.sleep(0.05)
    for _ in range(1 + calls[0] % 2): result = honest(data) # the mean is not known early
    return result
`, "benchmark")
	sources, _ := config["sources"].(map[string]string)
	short := strings.Replace(sources["eval.py"], "\nMAX_SECONDS = 10 ", "\nMAX_SECONDS = 1 ", 1)
	must.Equal(t, true, short != sources["eval.py"])
	sources["eval.py"] = short
	j := newConfigJob(t, config)
	_, result := j.run(t)
	run := at(result, "runs", "benchmark", "run")
	number := func(key string) int {
		n, _ := strconv.Atoi(fmt.Sprint(at(run, "result", "benchmark.0."+key)))
		return n
	}
	if number("runs") < 10 || number("waited") < 200_000_000 || number("disturbed") > number("runs") {
		t.Errorf("%v\n%s", run, j.stderr.String())
	}
}

// TestJudgeWarmsUp has a submission tell that it is called again with an input that it had, before one that counts. If
// cores slept until then, one that spins between its calls, or calls itself, would be faster than another with the same kernel.
func TestJudgeWarmsUp(t *testing.T) {
	t.Parallel()
	const submission = honest + `
had = []
def custom_kernel(data):
    if had and had[-1] != data[0] and had[-2:-1] == had[-1:]: print("warm", flush=True)
    had.append(data[0])
    return honest(data)
`
	j := newConfigJob(t, judgeConfig(t, submission, "benchmark"))
	_, result := j.run(t)
	run := at(result, "runs", "benchmark", "run")
	if at(run, "passed") != true || !strings.Contains(fmt.Sprint(at(run, "stdout")), "warm") {
		t.Errorf("%v\n%s", run, j.stderr.String())
	}
}

// TestJudgeSeesTheEnd has a process end before it has read what the judge sent.
func TestJudgeSeesTheEnd(t *testing.T) {
	t.Parallel()
	const script = `
import os, runpy, socket, subprocess, types
judge = types.SimpleNamespace(**runpy.run_path("../../../examples/eval.py"))
child = subprocess.Popen(["sleep", "60"])
worker = judge.Worker.__new__(judge.Worker)
worker.number, worker.spin = 2, False
worker.process = types.SimpleNamespace(code=child.poll)
worker.memory = types.SimpleNamespace(flags=[0] * 64)
worker.channel, theirs = socket.socketpair()
worker.channel.send(b"x")
theirs.close()
child.kill()
try: worker.wait(2)
except judge.Ended as e: print(e)
`
	out, err := exec.Command("python3", "-c", script).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "signal 9") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestJudgeStops has calls that take the same time, and others: three that are the same by chance are not enough.
func TestJudgeStops(t *testing.T) {
	t.Parallel()
	const script = `
import itertools, runpy, types
module = runpy.run_path("../../../examples/eval.py")
calls = module["calls"]
def runs(times, seconds):
    calls.__globals__["MAX_SECONDS"] = seconds
    case = types.SimpleNamespace(packed=lambda call: (0, 0), wrong=lambda data, worker: "")
    times = iter(times)
    worker = types.SimpleNamespace(wake=lambda: None, warm_up=lambda packed, took: None, call=lambda packed: next(times))
    return len(calls(case, worker, True)[0])
print(runs(itertools.repeat(1000), 10), runs([0, 5, 5, 5] + 97 * [8, 9], 10), runs(itertools.cycle([1, 2]), 0))
`
	out, err := exec.Command("python3", "-c", script).CombinedOutput()
	if err != nil || string(out) != "10 100 3\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestWorkerLeavesNothingInFlight has a worker send a file that its judge does not receive.
func TestWorkerLeavesNothingInFlight(t *testing.T) {
	t.Parallel()
	const script = `
import os, runpy, socket, types
judge = types.SimpleNamespace(**runpy.run_path("../../../examples/eval.py"))
worker = judge.Worker.__new__(judge.Worker)
worker.process, worker.gpu = types.SimpleNamespace(end=lambda: None), []
worker.channel, theirs = socket.socketpair()
read, write = os.pipe()
socket.send_fds(theirs, [b"x"], [write])
theirs.close()
os.close(write)
worker.end()
os.set_blocking(read, False)
print(os.read(read, 1))
`
	out, err := exec.Command("python3", "-c", script).CombinedOutput()
	if err != nil || string(out) != "b''\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestWorkerReadsNoCases has TMPDIR in the job's directory, and so the judge's home, where the file of its cases is.
func TestWorkerReadsNoCases(t *testing.T) {
	t.Parallel()
	const submission = honest + `
import glob
found = []
for name in glob.glob("**", recursive=True, include_hidden=True):
    try:
        if open(name, "rb").read(6) == b"size: ": found.append(name)
    except OSError: pass
if found: raise ValueError(found)
open("reference.py").close()
`
	for _, user := range []int{0, 65534} {
		j := newConfigJob(t, judgeConfig(t, submission, "test"), "TMPDIR=.")
		if user != 0 {
			j.become(t, user)
		}
		_, result := j.run(t)
		if run := at(result, "runs", "test", "run"); at(run, "passed") != true {
			t.Errorf("user %d: %v\n%s", user, at(run, "result"), j.stderr.String())
		}
	}
}
