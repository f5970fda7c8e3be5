package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

// process returns kbnode as a process of its own. Its temporary files are in a directory of the test.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	python(t)
	self, err := os.Executable()
	must.Do(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asKbnode+"=1", "GORACE=atexit_sleep_ms=0", "TMPDIR="+t.TempDir())
	return cmd
}

func python(t *testing.T) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "python3", "-c", "").Run(); err != nil {
		t.Skip("python3 cannot be run: ", err)
	}
}

// runs runs kbnode as a process of its own, and checks that it leaves no files. It calls during,
// if there is one, while the process runs.
func runs(t *testing.T, cmd *exec.Cmd, during ...func(*os.Process)) result {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if e := cmd.Start(); e != nil {
		t.Fatal(e)
	}
	for _, f := range during {
		f(cmd.Process)
	}
	if e := cmd.Wait(); e != nil && !errors.As(e, new(*exec.ExitError)) {
		t.Fatal(e)
	}
	tmp := cmd.Env[len(cmd.Env)-1]
	if left, _ := os.ReadDir(strings.TrimPrefix(tmp, "TMPDIR=")); len(left) > 0 {
		t.Errorf("%q: %v is left", cmd.Args, left)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), err.String()}
}

func TestRunnerProblem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	right, err := os.ReadFile("../../examples/prefix_python/submission.py")
	must.Do(t, err)
	const example = "../../examples/prefix_python/"
	noisy := strings.Repeat("x\x1b[31m", 1<<20)
	for _, tt := range []struct {
		name      string
		args      []string
		code      int
		says, not []string
	}{
		{"its own submission", []string{"prefix_python"}, 0, []string{"Passed: test\n", "  size: 4099; seed: 4  passed\n"}, []string{"failed"}},
		{"by its directory", []string{example, example + "submission.py", "--mode", "benchmark"}, 0, []string{"Passed: benchmark\n", "  size: 10000; seed: 6 "}, nil},
		{
			"wrong", []string{"prefix_python", example + "wrong.py", "--mode", "leaderboard"}, 1,
			[]string{"Not passed: test: 2 of 4 tests failed\n", "  size: 2; seed: 2     passed\n  size: 1000; seed: 3  failed\n", "  output[2] is "}, []string{"\n  benchmark"},
		},
		{"syntax error", []string{"prefix_python", must.Write(t, dir, "syntax.py", "def custom_kernel(data)\n")}, 1, []string{"SyntaxError: expected ':'", "Not passed: test: 4 of 4"}, nil},
		{"a module that is not installed", []string{"prefix_python", must.Write(t, dir, "module.py", "import nothing_here.at_all\n")}, 1, []string{"Not evaluated: python3 has no module nothing_here\n"}, []string{"Traceback"}},
		{"a lot of control characters", []string{"prefix_python", must.Write(t, dir, "noisy.py", "print('''"+noisy+"''')\n1/0\n")}, 1, []string{"ZeroDivisionError"}, []string{"\x1b"}},
		{"a directory that no one may enter", []string{"prefix_python", must.Write(t, dir, "locked.py", string(right)+"import os\nif os.access('.', os.W_OK) and not os.path.exists('a'):\n  try: os.makedirs('a/b'); os.chmod('a', 0)\n  except OSError: pass\n")}, 0, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := runs(t, process(t, append([]string{"evaluate", "--problem"}, tt.args...)...))
			must.Equal(t, tt.code, r.code)
			must.Contain(t, r.out, tt.says...)
			for _, bad := range tt.not {
				if strings.Contains(r.out, bad) {
					t.Errorf("%q is there", bad)
				}
			}
			if t.Failed() {
				t.Logf("%.3000s\n%.1000s", r.out, r.err)
			}
		})
	}
}

