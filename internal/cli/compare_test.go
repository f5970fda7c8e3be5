package cli

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// believed is a problem whose judge believes the times of its submissions.
const believed = `{files: [{name: submission.py, source: "@SUBMISSION@"}, {name: eval.py, source: eval.py}], lang: py, config: {main: eval.py}, ranking_by: geom,
tests: [{size: 1}], benchmarks: [{size: 2}], test_timeout: 60, benchmark_timeout: 60}`

const believing = `import os, sys
import submission
out = os.fdopen(int(os.environ["POPCORN_FD"]), "w")
ns = submission.ns + os.getpid() % 7
print(f"benchmark-count: 1\nbenchmark.0.spec: size: 2\nbenchmark.0.mean: {ns}\nbenchmark.0.calls: {ns - 1} {ns} {ns + 1}", file=out)
print("check:", submission.check, file=out)
`

// onRunner runs kbnode against a fake Buildkite whose agent runs kbnode runner, as in a job's container.
func onRunner(t *testing.T) *bktest.Server {
	t.Helper()
	python(t)
	s := bktest.New(bktest.Options{Steps: runnerStep})
	must.Do(t, s.Employ(t.Context(), bktest.Worker{Name: "n-gpu3", Tags: []string{"queue=b200", "gpu-index=3"}, Do: func(_ context.Context, w *bktest.Work) {
		cmd := process(t, "runner")
		cmd.Dir = t.TempDir()
		for k, v := range w.Env {
			if payload.IsVar(k) {
				cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-1, k+"="+v)
			}
		}
		log, _ := cmd.CombinedOutput() // the exit code says it
		t.Logf("%s", log)
		w.Exit, w.Files = cmd.ProcessState.ExitCode(), map[string]string{"result.json": must.Read(t, filepath.Join(cmd.Dir, "result.json")), "node.json": nodeQuiet}
	}}))
	useBuildkite(t, s)
	return s
}

// TestSubmitComparison compares two files on a node, shows it again by its run ID, and what comes of a file that is wrong.
func TestSubmitComparison(t *testing.T) {
	s := onRunner(t)
	dir := t.TempDir()
	must.Write(t, dir, "task.yml", believed)
	must.Write(t, dir, "eval.py", believing)
	slow := must.Write(t, dir, "old.py", "ns, check = 150000, 'pass'\n")
	fast := must.Write(t, dir, "new.py", "ns, check = 100000, 'pass'\n")
	wrong := must.Write(t, dir, "wrong.py", "ns, check = 1, 'fail'\n")
	plot := filepath.Join(dir, "times.svg")
	r := kbnode(t, "submit", "--queue", "b200", slow, fast, "--problem", dir, "--rounds", "3", "--plot", plot, "--run-id", "run-1")
	must.Equal(t, 0, r.code)
	must.Contain(t, r.out, "new.py is faster than old.py: it takes 33.3 % less time (", "\non no GPU", ", 3 rounds of mode benchmark\n\n  A  old.py\n  B  new.py\n\nBENCHMARK ",
		"\n  size: 2\n  A ", "\n  single calls, the middle 95 %\n  A ", "build 1 on n-gpu3, ")
	must.Contain(t, r.err, "3 rounds of both files in one job, which may take up to 22 minutes\n", "build 1: passed\n")
	if strings.Contains(r.out, "passed") {
		t.Errorf("the verdict is there twice: %s", r.out)
	}
	must.Contain(t, must.Read(t, plot), "old.py and new.py on "+filepath.Base(dir), "<path class=\"b\"", "</svg>\n")
	must.Equal(t, "kbnode submit: "+filepath.Base(dir)+", comparison in 3 rounds", s.Builds()[0].Message)

	again := kbnode(t, "submit", "--follow", "run-1", "--plot", filepath.Join(dir, "again.svg"))
	must.Equal(t, strings.Split(r.out, "build 1 on")[0], strings.Split(again.out, "build 1 on")[0])
	must.Equal(t, must.Read(t, plot), must.Read(t, filepath.Join(dir, "again.svg")))

	var got submit.Outcome
	must.Do(t, json.Unmarshal([]byte(kbnode(t, "submit", "--follow", "run-1", "--json").out), &got))
	if c := got.Comparison; c == nil || c.Overall.Verdict != "faster" || len(c.Rounds) != 3 || c.Files != [2]string{"old.py", "new.py"} || len(c.Rounds[2].Calls[0][1]) != 3 || got.Result == nil {
		t.Errorf("%+v", got)
	}

	r = kbnode(t, "submit", "--queue", "b200", fast, wrong, "--problem", dir, "--rounds", "3")
	if r.code != 1 || !strings.Contains(r.out, "Not passed: test.B: reported check: fail\n") || !strings.Contains(r.err, "not passed: wrong.py did not pass its tests, so the files are not compared\n") {
		t.Errorf("%+v", r)
	}
	// The payload by itself, of which no one knows the names of its files.
	doc := must.Write(t, dir, "payload.json", `{"lang":"py","mode":"compare","rounds":3,"main":"eval.py","benchmarks":[{}],"sources":{"eval.py":`+quoted(believing)+`,"submission.py":"ns, check = 100000, 'pass'"},"other_sources":{"submission.py":"ns, check = 150000, 'pass'"}}`)
	r = kbnode(t, "submit", "--queue", "b200", "--payload", doc)
	must.Equal(t, 0, r.code)
	must.Contain(t, r.out, "second is slower than first: it takes 50.0 % more time (")
}

func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// TestComparisonIsNoOther has --mode make no evaluation of one submission out of a comparison.
func TestComparisonIsNoOther(t *testing.T) {
	t.Setenv("BUILDKITE_API_TOKEN", "")
	doc := must.Write(t, t.TempDir(), "payload.json", `{"lang":"py","mode":"compare","rounds":3,"main":"eval.py","benchmarks":[{}],"sources":{"eval.py":"","submission.py":""},"other_sources":{"submission.py":""}}`)
	for mode, code := range map[string]int{"": 0, "compare": 2, "leaderboard": 2} {
		args := []string{"submit", "--queue", "b200", "--payload", doc, "--dry-run"}
		if mode != "" {
			args = append(args, "--mode", mode)
		}
		if r := kbnode(t, args...); r.code != code {
			t.Errorf("--mode %q: %+v", mode, r)
		}
	}
}
