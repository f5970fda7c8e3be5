package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/test/must"
)

// comparing returns the payload of a comparison in three rounds, of two submissions for this judge.
func comparing(judge, first, second string) map[string]any {
	return map[string]any{
		"lang": "py", "mode": "compare", "rounds": 3, "main": "eval.py", "tests": []map[string]int{{"a": 1}}, "benchmarks": []map[string]int{{"b": 2}},
		"sources": map[string]string{"submission.py": first, "eval.py": report + judge}, "other_sources": map[string]string{"submission.py": second},
	}
}

// order returns the names of the evaluations in result.json, as they follow each other there.
func (j *job) order(t *testing.T) (names []string) {
	t.Helper()
	r, err := result.ReadStrict([]byte(must.Read(t, filepath.Join(j.cmd.Dir, result.File))))
	must.Do(t, err)
	for _, run := range r.Runs {
		names = append(names, run.Key)
	}
	return names
}

const inOrder = "test.A test.B benchmark.A.1 benchmark.B.1 benchmark.B.2 benchmark.A.2 benchmark.A.3 benchmark.B.3"

// TestComparison evaluates two submissions in turn, each with its own text, cases and mode.
func TestComparison(t *testing.T) {
	t.Parallel()
	j, got := runConfig(t, comparing("import submission\no(f'who: {submission.who}\\nmode: {sys.argv[1]}\\ncases: {open(sys.argv[2]).read().strip()}\\ncheck: pass\\n')", "who = 'first'", "who = 'second'"))
	must.Equal(t, inOrder, strings.Join(j.order(t), " "))
	for name, run := range at(got, "runs").(map[string]any) {
		kind, side, _ := strings.Cut(name, ".")
		want := []any{map[string]any{"A": "first", "B": "second"}[side[:1]], kind, map[string]any{"test": "a: 1", "benchmark": "b: 2"}[kind], true}
		must.Equal(t, want, []any{at(run, "run", "result", "who"), at(run, "run", "result", "mode"), at(run, "run", "result", "cases"), at(run, "run", "passed")})
	}
	must.Contain(t, j.stdout.String(), "test.B: passed", "benchmark.A.3: passed", "Passed: test.A, …, benchmark.B.3")
}

