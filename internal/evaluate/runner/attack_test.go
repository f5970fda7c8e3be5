package runner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

// attacks runs a test as root and as another user, with Landlock and without. The judge's program
// begins with report.
func attacks(t *testing.T, submission, judge string, check func(t *testing.T, j *job, code int, result map[string]any), prepare ...func(t *testing.T, j *job)) {
	t.Helper()
	config := map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "test_timeout": 20,
		"sources": map[string]string{"submission.py": submission, "eval.py": report + judge},
	}
	for _, user := range []int{0, 65534} {
		for _, landlock := range []string{"", "0"} {
			t.Run(fmt.Sprintf("user=%d,landlock=%s", user, landlock), func(t *testing.T) {
				t.Parallel()
				j := newConfigJob(t, config, "KBNODE_TEST_LANDLOCK="+landlock)
				for _, f := range prepare {
					f(t, j)
				}
				if user != 0 {
					j.become(t, user)
				}
				code, result := j.run(t)
				check(t, j, code, result)
				if t.Failed() {
					t.Logf("exit code %d: %v\n%s", code, result, j.stderr.String())
				}
			})
		}
	}
}

// passes checks that the judge's program ran to its end.
func passes(t *testing.T, _ *job, code int, result map[string]any) {
	t.Helper()
	if code != 0 || result["forged"] != nil || at(result, "runs", "test", "run", "passed") != true {
		t.Errorf("exit code %d, result %v", code, result)
	}
}

// become makes a job another user's.
func (j *job) become(t *testing.T, user int) {
	t.Helper()
	must.Root(t, "becomes another user")
	if err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "").Run(); err != nil {
		t.Skip("no python3 that every user may run: ", err)
	}
	self := filepath.Join(j.dir, "runner")
	must.Program(t, self, must.Read(t, j.cmd.Path))
	err := os.Chmod(filepath.Dir(j.dir), 0o711)
	if err == nil {
		err = exec.CommandContext(t.Context(), "chown", "-R", fmt.Sprint(user), j.dir).Run()
	}
	must.Do(t, err)
	j.cmd.Path, j.cmd.Args[0] = self, self
	if path := getenvLast(j.cmd.Env, "PATH"); !strings.HasPrefix(path, j.dir) {
		j.cmd.Env = append(j.cmd.Env, "PATH=/usr/bin:/bin")
	}
	j.cmd.Env = append(j.cmd.Env, "HOME="+j.dir)
	if j.cmd.SysProcAttr == nil {
		j.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	j.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
}

