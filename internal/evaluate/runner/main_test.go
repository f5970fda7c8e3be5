package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestMain lets the test binary run as `kbnode runner`, which takes over its process.
func TestMain(m *testing.M) {
	if compile.Invoked() {
		os.Exit(compile.Client())
	}
	if os.Getenv("KBNODE_TEST_RUNNER") != "" {
		if version, err := strconv.Atoi(os.Getenv("KBNODE_TEST_LANDLOCK")); err == nil {
			landlockVersion = func() int { return version }
		}
		if path := os.Getenv("KBNODE_TEST_MEMORY"); path != "" {
			memoryEvents = path
		}
		if os.Getenv("KBNODE_TEST_COMPILERS") == "0" {
			canAnswer = func() bool { return false }
		}
		if n, err := strconv.ParseUint(os.Getenv("KBNODE_TEST_FILES"), 10, 32); err == nil {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
				panic(err)
			}
		}
		if text := os.Getenv("KBNODE_TEST_COMPILE"); text != "" {
			compileLimit.text = text
			compileLimit.seconds, _ = strconv.ParseFloat(text, 64)
		}
		o := Options{Config: os.Getenv("KBNODE_TEST_CONFIG"), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
		if len(os.Args) > 1 {
			o.Payload = os.Args[1]
		}
		os.Exit(Main(context.Background(), o))
	}
	os.Exit(m.Run())
}

// pythonDir finds the interpreter that python3 runs; python3 may be a slow script. The distribution's comes first: without
// Landlock the runner looks at each file of Python's packages, and another one may have 50,000 there.
var pythonDir = sync.OnceValues(func() (dir string, err error) {
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		var out []byte
		if out, err = exec.Command(python, "-c", "import ctypes, sys; print(sys.executable)").Output(); err == nil {
			return filepath.Dir(strings.TrimSpace(string(out))), nil
		}
	}
	return "", err
})

// job is one run of the runner in its own directory.
type job struct {
	dir    string
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer

	terminal int // the file that shows what is on the runner's terminal
}

func newJob(t *testing.T, env ...string) *job {
	t.Helper()
	python, err := pythonDir()
	if err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
	self, err := os.Executable()
	must.Do(t, err)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.Do(t, err)
	tools, err := filepath.Abs("testdata/bin") // a stand-in nvidia-smi
	must.Do(t, err)
	j := &job{dir: dir, cmd: exec.CommandContext(t.Context(), self)}
	j.cmd.Dir = filepath.Join(dir, "work")
	tmp := filepath.Join(dir, "tmp")
	for _, d := range []string{j.cmd.Dir, tmp} {
		must.Do(t, os.Mkdir(d, 0o755))
	}
	// The race detector otherwise waits a second before a program ends.
	j.cmd.Env = append(os.Environ(), "KBNODE_TEST_RUNNER=1", "GORACE=atexit_sleep_ms=0", "TMPDIR="+tmp,
		"PATH="+tools+":"+python+":"+os.Getenv("PATH"), "BUILDKITE=")
	j.cmd.Env = append(j.cmd.Env, env...)
	j.cmd.Stdout, j.cmd.Stderr = &j.stdout, &j.stderr
	return j
}

// newConfigJob returns a job with this payload.
func newConfigJob(t *testing.T, config any, env ...string) *job {
	t.Helper()
	j := newJob(t, env...)
	j.setPayload(t, config)
	return j
}

// setPayload gives a job another payload.
func (j *job) setPayload(t *testing.T, config any) {
	t.Helper()
	text, err := json.Marshal(config)
	must.Do(t, err)
	j.cmd.Env = append(j.cmd.Env, "KERNELBOT_PAYLOAD="+payload.Encode(text))
}

// run returns the exit code and result.json, nil if there is none.
func (j *job) run(t *testing.T) (int, map[string]any) {
	t.Helper()
	must.Do(t, j.cmd.Start())
	return j.wait(t)
}

func (j *job) wait(t *testing.T) (int, map[string]any) {
	t.Helper()
	err := j.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(j.cmd.Dir, result.File))
	if errors.Is(err, os.ErrNotExist) {
		return j.cmd.ProcessState.ExitCode(), nil
	}
	var result map[string]any
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		t.Fatalf("result.json: %v\n%s\n%s", err, text, j.stderr.String())
	}
	return j.cmd.ProcessState.ExitCode(), result
}

// waitFor waits until a program of a job has created a file.
func waitFor(t *testing.T, path string) {
	t.Helper()
	for range 6000 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("no program has made %s", path)
}

// runPy runs a job in test mode with this program as main file.
func runPy(t *testing.T, sources map[string]string, env ...string) (*job, map[string]any) {
	t.Helper()
	if sources["submission.py"] == "" {
		sources["submission.py"] = "pass\n"
	}
	return runConfig(t, map[string]any{"lang": "py", "mode": "test", "main": "eval.py", "sources": sources}, env...)
}

func runConfig(t *testing.T, config map[string]any, env ...string) (*job, map[string]any) {
	t.Helper()
	j := newConfigJob(t, config, env...)
	code, got := j.run(t)
	if code != 0 || got == nil {
		t.Fatalf("exit code %d, result %v\n%s", code, got, j.stderr.String())
	}
	return j, got
}

// at walks down a decoded JSON document: at(result, "runs", "test", "run").
func at(v any, path ...string) any {
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

// blank returns a result in which what differs between runs is as in a case: "*" where that has it, and
// what replace names.
func blank(want, got any, replace *strings.Replacer) any {
	if want == "*" {
		return want
	}
	switch got := got.(type) {
	case string:
		return replace.Replace(got)
	case map[string]any:
		w, _ := want.(map[string]any)
		for k, v := range got {
			got[k] = blank(w[k], v, replace)
		}
	}
	return got
}

// write writes a file that other users may read, too.
func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(text), 0o644))
}

func link(t *testing.T, target, path string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.Symlink(target, path))
}