// TestComparisonIsCleared has each submission leave files where it can, and none finds those of the other, or its own.
func TestComparisonIsCleared(t *testing.T) {
	t.Parallel()
	const leave = `
import os, tempfile
for d in os.getcwd(), os.environ["HOME"], tempfile.gettempdir(), os.environ["HOME"] + "/.cache/torch_extensions":
    os.makedirs(d, exist_ok=True)
    open(d + "/left-by-" + who, "w").write(who)
for name in "reference.py", "numpy.py": open(name, "w").write("raise SystemExit(9)")
`
	for _, landlock := range []string{"", "0"} {
		t.Run("landlock="+landlock, func(t *testing.T) {
			t.Parallel()
			j := newConfigJob(t, comparing(`
import tempfile
for top in os.getcwd(), os.environ["HOME"], tempfile.gettempdir():
    for at, dirs, files in os.walk(top):
        for f in files:
            if f.startswith("left-by-") or f in ("reference.py", "numpy.py"): o("found: " + f + "\n")
import submission
o("check: pass\n")`, "who = 'first'"+leave, "who = 'second'"+leave), "KBNODE_TEST_LANDLOCK="+landlock)
			code, got := j.run(t)
			must.Equal(t, 0, code)
			must.Equal(t, inOrder, strings.Join(j.order(t), " "))
			for name, run := range at(got, "runs").(map[string]any) {
				if found := at(run, "run", "result", "found"); found != nil || at(run, "run", "passed") != true {
					t.Errorf("%s: %v", name, at(run, "run"))
				}
			}
			if left, _ := filepath.Glob(filepath.Join(j.cmd.Dir, "*")); len(left) != 1 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestComparisonCompiles compiles the same in each program: once for each submission, and not for both together.
func TestComparisonCompiles(t *testing.T) {
	t.Parallel()
	needCompilers(t)
	build := builder + `
d = home + "/.cache"
put(d + "/main.cpp", "int f;")
p = sh("c++", "-c", "main.cpp", "-o", "main.o", cwd=d)
assert p.returncode == 0, p.stderr
o("got: " + open(d + "/main.o").read().strip() + "\ncheck: pass\n")
`
	j := newConfigJob(t, comparing(build, "", "# another"))
	j.standIn(t, "c++", once)
	_, got := j.run(t)
	products := map[string][]string{}
	for name, run := range at(got, "runs").(map[string]any) {
		_, side, _ := strings.Cut(name, ".")
		made, _ := at(run, "run", "result", "got").(string)
		products[side[:1]] = append(products[side[:1]], made)
	}
	a, b := slices.Compact(products["A"]), slices.Compact(products["B"])
	if len(a) != 1 || len(b) != 1 || a[0] == "" || a[0] == b[0] {
		t.Errorf("%v\n%s", products, j.stderr.String())
	}
}

// TestComparisonEnds has the second submission fail: no evaluation follows, and the job itself succeeds.
func TestComparisonEnds(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"test": "test.A test.B", "benchmark": "test.A test.B benchmark.A.1 benchmark.B.1"} {
		judge := "import submission\no('check: ' + ('fail' if submission.wrong == sys.argv[1] else 'pass') + '\\n')"
		j, got := runConfig(t, comparing(judge, "wrong = ''", "wrong = '"+in+"'"))
		must.Equal(t, want, strings.Join(j.order(t), " "))
		must.Equal(t, true, at(got, "success").(bool))
	}
}

// TestComparisonIsCancelled cancels a comparison while a submission runs by itself, before there is an evaluation.
func TestComparisonIsCancelled(t *testing.T) {
	t.Parallel()
	const waits = "import os, time\nif __name__ == '__main__': open('now', 'w').close(); time.sleep(60)"
	for side, want := range []string{"", "test.A"} {
		submissions := [2]string{"", ""}
		submissions[side] = waits
		j := newConfigJob(t, comparing("o('check: pass\\n')", submissions[0], submissions[1]))
		must.Do(t, j.cmd.Start())
		waitFor(t, filepath.Join(j.cmd.Dir, "now"))
		must.Do(t, j.cmd.Process.Signal(syscall.SIGTERM))
		code, got := j.wait(t)
		if message, _ := at(got, "error").(string); code != 1 || !strings.Contains(message, "the job was cancelled") {
			t.Errorf("exit code %d, error %q", code, message)
		}
		must.Equal(t, want, strings.Join(j.order(t), " "))
	}
}

// TestComparisonOfMuch ends a comparison whose programs print more than a result may hold.
func TestComparisonOfMuch(t *testing.T) {
	t.Parallel()
	e := &engine{submission: &submission{evidence: []witness.Evaluation{{Report: make([]byte, 1<<20)}}}}
	ev := &result.Evaluation{
		Compilation: &result.Compilation{Stderr: strings.Repeat("\x01", 1<<20)},
		Run:         &result.Run{Stdout: strings.Repeat("x", 1<<20), Result: result.Pairs[string]{{Key: "k", Value: strings.Repeat("y", 1<<20)}}},
	}
	rounds := 0
	for e.count(ev) == nil {
		rounds++
	}
	if rounds != maxOutput/(9<<20) {
		t.Errorf("after %d evaluations of 9 MiB", rounds)
	}
}

// TestComparisonRefused gives faulty payloads of comparisons. None of them is evaluated as one submission.
func TestComparisonRefused(t *testing.T) {
	t.Parallel()
	const files = `"sources":{"eval.py":"","submission.py":""},"main":"eval.py","lang":"py","benchmarks":[{}],`
	var many strings.Builder
	for i := range 30 {
		fmt.Fprintf(&many, `,"%d":""`, i)
	}
	for doc, want := range map[string]string{
		files + `"mode":"compare","rounds":3,"other_sources":{"submission.py":""}`:     "",
		files + `"mode":"compare","rounds":100,"other_sources":{"submission.py":"\n"}`: "",
		files + `"mode":"benchmark","other_sources":{"submission.py":""}`:              `other_sources: mode benchmark evaluates one submission; write "mode": "compare", or leave it out`,
		files + `"mode":"leaderboard","other_sources":null`:                            `other_sources: mode leaderboard evaluates one submission; write "mode": "compare", or leave it out`,
		files + `"mode":"compare"`: "rounds: is missing; write \"rounds\": 10\nother_sources: is missing; write the second submission",
		files + `"mode":"compare","rounds":2,"other_sources":{"submission.py":""}`:                                     "rounds: is 2; it must be a whole number from 3 to 100",
		files + `"mode":"compare","rounds":101,"other_sources":{"submission.py":""}`:                                   "rounds: is 101; it must be",
		files + `"mode":"compare","rounds":1e1,"other_sources":{"submission.py":""}`:                                   "rounds: is 10.0; it must be",
		files + `"mode":"compare","rounds":"10","other_sources":{"submission.py":""}`:                                  "rounds: is '10'; it must be",
		files + `"mode":"compare","rounds":` + strings.Repeat("9", 40) + `,"other_sources":{"submission.py":""}`:       "rounds: is 9999999999999999999999999999999999999999; it must be",
		files + `"mode":"compare","rounds":3,"other_sources":{}`:                                                       "other_sources: has no file; write the second submission",
		files + `"mode":"compare","rounds":3,"other_sources":[]`:                                                       "other_sources: is a list; it must be an object",
		files + `"mode":"compare","rounds":3,"other_sources":{"../x":""}`:                                              `other_sources: "../x" is not among the sources; name a file that is`,
		files + `"mode":"compare","rounds":3,"other_sources":{"submission.py":null}`:                                   `other_sources: "submission.py" is a null`,
		files + `"mode":"compare","rounds":3,"other_sources":{"submission.py":"\ud800"}`:                               `other_sources: "submission.py" holds half of a surrogate pair`,
		files + `"mode":"compare","rounds":3,"other_sources":{"submission.py":""` + many.String() + `}`:                "and more",
		files + `"mode":"compare","rounds":3,"other_sources":{"submission.py":""},"benchmarks":[]`:                     `benchmarks: mode compare with ranking_by "last" needs one at least`,
		files + `"mode":"compare","rounds":3,"other_sources":{"submission.py":""},"benchmarks":[],"ranking_by":"geom"`: "benchmarks: mode compare needs one at least",
	} {
		o, err := payload.ParseObject("{" + doc + "}")
		must.Do(t, err)
		if err := Check(o); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", doc, err, want)
		}
	}
}

// TestComparisonInCUDA compiles both submissions, of which one is a header.
func TestComparisonInCUDA(t *testing.T) {
	t.Parallel()
	j := newCUDAJob(t, map[string]any{
		"mode": "compare", "rounds": 3, "benchmarks": []map[string]int{{"a": 1}},
		"sources": map[string]string{"eval.cu": "x"}, "headers": map[string]string{"submission.h": "first"}, "other_sources": map[string]string{"submission.h": "second"},
	})
	j.standIn(t, "nvcc", `[ "$1" = --version ] && { echo v; exit 0; }
cat >eval.out <<END
#!/bin/sh
echo "who: $(cat submission.h)
check: pass" >&3
END
chmod +x eval.out`)
	_, got := j.run(t)
	for name, want := range map[string]string{"benchmark.A.1": "first", "benchmark.B.1": "second", "benchmark.B.2": "second", "benchmark.A.3": "first"} {
		if at(got, "runs", name, "run", "result", "who") != want {
			t.Errorf("%s is %v\n%s", name, at(got, "runs", name), j.stderr.String())
		}
	}
	if _, err := os.Stat(filepath.Join(j.cmd.Dir, "submission.h")); err == nil {
		t.Error("submission.h is left")
	}
}
