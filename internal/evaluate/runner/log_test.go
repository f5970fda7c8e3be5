package runner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

// groupLine matches what Buildkite takes for the header of a group.
var groupLine = regexp.MustCompile(`(?m)^(---|\+\+\+|~~~|\^\^\^).*$`)

// forge tries to imitate the log's own lines in everything that a program can write.
const forge = report + `
evil = "x\n--- forged\n+++ forged\r+++ forged\x1b[2K\u2028~~~ forged\n^^^ +++\n"
print(evil); print(evil, file=sys.stderr)
`

func TestLogInBuildkite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		body   string
		groups []string
		want   []string // in the log
	}{
		{"passed", `o("test-count: 1\ntest.0.spec: --- size: 1\ntest.0.status: pass\ncheck: pass\n")`,
			[]string{"--- :compile: test: compile", "--- :test_tube: test: run", "+++ :white_check_mark: Passed: test"},
			[]string{"test: passed, 1 of 1 test, ", "Standard output:\n  x\n  --- forged\n  +++ forged\n  +++ forged~~~ forged\n  ^^^ +++\n"}},
		{"failed", `o("test-count: 2\ntest.0.status: fail\ntest.0.spec: +++ size: 1\ntest.0.error: \x1b[31m--- got 3\x1b[0m\ncheck: fail\n"); sys.exit(112)`,
			[]string{"--- :compile: test: compile", "--- :test_tube: test: run", "+++ :x: test: 1 of 2 tests failed", "+++ :x: Not passed: test: 1 of 2 tests failed"},
			[]string{"Exit code 112 after ", "Failed: test 0: +++ size: 1\n  --- got 3\n", "Standard error:\n  x\n  --- forged\n", "  test  not passed  0 of 2 tests  "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j, _ := runPy(t, map[string]string{"eval.py": forge + c.body}, "BUILDKITE=true")
			log := j.stdout.String()
			must.Equal(t, c.groups, groupLine.FindAllString(log, -1))
			must.Contain(t, log, c.want...)
			if t.Failed() {
				t.Logf("%s\n%s", log, j.stderr.String())
			}
		})
	}
}

// The log names each step, and shows only those parts of the payload that the result has.
func TestLogKeepsThePayload(t *testing.T) {
	t.Parallel()
	cases := []map[string]any{{"seed": 271828182}}
	j, _ := runConfig(t, map[string]any{
		"lang": "py", "mode": "private", "main": "eval.py", "seed": 314159265, "tests": cases, "benchmarks": cases,
		"sources": map[string]any{"submission.py": "secret = 161803398\n", "eval.py": report + `o("test-count: 1\ncheck: pass\n")`},
	}, "BUILDKITE=true", "BUILDKITE_AGENT_ACCESS_TOKEN=bkaj-123456789")
	log := j.stdout.String() + j.stderr.String()
	must.Equal(t, []string{
		"--- :compile: test: compile", "--- :test_tube: test: run", "--- :compile: benchmark: compile", "--- :stopwatch: benchmark: run",
		"--- :compile: leaderboard: compile", "--- :trophy: leaderboard: run", "+++ :white_check_mark: Passed: test, benchmark and leaderboard",
	}, groupLine.FindAllString(log, -1))
	for _, secret := range []string{"314159265", "271828182", "161803398", "bkaj-123456789"} {
		if strings.Contains(log, secret) {
			t.Errorf("%s is in the log:\n%s", secret, log)
		}
	}
}

// A job survives the loss of its log.
func TestLogIsClosed(t *testing.T) {
	t.Parallel()
	j := newJob(t, "KERNELBOT_PAYLOAD="+payload.Encode([]byte(
		`{"lang": "py", "mode": "test", "main": "eval.py", "sources": {"eval.py": "import os; os.write(int(os.environ['POPCORN_FD']), b'check: pass')"}}`)))
	r, w, err := os.Pipe()
	must.Do(t, err)
	must.Do(t, r.Close())
	j.cmd.Stdout, j.cmd.Stderr = w, w
	code, result := j.run(t)
	must.Do(t, w.Close())
	if code != 0 || at(result, "runs", "test", "run", "passed") != true {
		t.Errorf("exit code %d, result %v", code, result)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	const doc = `{"lang": "py", "mode": "test", "main": "eval.py", "seed": 314159265, "sources": {"eval.py": "EVAL", "submission.py": ""}}`
	// It looks for the payload everywhere that a descendant of the runner could.
	search := report + `
found = []
for path in ["/proc/self/fd/0", "/proc/%d/fd/0" % os.getppid()]:
    try: found.append(open(path).read())
    except OSError: pass
o("check: pass\nstdin: %s\nseed: %s\n" % (any(found), os.environ["POPCORN_SEED"]))`
	quoted, err := json.Marshal(search)
	must.Do(t, err)
	config := strings.Replace(doc, `"EVAL"`, string(quoted), 1)
	file := filepath.Join(t.TempDir(), "task.json")
	write(t, file, config)
	write(t, file+".payload", payload.Encode([]byte(config)))
	for name, prepare := range map[string]func(j *job){
		"file": func(j *job) { j.cmd.Env = append(j.cmd.Env, "KBNODE_TEST_CONFIG="+file, "KERNELBOT_PAYLOAD=other") },
		"pipe": func(j *job) {
			j.cmd.Env, j.cmd.Stdin = append(j.cmd.Env, "KBNODE_TEST_CONFIG=-"), strings.NewReader(config)
		},
		"redirected file":            func(j *job) { j.cmd.Env, j.cmd.Stdin = append(j.cmd.Env, "KBNODE_TEST_CONFIG=-"), open(t, file) },
		"redirected encoded payload": func(j *job) { j.cmd.Args, j.cmd.Stdin = append(j.cmd.Args, "-"), open(t, file+".payload") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			prepare(j)
			code, result := j.run(t)
			run := at(result, "runs", "test", "run", "result")
			if code != 0 || at(run, "seed") != "314159265" || at(run, "stdin") != "False" {
				t.Errorf("exit code %d, run %v\n%s%s", code, run, j.stdout.String(), j.stderr.String())
			}
		})
	}
	for want, config := range map[string]string{"read payload: open": filepath.Join(t.TempDir(), "none"), "is encoded; give it with --payload": file + ".payload"} {
		code, result := newJob(t, "KBNODE_TEST_CONFIG="+config).run(t)
		if message, _ := at(result, "error").(string); code != 1 || !strings.Contains(message, want) {
			t.Errorf("exit code %d, error %q, want %q in it", code, message, want)
		}
	}
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	must.Do(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}