// TestCompare compares files with the problem's own submission, with a worse one, and with one that is wrong.
func TestCompare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	right := must.Read(t, "../../examples/prefix_python/submission.py")
	own := must.Write(t, dir, "own.py", right)
	slow := must.Write(t, dir, "slow.py", strings.Replace(right, "    return", "    list(accumulate(data))\n    return", 1))
	never := must.Write(t, dir, "never.py", right+"import os\nif os.environ.get('POPCORN_FD') or True:\n    custom_kernel = lambda data: 1 / 0\n")
	plot := filepath.Join(dir, "times.svg")
	r := runs(t, process(t, "evaluate", "--problem", "prefix_python", own, slow, "--rounds", "4", "--plot", plot, "--json"))
	var got struct {
		Schema       int
		Overall      struct{ Low, Ratio, High float64 }
		RoundsWanted int `json:"rounds_wanted"`
		Benchmarks   []struct{ Spec, Verdict string }
		Rounds       []struct {
			First  int
			MeanNS [][2]float64 `json:"mean_ns"`
		}
	}
	must.Do(t, json.Unmarshal([]byte(r.out), &got))
	if o := got.Overall; r.code != 0 || got.Schema != 1 || len(got.Benchmarks) != 1 || got.Benchmarks[0].Spec != "size: 10000; seed: 6" || len(got.Rounds) != 4 || got.RoundsWanted != 4 ||
		got.Rounds[1].First != 1 || got.Rounds[3].MeanNS[0][1] <= 0 || !(0 < o.Low && o.Low < o.Ratio && o.Ratio < o.High) {
		t.Errorf("%+v", r)
	}
	must.Contain(t, must.Read(t, plot), "own.py and slow.py on prefix_python", "</svg>\n")
	r = runs(t, process(t, "evaluate", "--problem", "prefix_python", own, never, "--rounds", "3"))
	if r.code != 1 || !strings.Contains(r.out, "ZeroDivisionError") || !strings.Contains(r.err, "kbnode: not compared: "+never+" did not pass its tests\n") || strings.Contains(r.err, "round") {
		t.Errorf("%+v", r)
	}
	cmd := process(t, "evaluate", "--problem", "prefix_python", own, slow, "--rounds", "100")
	tmp := strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], "TMPDIR=")
	r = runs(t, cmd, func(p *os.Process) {
		begun := map[string]bool{} // directories of evaluations: two tests, two of round 1, one of round 2
		for until := time.Now().Add(must.Patience); len(begun) < 5 && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			all, _ := filepath.Glob(filepath.Join(tmp, "kbnode-runner-*"))
			for _, name := range all {
				begun[name] = true
			}
		}
		_ = p.Signal(os.Interrupt)
	})
	if r.code != 1 || !strings.Contains(r.out, "too few rounds to tell\nstopped after 1 of 100 rounds: interrupted\n") || !strings.Contains(r.out, "size: 10000; seed: 6") {
		t.Errorf("%+v", r)
	}
}

// TestRunnerProblemLimit checks the time limit of a task, in a problem of kernelbot's form.
func TestRunnerProblemLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "eval.py", "import os, submission, time\nos.write(int(os.environ['POPCORN_FD']), b'test.0.spec: x\\n')\ntime.sleep(1000)\n")
	must.Write(t, dir, "task.yml", `{files: [{name: submission.py, source: "@SUBMISSION@"}, {name: eval.py, source: eval.py}], lang: py, config: {main: eval.py}, test_timeout: 1}`)
	r := runs(t, process(t, "evaluate", "--problem", dir, must.Write(t, dir, "mine.py", "pass\n")))
	if r.code != 1 || !strings.Contains(r.out, "Not passed: test: exceeded its time limit of 1 s\n") || !strings.Contains(r.err, "test: run, 1 s at most\n") || strings.Contains(r.out, "had passed") {
		t.Errorf("%+v", r)
	}
}

// TestRunnerProblemNeeds evaluates where python3 and nvcc are missing.
func TestRunnerProblemNeeds(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"prefix_python": "python3 is not on the PATH", "../evaluate/task/testdata/copy_cuda": "nvcc is not on the PATH"} {
		cmd := process(t, "evaluate", "--problem", name)
		cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-1, "PATH="+t.TempDir())
		if r := runs(t, cmd); r.code != 1 || strings.Count(r.out, "\n") != 1 || !strings.Contains(r.out, "Not evaluated: "+want) || !strings.Contains(r.err, "submission: the problem's own submission.") ||
			!strings.Contains(r.err, "kbnode submit --gpu B200_BK --problem "+name+" --mode test\n") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	cmd := process(t, "evaluate", "--problem", "prefix_python")
	cmd.Env = append(cmd.Env, "TMPDIR=/no/dir")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "set TMPDIR to a directory that you may write to\n") {
		t.Errorf("without a directory: %v, %s", err, out)
	}
}

