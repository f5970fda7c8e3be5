package submit

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpu-mode/kbnode/internal/evaluate/compare"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// compared returns the result.json of a comparison in three rounds, of which the second submission takes 1.5 times as long.
func compared(change func(r *result.Result)) string {
	r := &result.Result{Success: true, System: &result.System{GPU: "NVIDIA B200"}}
	for _, turn := range result.Turns(3, true) {
		run := &result.Run{Success: true, Passed: true, Duration: "1"}
		run.Result.Set("check", "pass")
		if turn.Round > 0 {
			run.Result.Set("benchmark.0.mean", fmt.Sprint(1000*(2+turn.Side)))
		}
		r.Runs.Set(turn.Name(), &result.Evaluation{Run: run})
	}
	change(r)
	text, _ := r.Encode()
	return string(text)
}

// TestComparison submits two submissions: one that is slower, one that is wrong, to a node that compares nothing, and so on.
func TestComparison(t *testing.T) {
	t.Parallel()
	whole := func(*result.Result) {}
	const quiet = `{"schema":2,"noisy":false}`
	for _, tt := range []struct {
		name, result, node string
		exit               int
		verdict            Verdict
		reason             string
		rounds             int // in the comparison; 0 for none
		says               compare.Verdict
	}{
		{"slower", compared(whole), quiet, 0, Passed, "new.py is slower than old.py: it takes 50.0 % more time (50.0 to 50.0)", 3, compare.Slower},
		{"a failed build", compared(whole), quiet, 1, NotPassed, "its result says that it passed, but the job failed; see its log (exit status 1)", 3, compare.Withheld},
		{"implausible", compared(whole), `{"schema":2,"implausible":[{"evaluation":"benchmark.B.2","reason":"the mean is negative"}]}`, 0, NotPassed, "no verdict: some times cannot be", 3, compare.Implausible},
		{"a node that is not known", compared(whole), "<html>", 0, NoResult, "no verdict: it is unknown whether the times can be: read node.json: ", 3, compare.Withheld},
		{"a newer node", compared(whole), `{"schema":3,"noisy":false}`, 0, NoResult, "no verdict: it is unknown whether the times can be: node.json is of another version of kbnode", 3, compare.Withheld},
		{"a record that says nothing", compared(whole), "null", 0, NoResult, "no verdict: it is unknown whether the times can be: node.json is of another version of kbnode", 3, compare.Withheld},
		{"no record of the node", compared(whole), "", 0, NoResult, "no verdict: the job left no node.json, which says whether the times can be; add it", 3, compare.Withheld},
		{"wrong", compared(func(r *result.Result) { r.Runs = r.Runs[:2]; r.Runs[1].Value.Run.Passed = false }), quiet, 0, NotPassed, "new.py did not pass its tests, so the files are not compared", 0, ""},
		{"wrong in a round", compared(func(r *result.Result) { r.Runs = r.Runs[:5]; r.Runs[4].Value.Run.Passed = false }), quiet, 0, NotPassed, "new.py did not pass round 2, so the files are not compared", 0, ""},
		{"ended", compared(func(r *result.Result) { r.Runs = r.Runs[:5]; r.Success, r.Error = false, "the job was cancelled" }), quiet, 1, NoResult, "No verdict: the job was cancelled", 1, compare.Unknown},
		{"an old node", `{"success":false,"error":"mode: is 'compare'; it must be one of test, benchmark","runs":{},"system":{}}`, quiet, 1, NoResult,
			"No verdict: mode: is 'compare'; it must be one of test, benchmark; the node's kbnode is too old to compare: upgrade it, or submit the files one by one", 0, ""},
		{"one submission", good, quiet, 0, NotPassed, "its result has no run test.A; check that the pipeline evaluates what it is sent", 0, ""},
		{"no time", compared(func(r *result.Result) { r.Runs[3].Value.Run.Result.Set("benchmark.0.mean", "nan") }), quiet, 0, NotPassed, `round 1: new.py: the mean "nan" of benchmark 0 is no time`, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				files := map[string]string{"result.json": tt.result}
				if tt.node != "" {
					files["node.json"] = tt.node
				}
				bk := open(t, bktest.Options{}, 1, takes(20, tt.exit, files))
				j := job("a")
				j.Build.Steps = []any{map[string]any{"command": "x", "agents": map[string]string{"queue": "b200"}, "artifact_paths": "*.json"}}
				j.Compare = &Comparison{Problem: "sort", Files: [2]string{"/home/me/old.py", "/home/me/new.py"}, Rounds: 3}
				first := bk.run(t.Context(), Options{Node: true}, j)[0]
				again, err := Follow(t.Context(), bk.client, Options{Target: Target{Org: "kbnode", Pipeline: "kernelbot"}, Node: true}, "run-a")
				must.Do(t, err)
				for i, got := range []Outcome{first, again} {
					report := compare.Report{}
					if got.Comparison != nil {
						report = *got.Comparison
					}
					if got.Verdict != tt.verdict || !strings.HasPrefix(got.Reason, tt.reason) || len(report.Rounds) != tt.rounds || report.Overall.Verdict != tt.says {
						t.Errorf("%d: %s: %s, %d rounds, %q", i, got.Verdict, got.Reason, len(report.Rounds), report.Overall.Verdict)
					}
				}
				if meta := bk.Builds()[0].MetaData[compareKey]; strings.Contains(meta, "home") || !strings.Contains(meta, "new.py") {
					t.Errorf("the meta-data is %s", meta)
				}
			})
		})
	}
}

