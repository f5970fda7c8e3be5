package result

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestTurns has the submissions begin rounds in turn.
func TestTurns(t *testing.T) {
	t.Parallel()
	for tested, want := range map[bool]string{
		true:  "test.A test.B benchmark.A.1 benchmark.B.1 benchmark.B.2 benchmark.A.2 benchmark.A.3 benchmark.B.3",
		false: "benchmark.A.1 benchmark.B.1 benchmark.B.2 benchmark.A.2 benchmark.A.3 benchmark.B.3",
	} {
		var names []string
		for _, turn := range Turns(3, tested) {
			names = append(names, turn.Name())
		}
		must.Equal(t, want, strings.Join(names, " "))
	}
	must.Equal(t, 2+2*MaxRounds, len(Turns(MaxRounds, true)))
}

// TestReportComparison shows the evaluations of a comparison on a screenful, without the tables of their times.
func TestReportComparison(t *testing.T) {
	t.Parallel()
	r := &Result{Success: true}
	for _, turn := range Turns(MaxRounds, true) {
		report := append(timings(1, "size: %d"), "benchmark.0.err: 1024000")
		if turn.Round == 0 {
			report = []string{"test-count: 1", "test.0.status: pass"}
		}
		r.Runs.Set(turn.Name(), &Evaluation{Run: &Run{Passed: true, Duration: "1", Result: reported(report...)}})
	}
	var b strings.Builder
	r.Report(&b, false)
	if got := b.String(); strings.Count(got, "\n") > 60 || strings.Contains(got, "mean") || r.Vague() {
		t.Errorf("%s", got)
	}
	must.Contain(t, b.String(), "Passed: test.A, …, benchmark.A.100\n", "  test.B          passed  1 of 1 test       1.00 s\n", "… and 152 more evaluations; see result.json for all\n")
	run := r.Runs.Get("benchmark.B.2").Run
	run.Passed, run.ExitCode, run.Result = false, ExitWrong, reported("benchmark-count: 1", "benchmark.0.status: fail", "benchmark.0.error: off by one")
	b.Reset()
	r.Report(&b, false)
	must.Contain(t, b.String(), "Not passed: benchmark.B.2: 1 of 1 benchmark failed\n", "  off by one\n")
}
