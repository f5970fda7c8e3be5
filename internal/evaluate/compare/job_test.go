package compare

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// jobOf returns the result of a job that compared in four rounds; the second submission takes 1.1 times as long.
func jobOf(tested bool) *result.Result {
	r := &result.Result{Success: true, System: &result.System{GPU: "NVIDIA B200"}}
	for _, turn := range result.Turns(4, tested) {
		ev := ran("x", []string{"1000", "1100"}[turn.Side], "5e6").Result.Runs[0].Value
		ev.Start = result.Time(time.Date(2026, 1, 2, 3, 4, turn.Round, 5, time.UTC))
		r.Runs.Set(turn.Name(), ev)
	}
	return r
}

// TestRead reads comparisons that jobs made: whole, ended before their end, and faulty.
func TestRead(t *testing.T) {
	t.Parallel()
	cut := func(r *result.Result, name string) {
		for i := range r.Runs {
			if r.Runs[i].Key == name {
				r.Runs = r.Runs[:i]
				return
			}
		}
	}
	for _, c := range []struct {
		name    string
		change  func(r *result.Result)
		odd     []string
		says    string // the error
		rounds  int
		verdict Verdict
	}{
		{"whole", func(*result.Result) {}, nil, "", 4, Slower},
		{"implausible", func(*result.Result) {}, []string{"benchmark.B.2, benchmark.0: the mean is negative"}, "", 4, Implausible},
		{"interrupted", func(r *result.Result) { cut(r, "benchmark.B.3"); r.Success, r.Error = false, "the job was cancelled" }, nil, "the job was cancelled", 2, Unknown},
		{"interrupted in an evaluation", func(r *result.Result) {
			cut(r, "benchmark.A.4")
			r.Runs.Get("benchmark.B.4").Run.Passed = false
			r.Success, r.Error = false, "the job was cancelled"
		}, nil, "the job was cancelled", 3, Unknown},
		{"an error at its end", func(r *result.Result) { r.Success, r.Error = false, "a program changed /tmp/x" }, nil, "a program changed /tmp/x", 4, Unknown},
		{"refused by an old runner", func(r *result.Result) { cut(r, "test.A"); r.Success, r.Error = false, "mode: is 'compare'" }, nil, "mode: is 'compare'", 0, Unknown},
		{"another evaluation", func(r *result.Result) { r.Runs[0].Key = "test" }, nil, "its result has no run test.A; check that the pipeline evaluates what it is sent", 0, Unknown},
		{"a round is missing", func(r *result.Result) { cut(r, "benchmark.B.4") }, nil, "its result has no run benchmark.B.4; check", 3, Unknown},
		{"a wrong test", func(r *result.Result) { r.Runs.Get("test.B").Run.Passed = false }, nil, "failure of 1 in round 0: its tests", 0, Unknown},
		{"does not compile", func(r *result.Result) { r.Runs.Get("benchmark.A.3").Run = nil }, nil, "failure of 0 in round 3: round 3", 2, Unknown},
		{"no time", func(r *result.Result) { r.Runs.Get("benchmark.B.2").Run.Result.Set("benchmark.1.mean", "-1") }, nil, `round 2: b.py: the mean "-1" of benchmark 1 is no time`, 1, Unknown},
		{"another benchmark", func(r *result.Result) { r.Runs.Get("benchmark.A.2").Run.Result.Set("benchmark.1.spec", "x") }, nil, "round 2: the benchmarks of both submissions differ", 1, Unknown},
	} {
		r := &Report{Files: [2]string{"a.py", "b.py"}, Ranking: "geom"}
		res := jobOf(true)
		c.change(res)
		err := r.Read(res, 4, true, c.odd)
		says := ""
		if f, ok := errors.AsType[*Failure](err); ok {
			says = fmt.Sprintf("failure of %d in round %d: %s", f.Side, f.Round, f.Where())
		} else if err != nil {
			says = err.Error()
		}
		if !strings.HasPrefix(says, c.says) || (says == "") != (c.says == "") || len(r.Rounds) != c.rounds || r.Overall.Verdict != c.verdict || r.Done() != (c.verdict == Slower) {
			t.Errorf("%s: %q, %d rounds, %+v", c.name, says, len(r.Rounds), r.Overall)
		}
	}
	r := &Report{Files: [2]string{"a.py", "b.py"}}
	must.Do(t, r.Read(jobOf(false), 4, false, nil))
	must.Equal(t, "NVIDIA B200, 2026-01-02T03:04:01Z, benchmark", fmt.Sprintf("%s, %s, %s", r.On, r.Time.Format(time.RFC3339), r.Mode))
	must.Equal(t, 1, r.Rounds[1].First)
	must.Equal(t, [2]float64{1000, 1100}, r.Rounds[1].Means[0])
}

// TestNoisyJob advises no one to end other programs on a node.
func TestNoisyJob(t *testing.T) {
	t.Parallel()
	for onNode, want := range map[bool]string{
		true: "with this noise, even 100 rounds do not tell 1 % apart", false: "end other programs: with this noise, even 100 rounds do not tell 1 % apart",
	} {
		r := simulated(rand.New(rand.NewPCG(9, 9)), 10, 1, 1, 0.5)
		r.onNode = onNode
		_, beside := r.Conclusion(r.Files)
		must.Equal(t, want, strings.Join(beside, "\n"))
	}
}