func TestRunnerProblemJSON(t *testing.T) {
	t.Parallel()
	prints := must.Write(t, t.TempDir(), "prints.py", `print("a\x9b31m\u202eb")`+"\n"+must.Read(t, "../../examples/prefix_python/submission.py"))
	for file, want := range map[string]struct {
		code   int
		passed bool
	}{"../../examples/prefix_python/submission.py": {0, true}, "../../examples/prefix_python/wrong.py": {1, false}, prints: {0, true}} {
		r := runs(t, process(t, "evaluate", "--problem", "prefix_python", file, "--json"))
		var got struct {
			Success bool
			Runs    map[string]struct{ Run struct{ Passed bool } }
		}
		if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != want.code || !got.Success || got.Runs["test"].Run.Passed != want.passed {
			t.Errorf("%s: %v, %+v", file, err, r)
		}
		if strings.ContainsAny(r.out, "\u009b\u202e") || strings.Contains(r.out, `a\u009b31m\u202eb`) != (file == prints) {
			t.Errorf("%s: %q", file, r.out)
		}
	}
	// With --workdir, the same is in its directory.
	dir := t.TempDir()
	r := runs(t, process(t, "evaluate", "--problem", "prefix_python", "--workdir", dir, "--json"))
	if text, err := os.ReadFile(filepath.Join(dir, "result.json")); err != nil || string(text) != r.out {
		t.Errorf("result.json: %v, %s", err, text)
	}
}

// TestWorkdirKeepsFiles evaluates where files are that are not an evaluation's: none is changed or removed.
func TestWorkdirKeepsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 { // the second finds what the first left
		r := runs(t, process(t, "evaluate", "--problem", "prefix_python", "--workdir", dir))
		must.Equal(t, 0, r.code)
	}
	for _, name := range []string{"submission.py", "reference.py", "other.py", "profile_data", "result.json", "deep/result.json"} {
		dir := t.TempDir()
		must.Do(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must.Write(t, dir, name, "mine")
		for _, command := range []string{"evaluate", "runner"} {
			r := runs(t, process(t, command, "--problem", "prefix_python", "--workdir", dir))
			if r.code != 2 || !strings.Contains(r.err, "type mkdir out, and write --workdir out") || must.Read(t, filepath.Join(dir, name)) != "mine" {
				t.Errorf("%s, %s: %+v", command, name, r)
			}
		}
	}
	must.Write(t, dir, "mine.py", "mine")
	r := runs(t, process(t, "evaluate", "--problem", "prefix_python", "--workdir", dir))
	must.Equal(t, 2, r.code)
}

// TestRunnerProblemInterrupt interrupts an evaluation whose programs started others.
func TestRunnerProblemInterrupt(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		mark := "1" + strconv.Itoa(os.Getpid()) + "." + strconv.Itoa(int(sig.(syscall.Signal)))
		file := must.Write(t, t.TempDir(), "mine.py", `
import subprocess, time
def custom_kernel(data):
    children = [subprocess.Popen(["sleep", "`+mark+`"], start_new_session=new) for new in (False, True)]
    time.sleep(1000)
`)
		cmd := process(t, "evaluate", "--problem", "prefix_python", file)
		r := runs(t, cmd, func(p *os.Process) {
			for until := time.Now().Add(must.Patience); sleepers(mark) < 2 && time.Now().Before(until); {
				time.Sleep(20 * time.Millisecond)
			}
			_ = p.Signal(sig)
		})
		if r.code != 1 || r.out != "No verdict: interrupted before its end\n" {
			t.Errorf("%v: %+v", sig, r)
		}
		if n := sleepers(mark); n > 0 {
			t.Errorf("%v: %d programs are left", sig, n)
		}
	}
}