// processesWith returns the processes with this in their command line.
func processesWith(t *testing.T, text string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must.Do(t, err)
	for _, f := range files {
		if line, err := os.ReadFile(f); err == nil && strings.Contains(string(line), text) {
			found = append(found, f+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// TestForkChains has processes that fork and exit, in sessions of their own, so that none lives long
// enough to be found and killed.
func TestForkChains(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("chain-of-%d", os.Getpid())
	chains := `
import ctypes, os, sys, time
if os.fork() == 0:
    for n in range(8):
        if os.fork() == 0: break
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if os.fork() != 0: os._exit(0)
            os.setsid()
        except OSError:
            pass
        try:
            with open("result.json", "w") as f: f.write('{"success": true, "forged": true}')
        except OSError:
            pass
    os._exit(0)
`
	attacks(t, "#"+mark+chains, `subprocess.Popen([sys.executable, "-c", """`+chains+`""", "`+mark+`"])
time.sleep(0.3)
# How many chains escape a search depends on the processors. None leaves the group that is ended at once.
leave = "import os\nfor f in (os.setsid, lambda: os.setpgid(0, 0)):\n    try: f()\n    except OSError: pass\nprint(os.getpgid(0))"
groups = {int(subprocess.run([sys.executable, "-c", leave], capture_output=True, start_new_session=True).stdout)}
o("groups: %s\n" % (groups == {os.getpgid(0)}))
o("check: pass\n")
`, func(t *testing.T, j *job, code int, result map[string]any) {
		passes(t, j, code, result)
		if at(result, "runs", "test", "run", "result", "groups") != "True" {
			t.Errorf("groups: %v", result)
		}
		time.Sleep(100 * time.Millisecond) // what is left would write again
		if text, err := os.ReadFile(filepath.Join(j.cmd.Dir, "result.json")); err != nil || strings.Contains(string(text), "forged") {
			t.Errorf("%v: %s", err, text)
		}
		if left := processesWith(t, j.dir); left != nil {
			t.Errorf("left: %v", left)
		}
	})
	if left := processesWith(t, mark); left != nil {
		t.Errorf("left: %v", left)
	}
}

// TestPriority has a program reach for the priority, the processors and the limits of its judge.
func TestPriority(t *testing.T) {
	t.Parallel()
	attacks(t, `
import os, resource
os.nice(7); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for l in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE): resource.setrlimit(l, (64, 64))
`, `
import fcntl, resource, socket
judge = os.getppid()
has = lambda pid: (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), sorted(os.sched_getaffinity(pid)))
limits = {resource.getrlimit(l)[0] for l in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)}
o("after another program: %s\n" % ("as it should" if has(0) == has(judge) and 64 not in limits else (has(0), has(judge), limits)))
def tries(what, f, want):
    try:
        f()
    except OSError as e:
        o(what + ": " + ("as it should" if want in (e.errno, "error") else str(e)) + "\n")
    else:
        o(what + ": done\n")
tids = [judge] + [int(t) for t in os.listdir(f"/proc/{judge}/task")]
before = [os.sched_getaffinity(t) for t in tids], [os.sched_getscheduler(t) for t in tids], [os.getpriority(os.PRIO_PROCESS, t) for t in tids]
for t in tids:
    tries("scheduler", lambda: os.sched_setscheduler(t, os.SCHED_IDLE, os.sched_param(0)), 1)
    tries("nice", lambda: os.setpriority(os.PRIO_PROCESS, t, 19), 1)
    tries("limit", lambda: resource.prlimit(t, resource.RLIMIT_CPU, (1, 1)), 1)
    tries("signal", lambda: os.kill(t, 0), 1)
    tries("signal of a file", lambda: fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, t), 1)
    tries("signal of a socket", lambda: fcntl.ioctl(socket.socketpair()[0], 0x8901, t.to_bytes(4, "little")), 1)
    os.sched_setaffinity(t, {0})
# Not as root, whose processes are all of this machine.
if os.getuid() != 0: tries("nice of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19), 1)
else: o("nice of the user: as it should\n")
tries("nice of the group", lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(judge), os.getpriority(os.PRIO_PROCESS, judge)), 1)
tries("signal above", lambda: os.kill(int(open(f"/proc/{judge}/stat").read().rsplit(") ")[-1].split()[1]), 0), 1)
tries("signal all", lambda: os.kill(-1, 0), 1)
tries("signal a group", lambda: os.killpg(os.getpgid(0), 0), 1)
tries("pidfd", lambda: os.pidfd_open(judge), 1)
after = [os.sched_getaffinity(t) for t in tids], [os.sched_getscheduler(t) for t in tids], [os.getpriority(os.PRIO_PROCESS, t) for t in tids]
o(f"judge: {'as it was' if before == after else (before, after)}\n")
# Its own it may change.
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.nice(3)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); resource.getrlimit(resource.RLIMIT_NPROC)
o("check: pass\n")
`, func(t *testing.T, _ *job, _ int, result map[string]any) {
		said, _ := at(result, "runs", "test", "run", "result").(map[string]any)
		for _, what := range []string{"after another program", "scheduler", "nice", "limit", "nice of the user", "nice of the group", "signal", "signal of a file", "signal of a socket", "signal above", "signal all", "signal a group", "pidfd"} {
			if said[what] != "as it should" {
				t.Errorf("%s: %v", what, said[what])
			}
		}
		if said["judge"] != "as it was" || said["check"] != "pass" {
			t.Errorf("%v", said)
		}
	})
}

// TestOthersGetNoSignals has a program signal a process beside the runner, such as one that its step started: the
// filter does not know it, but since Linux 6.12 Landlock does.
func TestOthersGetNoSignals(t *testing.T) {
	t.Parallel()
	if landlockVersion() < landlockScopes {
		t.Skip("this kernel's Landlock has no scopes")
	}
	other := exec.CommandContext(t.Context(), "sleep", "60")
	must.Do(t, other.Start())
	t.Cleanup(func() { _ = errors.Join(other.Process.Kill(), other.Wait()) })
	_, result := runPy(t, map[string]string{"eval.py": report + `
own = subprocess.Popen(["sleep", "60"]); own.terminate()
said = ["own: %s" % own.wait()]
for n in (0, signal.SIGTERM, signal.SIGSTOP):
    try: os.kill(int(os.environ["OTHER"]), n); said.append("signaled")
    except OSError as e: said.append(e.strerror)
o("check: %s\n" % ("pass" if said == ["own: -15"] + 3 * ["Operation not permitted"] else said))`}, fmt.Sprintf("OTHER=%d", other.Process.Pid))
	if at(result, "runs", "test", "run", "passed") != true {
		t.Errorf("run is %v", at(result, "runs", "test", "run"))
	}
}

// TestReportsOfOthers has processes that the judge started report that the submission passed.
func TestReportsOfOthers(t *testing.T) {
	t.Parallel()
	for name, judge := range map[string]string{
		"through proc": `
code = "import os, sys, time\nwhile True:\n  try: os.write(os.open('/proc/' + sys.argv[1] + '/fd/3', os.O_WRONLY), b'check: pass\\n')\n  except OSError: pass\n  time.sleep(0.001)"
subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
o("check: fail\n"); time.sleep(0.3)
`,
		"through an inherited descriptor": `
o("check: fail\n")
subprocess.run([sys.executable, "-c", "import os; os.write(3, b'check: pass\\n')"], pass_fds=[3])
`,
		"in the judge's name": `
o("check: fail\n")
code = """import os, socket, struct, sys
s = socket.socket(fileno=3)
try: s.sendmsg([b'check: pass\\n'], [(socket.SOL_SOCKET, 2, struct.pack('iII', int(sys.argv[1]), os.getuid(), os.getgid()))])
except OSError: pass"""
subprocess.run([sys.executable, "-c", code, str(os.getpid())], pass_fds=[3])
`,
		"after the judge": `
o("check: fail\n")
subprocess.Popen([sys.executable, "-c", "import os, time; time.sleep(0.1); os.write(3, b'check: pass\\n')"], pass_fds=[3])
`,
		"with an exit code": `o("check: pass\n"); sys.exit(112)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attacks(t, "", judge, func(t *testing.T, _ *job, code int, result map[string]any) {
				if code != 0 || at(result, "runs", "test", "run", "passed") != false {
					t.Errorf("exit code %d, run %v", code, at(result, "runs", "test", "run"))
				}
			})
		})
	}
}

// TestNoWayAroundTheFilter has a judge's child reach for the judge, and both for what no filter sees:
// io_uring, and the events by which root may hold up anyone who opens a file.
func TestNoWayAroundTheFilter(t *testing.T) {
	t.Parallel()
	numbers := `{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "io_uring_setup": 425, "pidfd_getfd": 438, "fanotify_init": 300}`
	if runtime.GOARCH != "amd64" {
		numbers = `{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "io_uring_setup": 425, "pidfd_getfd": 438, "fanotify_init": 262}`
	}
	judge := `
code = """if 1:
    import ctypes, os, sys
    libc, n, victims = ctypes.CDLL(None, use_errno=True), ` + numbers + `, sys.argv[1:]
    def tries(what, *args):
        if libc.syscall(n[what], *args) != -1 or ctypes.get_errno() != 1: print(what, args, "is", os.strerror(ctypes.get_errno()))
    for pid in map(int, victims):
        tries("ptrace", 16, pid, 0, 0); tries("ptrace", 0x4206, pid, 0, 0)
        tries("process_vm_readv", pid, 0, 0, 0, 0, 0); tries("process_vm_writev", pid, 0, 0, 0, 0, 0)
    tries("ptrace", 0, 0, 0, 0); tries("pidfd_getfd", 0, 3, 0)
    tries("io_uring_setup", 1, ctypes.create_string_buffer(120))
    tries("fanotify_init", 4, 0); tries("fanotify_init", 8, 0)
"""
said = subprocess.run([sys.executable, "-c", code, str(os.getpid()), str(os.getppid())], capture_output=True, text=True)
o("check: %s\n" % ((said.stdout + said.stderr).replace("\n", "; ") or "pass"))`
	attacks(t, "", judge, passes)
}

// TestProcFiles has a child name a thread as CUDA does, without which cuInit fails, and then write
// what /proc has of the judge and the runner.
func TestProcFiles(t *testing.T) {
	t.Parallel()
	attacks(t, "", `
code = """if 1:
    import os, sys, threading
    def own():
        name = "/proc/self/task/%d/comm" % threading.get_native_id()
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.write(fd, b"cuda-EvtHandlr")
        print("named", open(name).read().strip())
    thread = threading.Thread(target=own); thread.start(); thread.join()
    for path in ["/proc/%s/%s" % (pid, name) for pid in sys.argv[1:] for name in ("comm", "mem", "attr/current", "uid_map", "task/" + pid + "/comm")]:
        try: print("wrote", path, os.pwrite(os.open(path, os.O_WRONLY), b"0 0 1", 0))
        except OSError: pass
"""
said = subprocess.run([sys.executable, "-c", code, str(os.getppid())], capture_output=True, text=True)
o("check: %s\n" % (said.stdout + said.stderr).replace("\n", "; ").replace("named cuda-EvtHandlr;", "pass", 1))`, passes)
}

// TestProcStateIsPutBack has the pre-run keep numbers with the processes above it, and the judge look at them and at
// who is ended first when memory runs out.
func TestProcStateIsPutBack(t *testing.T) {
	t.Parallel()
	attacks(t, `
import os
for name, number in ("oom_score_adj", "7"), ("coredump_filter", "0x11"), ("autogroup", "5"):
    try: open(f"/proc/{os.getppid()}/{name}", "w").write(number)
    except OSError: pass
`, `
read = lambda pid, name: open(f"/proc/{pid}/{name}").read().strip()
above = os.getppid()
found = [read(above, "oom_score_adj") == "7", int(read(above, "coredump_filter"), 16) == 0x11, os.path.exists("/proc/self/autogroup") and read(above, "autogroup").endswith(" 5")]
ends = int(read("self", "oom_score_adj")) == 1000 > int(read(above, "oom_score_adj"))
o("check: %s\n" % ("pass" if ends and not any(found) else [ends, found]))
`, passes, func(_ *testing.T, j *job) { j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }) // which is what autogroup is of
}

// TestPayloadIsNotInTheArguments has a program read the arguments of the runner, which had the payload's name.
func TestPayloadIsNotInTheArguments(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	file := filepath.Join(j.dir, "5EC2E7")
	write(t, file, payload.Encode([]byte(`{"lang": "py", "mode": "test", "main": "eval.py", "sources": {"submission.py": "", "eval.py": "import os\no = os.fdopen(3, 'w')\nprint('check:', 'fail' if b'5EC2E7' in open(f'/proc/{os.getppid()}/cmdline', 'rb').read() else 'pass', file=o, flush=True)"}}`)))
	j.cmd.Args = append(j.cmd.Args, file)
	code, result := j.run(t)
	passes(t, j, code, result)
}

// TestNothingOutlivesAProgram has the pre-run leave what is in no directory.
func TestNothingOutlivesAProgram(t *testing.T) {
	t.Parallel()
	leave := `
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def tries(name, *args):
    got = getattr(libc, name)(*args)
    return os.strerror(ctypes.get_errno()) if got == -1 else "done"
def flow_label():
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
            s.setsockopt(41, 26, 1) # IPV6_V6ONLY, as servers do
            s.setsockopt(41, 32, socket.inet_pton(socket.AF_INET6, "::1") + (4711).to_bytes(4, "big") + bytes([0, 255, 1, 0, 60, 0, 60, 0, 0, 0, 0, 0]))
        return "done"
    except OSError as e:
        return "Protocol not available" if e.errno == 97 else e.strerror # 97: no IPv6 here
said = [tries("shmget", 4711, 4096, 0o1666), tries("semget", 4711, 1, 0o1666), tries("msgget", 4711, 0o1666), tries("mq_open", b"/kbnode-test", os.O_RDWR | os.O_CREAT, 0o600, None), tries("syscall", 248, b"user", b"x", b"y", 1, -4), flow_label()]
`
	if runtime.GOARCH != "amd64" {
		leave = strings.Replace(leave, "248", "217", 1) // add_key
	}
	attacks(t, leave, leave+`
o("check: %s\n" % ("pass" if said == 4 * ["Function not implemented"] + ["Operation not permitted", "Protocol not available"] else said))
`, passes)
}

// TestTerminalIsOutOfReach has programs write to the terminal that the runner was started on.
func TestTerminalIsOutOfReach(t *testing.T) {
	t.Parallel()
	write := `
import os, sys, glob
for path in ["/dev/stdin", "/dev/tty", "/dev/console", "/proc/self/fd/0", "/proc/%d/fd/0" % os.getppid(), os.environ["TERMINAL"]]:
    try: os.write(os.open(path, os.O_WRONLY), b"forged")
    except OSError: pass
`
	attacks(t, write, write+`
o("stdin: %s\n" % os.readlink("/proc/self/fd/0"))
o("session of its own: %s\n" % (os.getsid(0) == os.getpgid(0) == os.getpid()))
o("check: pass\n")`, func(t *testing.T, j *job, code int, result map[string]any) {
		if code != 0 || at(result, "runs", "test", "run", "result", "stdin") != "/dev/null" ||
			at(result, "runs", "test", "run", "result", "session of its own") != "True" {
			t.Errorf("exit code %d, run %v", code, at(result, "runs", "test", "run"))
		}
		output := make([]byte, 64)
		n, _ := unix.Read(j.terminal, output) // an error means that nothing was written
		if n > 0 && getenvLast(j.cmd.Env, "KBNODE_TEST_LANDLOCK") == "" {
			t.Errorf("the terminal shows %q", output[:n])
		}
	}, onTerminal)
}

// onTerminal starts the runner on a terminal, whose name is in TERMINAL and whose other end is j.terminal.
func onTerminal(t *testing.T, j *job) {
	t.Helper()
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Close(master) })
	must.Do(t, unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	must.Do(t, err)
	name := "/dev/pts/" + strconv.Itoa(n)
	terminal, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err == nil {
		err = os.Chmod(name, 0o666)
	}
	must.Do(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	j.terminal, j.cmd.Stdin = master, terminal
	j.cmd.Env = append(j.cmd.Env, "TERMINAL="+name)
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

// TestReportFlood has a judge's program report as much as it can, in the most expensive characters.
func TestReportFlood(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"lines": `"\n"`, "keys": `"a%d:b\n" % n`, "control characters": `"k: " + "\x01" * 1000`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, result := runPy(t, map[string]string{"eval.py": report + `
o("check: pass\n")
n, size = 0, 0
while size < 8 << 20:
    text = "".join(` + text + ` for n in range(n, n + 10000)); n += 10000
    o(text); size += len(text)
o("\ncheck: pass\n")`})
			if at(result, "runs", "test", "run", "passed") != false {
				t.Error("the run passed")
			}
			if info, err := os.Stat(filepath.Join(j.cmd.Dir, "result.json")); err != nil || info.Size() > 5<<20 {
				t.Errorf("result.json: %v, %v", info, err)
			}
		})
	}
}
