package runner

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// judgeConfig is the payload of a submission to the examples' judge.
func judgeConfig(t *testing.T, submission, mode string) map[string]any {
	t.Helper()
	return map[string]any{
		"lang": "py", "mode": mode, "main": "eval.py", "test_timeout": 30, "benchmark_timeout": 30, "ranked_timeout": 30,
		"tests": []map[string]any{{"size": 1000}, {"size": 10}}, "benchmarks": []map[string]any{{"size": 2000}}, "seed": 424242,
		"sources": map[string]string{
			"submission.py": submission, "eval.py": must.Read(t, "../../examples/eval.py"),
			"reference.py": must.Read(t, "../../examples/prefix_python/reference.py"),
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
			j := newConfigJob(t, judgeConfig(t, submission, mode), "KBNODE_TEST_LANDLOCK="+landlock, "TEST_LANDLOCK="+landlock)
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
`, "wrong"},
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

// TestWorkerStopsWithinAFork has a submission start programs in a thread all the time: its process waits for a child that
// is stopped before it has executed a program.
func TestWorkerStopsWithinAFork(t *testing.T) {
	t.Parallel()
	const submission = honest + `
import subprocess
def start():
    while True: subprocess.run(["/bin/true"])
for _ in range(4): threading.Thread(target=start, daemon=True).start()
`
	judged(t, submission, "benchmark", []int{0, 3}, func(t *testing.T, _ bool, result map[string]any) {
		t.Helper()
		if run := at(result, "runs", "benchmark", "run"); at(run, "passed") != true {
			t.Errorf("%v", at(run, "result"))
		}
	})
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

// TestCompilersStopWithTheirWorker has a worker compile while it is stopped: the compiler is in another group.
func TestCompilersStopWithTheirWorker(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	const judge = report + `
import json, socket, sys, time
control = socket.socket(fileno=int(os.environ["KBNODE_WORKER"]))
def ask(**order):
    control.send(json.dumps(order).encode())
    answer = json.loads(control.recv(1000))
    assert "error" not in answer and "ended" not in answer, answer
def compilers():  # of the runner, not their clients
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and b"slowly.c" in open("/proc/%s/cmdline" % name, "rb").read():
                stat = open("/proc/%s/stat" % name).read().rpartition(")")[2].split()
                if int(stat[1]) == os.getppid(): yield stat[0], int(stat[11]) + int(stat[12])
        except OSError: pass
start = "import subprocess, time; subprocess.Popen(['cc', '-c', 'slowly.c']); time.sleep(1000)"
socket.send_fds(control, [json.dumps({"argv": [sys.executable, "-c", start]}).encode()], [1, 2])
control.recv(1000)
end = time.monotonic() + 60
while not list(compilers()) and time.monotonic() < end: time.sleep(0.01)
states = []
for order in "stop", "continue", "stop", "continue":
    ask(do=order)
    time.sleep(0.2)
    before = list(compilers())
    time.sleep(0.3)
    after = list(compilers())
    states.append("stopped" if before == after and all(state == "T" for state, _ in after) else "runs")
ask(do="end")
o("states: %s\ncheck: pass\n" % " ".join(states))
`
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "sources": map[string]string{"submission.py": "", "eval.py": judge},
	})
	j.standIn(t, "cc", "while :; do :; done\n")
	_, result := j.run(t)
	must.Equal(t, "stopped runs stopped runs", fmt.Sprint(at(result, "runs", "test", "run", "result", "states")))
	if t.Failed() {
		t.Logf("%v\n%s", result, j.stderr.String())
	}
}

// TestWorkerStaysStopped has a submission ask for a signal that continues it after each stop, or a while after it.
func TestWorkerStaysStopped(t *testing.T) {
	t.Parallel()
	const submission = honest + `
class Event(ctypes.Structure): _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]
libc, id = ctypes.CDLL(None), ctypes.c_void_p()
signal.signal(signal.SIGCONT, lambda *a: None)
assert libc.timer_create(1, ctypes.byref(Event(0, signal.SIGCONT, 0)), ctypes.byref(id)) == 0
def custom_kernel(data):
    libc.timer_settime(id, 0, (ctypes.c_long * 4)(0, 0, 0, 20_000_000), None)
    return honest(data)
`
	judged(t, submission, "benchmark", []int{0, 1, 2, 3}, func(t *testing.T, _ bool, result map[string]any) {
		t.Helper()
		run := at(result, "runs", "benchmark", "run")
		if at(run, "passed") != false || !strings.Contains(fmt.Sprint(at(run, "result", "benchmark.0.error")), "while all of them were stopped") {
			t.Errorf("%v", at(run, "result"))
		}
	})
}

// TestJudgeSeesTheEnd has a process end between a call and the judge's look at it, and before it has read what the judge
// sent.
func TestJudgeSeesTheEnd(t *testing.T) {
	t.Parallel()
	const script = `
import os, runpy, socket, subprocess, types
judge = types.SimpleNamespace(**runpy.run_path("../../examples/eval.py"))
child = subprocess.Popen(["sleep", "60"])
worker = judge.Worker.__new__(judge.Worker)
worker.number, worker.spin, worker.status = 2, False, open(f"/proc/{child.pid}/status", "rb", buffering=0)
worker.process = types.SimpleNamespace(code=child.poll)
worker.memory = types.SimpleNamespace(flags=[0] * 64)
worker.channel, theirs = socket.socketpair()
worker.channel.send(b"x")
worker.switches()
theirs.close()
child.kill()
for f in (lambda: worker.wait(2)), worker.switches:
    try: f()
    except judge.Ended as e: print(e)
    child.wait()
`
	out, err := exec.Command("python3", "-c", script).CombinedOutput()
	if err != nil || strings.Count(string(out), "signal 9") != 2 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestOrderToEnded has a judge order what the worker that has ended cannot do. It learns of the end next.
func TestOrderToEnded(t *testing.T) {
	t.Parallel()
	c := exec.Command("true")
	must.Do(t, c.Run())
	for _, do := range []string{"stop", "continue"} {
		w := workers{now: &worker{pid: c.Process.Pid}}
		if answer := w.answer(message{text: []byte(`{"do": "` + do + `"}`)}); answer != nil {
			t.Errorf("%s: %+v", do, *answer)
		}
	}
}