// TestComparisonMetaData reads what anyone may have written.
func TestComparisonMetaData(t *testing.T) {
	t.Parallel()
	long := Comparison{Problem: strings.Repeat("\x1b<", 5000), Files: [2]string{strings.Repeat("\u2028é", 3000) + "a.py", strings.Repeat("ü", 3000) + "b.py"}, Rounds: 100}
	for body, want := range map[string]bool{
		long.String(): true, `{"rounds":3}`: true, `{"rounds":2}`: false, `{"rounds":1000000000}`: false, `{"rounds":"3"}`: false, `[]`: false, "": false, "null": false,
		`{"rounds":3,"problem":"` + strings.Repeat("x", maxComparison) + `"}`: false, `{"rounds":3,"files":["a"]}`: true,
	} {
		if got := comparisonOf(body); (got != nil) != want {
			t.Errorf("%.100s: %+v", body, got)
		}
	}
}

// TestComparisonWithoutDirectories sends names only, also of files that have the same one.
func TestComparisonWithoutDirectories(t *testing.T) {
	t.Parallel()
	for files, want := range map[[2]string][2]string{
		{"/home/me/client-x/old.py", "/home/me/client-x/new.py"}:               {"old.py", "new.py"},
		{"/home/me/client-x/submission.py", "/home/me/client-y/submission.py"}: {"A submission.py", "B submission.py"},
		{"client-x/submission.py", "submission.py"}:                            {"A submission.py", "B submission.py"},
		{"first", "second"}: {"first", "second"},
	} {
		sent := comparisonOf((&Comparison{Files: files, Rounds: 3}).String())
		if sent == nil || sent.Files != want {
			t.Errorf("%v: %+v", files, sent)
		}
	}
}

// TestComparisonOf reads what a payload compares.
func TestComparisonOf(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]*Comparison{
		`{"mode":"compare","rounds":7,"tests":[{}],"ranking_by":"mean"}`: {"a payload", [2]string{"first", "second"}, "mean", 7, false},
		`{"mode":"compare","rounds":7}`:                                  {"a payload", [2]string{"first", "second"}, "None", 7, true},
		`{"mode":"compare","rounds":2}`:                                  nil,
		`{"mode":"benchmark","rounds":7}`:                                nil,
		`{}`:                                                             nil,
	} {
		o, err := payload.ParseObject(doc)
		must.Do(t, err)
		must.Equal(t, want, ComparisonOf(o))
	}
}
