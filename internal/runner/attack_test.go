package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// attacks runs a test as root and as another user, with Landlock and without.
func attacks(t *testing.T, submission, judge string, check func(t *testing.T, j *job, code int, result map[string]any)) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "test_timeout": 20,
		"sources": map[string]string{"submission.py": submission, "eval.py": report + judge},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []int{0, 65534} {
		for _, landlock := range []string{"", "0"} {
			t.Run(fmt.Sprintf("user=%d,landlock=%s", user, landlock), func(t *testing.T) {
				t.Parallel()
				j := newJob(t, "KERNELBOT_PAYLOAD="+payload.Encode(text), "KBNODE_TEST_LANDLOCK="+landlock)
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

// become makes a job another user's.
func (j *job) become(t *testing.T, user int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("becomes another user")
	}
	if err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "").Run(); err != nil {
		t.Skip("no python3 that every user may run: ", err)
	}
	self := filepath.Join(j.dir, "runner")
	text, err := os.ReadFile(j.cmd.Path)
	if err == nil {
		err = os.WriteFile(self, text, 0o755)
	}
	if err == nil {
		err = os.Chmod(filepath.Dir(j.dir), 0o711) //nolint:gosec // the user must reach what is below
	}
	if err == nil {
		err = exec.CommandContext(t.Context(), "chown", "-R", fmt.Sprint(user), j.dir).Run()
	}
	if err != nil {
		t.Fatal(err)
	}
	j.cmd.Path, j.cmd.Args[0] = self, self
	j.cmd.Env = append(j.cmd.Env, "PATH=/usr/bin:/bin", "HOME="+j.dir)
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
}

// processesWith returns the processes with this in their command line.
func processesWith(t *testing.T, text string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
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
o("check: pass\n")
`, func(t *testing.T, j *job, code int, result map[string]any) {
		if code != 0 || result["forged"] != nil || at(result, "runs", "test", "run", "passed") != true {
			t.Errorf("exit code %d, result %v", code, result)
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
	attacks(t, "", `
import resource
judge = os.getppid()
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
    os.sched_setaffinity(t, {0})
# Not as root, whose processes are all of this machine.
if os.getuid() != 0: tries("nice of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19), 1)
else: o("nice of the user: as it should\n")
tries("nice of the group", lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(judge), os.getpriority(os.PRIO_PROCESS, judge)), 1)
tries("signal", lambda: os.kill(judge, 0), 1)
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
		for _, what := range []string{"scheduler", "nice", "limit", "nice of the user", "nice of the group", "signal", "signal all", "signal a group", "pidfd"} {
			if said[what] != "as it should" {
				t.Errorf("%s: %v", what, said[what])
			}
		}
		if said["judge"] != "as it was" || said["check"] != "pass" {
			t.Errorf("%v", said)
		}
	})
}