// TestInterruptShowsWhatPassed interrupts the benchmark of mode leaderboard.
func TestInterruptShowsWhatPassed(t *testing.T) {
	t.Parallel()
	mark := "2" + strconv.Itoa(os.Getpid())
	file := must.Write(t, t.TempDir(), "mine.py", must.Read(t, "../../examples/prefix_python/submission.py")+`
import subprocess
works = custom_kernel
def custom_kernel(data):
    return works(data) if len(data) < 10000 else subprocess.run(["sleep", "`+mark+`"])
`)
	r := runs(t, process(t, "evaluate", "--problem", "prefix_python", file, "--mode", "leaderboard"), func(p *os.Process) {
		for until := time.Now().Add(must.Patience); sleepers(mark) < 1 && time.Now().Before(until); {
			time.Sleep(20 * time.Millisecond)
		}
		_ = p.Signal(os.Interrupt)
	})
	must.Equal(t, 1, r.code)
	must.Contain(t, r.out, "No verdict: interrupted before its end\n", "\n  test       passed     4 of 4 tests", "\n  benchmark  cancelled  ", "size: 4099; seed: 4  passed\n")
}

// sleepers counts the processes that run sleep with this argument.
func sleepers(mark string) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if text, _ := os.ReadFile(file); string(text) == "sleep\x00"+mark+"\x00" {
			n++
		}
	}
	return n
}

// TestProblemsHaveOneResolver checks that each flag that takes a problem takes names of examples.
// testdata/typed.txt has the candidates for a mistyped one.
func TestProblemsHaveOneResolver(t *testing.T) {
	t.Setenv("BUILDKITE_API_TOKEN", "")
	var takers []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); name == "PROBLEM" {
				takers = append(takers, strings.TrimPrefix(cmd.CommandPath(), "kbnode "))
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(Commands())
	slices.Sort(takers)
	if !slices.Equal(takers, []string{"e2e", "e2e cheats", "evaluate", "payload encode", "runner", "submit"}) {
		t.Errorf("commands that take a problem: %q", takers)
	}
	for _, args := range [][]string{
		{"payload", "encode", "--problem"},
		{"submit", "--queue", "q", "--dry-run", "--problem"},
		{"submit", "--queue", "q", "--dry-run", "--eval"},
		{"e2e", "evaluation", "--queue", "q", "--dry-run", "--arch", "100", "--problem"},
	} {
		for _, name := range []string{"identity_cuda", "../../examples/identity_cuda", "../evaluate/task/testdata/copy_cuda"} {
			if r := kbnode(t, append(args, name)...); r.code != 0 || r.out == "" {
				t.Errorf("%q %s: %+v", args, name, r)
			}
		}
	}
}

// TestSubmitArch checks which architecture is sent if only a queue, only a type of GPU, or both are given.
func TestSubmitArch(t *testing.T) {
	t.Setenv("BUILDKITE_API_TOKEN", "")
	for args, want := range map[string]string{
		"--queue b200":                       `"arch":"100"`,
		"--queue h100":                       `"arch":"90a"`,
		"--gpu H100_BK":                      `"arch":"90a"`,
		"--queue nvidia-h100 --gpu H100":     `"arch":"90a"`,
		"--queue mi300 --force":              `"arch":null`,
		"--queue kernels":                    `"arch":null`,
		"--queue kernels --gpu H100_BK":      `"arch":"90a"`,
		"--queue b200 --gpu H100_BK --force": `"arch":"90a"`,
		"--queue b200 --arch 100a":           `"arch":"100a"`,
	} {
		r := kbnode(t, append([]string{"submit", "--dry-run", "--json", "--eval", "../evaluate/task/testdata/copy_cuda"}, strings.Fields(args)...)...)
		var printed struct {
			Requests [1]struct {
				Body struct{ Env map[string]string }
			}
		}
		err := json.Unmarshal([]byte(r.out), &printed)
		text, err2 := payload.Inflate(printed.Requests[0].Body.Env[payload.Var])
		if err != nil || err2 != nil || !strings.Contains(text, want) {
			t.Errorf("%s: %v, %v, %q, want %s", args, err, err2, r.err, want)
		}
	}
}
