package compare

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestQuantile compares with the table of the NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		df    int
		level float64
		want  float64
	}{
		{1, 0.95, 12.706}, {2, 0.95, 4.303}, {3, 0.95, 3.182}, {4, 0.95, 2.776}, {9, 0.95, 2.262}, {10, 0.90, 1.812}, {19, 0.99, 2.861},
		{1, 0.99, 63.657}, {2, 0.998, 22.327}, {5, 0.998, 5.893}, {30, 0.95, 2.042}, {99, 0.95, 1.984}, {100, 0.998, 3.174},
	} {
		if got := quantile(c.df, c.level); math.Abs(got-c.want) > 0.0006 {
			t.Errorf("%d, %v: got %.4f, want %v", c.df, c.level, got, c.want)
		}
	}
}

// simulated returns the report of rounds in which the second of two submissions takes so many times as long
// as the first. The machine drifts, each evaluation has a deviation, and some are disturbed.
func simulated(rng *rand.Rand, rounds, benchmarks int, ratio, deviation float64) *Report {
	r := &Report{Ranking: "geom", Files: [2]string{"a.py", "b.py"}, Wanted: rounds, Mode: "benchmark"}
	drift := 0.0
	for n := range rounds {
		round := Round{First: result.First(n + 1), Means: make([][2]float64, benchmarks)}
		for _, side := range []int{round.First, 1 - round.First} {
			drift += rng.NormFloat64() * deviation
			common := rng.NormFloat64() * deviation // of an evaluation: where its memory happens to lie
			if rng.IntN(20) == 0 {
				common += 5 * deviation
			}
			for i := range round.Means {
				ns := 1e6 * math.Pow(10, float64(i%4)) * math.Exp(drift+common+rng.NormFloat64()*deviation)
				if side == 1 {
					ns *= ratio
				}
				round.Means[i][side] = ns
			}
		}
		r.Rounds = append(r.Rounds, round)
	}
	var specs []string
	for i := range benchmarks {
		specs = append(specs, fmt.Sprintf("size: %d", i))
	}
	r.Judge(specs)
	return r
}

func differs(d Difference) bool { return d.Verdict == Faster || d.Verdict == Slower }

// TestEqualSubmissions counts how often two equal submissions are called different: in one of 20 comparisons
// at most, overall and, apart from that, in any row of a benchmark, whatever the number of rounds and of benchmarks.
func TestEqualSubmissions(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2)) // the same in each run
	const trials = 2000
	for _, c := range []struct{ rounds, benchmarks int }{{3, 1}, {4, 1}, {10, 1}, {20, 1}, {10, 6}, {5, 20}} {
		overall, rows := 0, 0
		for range trials {
			r := simulated(rng, c.rounds, c.benchmarks, 1, 0.03)
			if differs(r.Overall) {
				overall++
			}
			for _, b := range r.Benchmarks {
				if differs(b.Difference) {
					rows++
					break
				}
			}
		}
		// Of so many trials, one in 20 deviates by at most 0.013 with probability 0.99.
		if most := 0.063 * trials; float64(overall) > most || float64(rows) > most {
			t.Errorf("%d rounds, %d benchmarks: of %d comparisons of equals, %d differ, and %d have a row that does", c.rounds, c.benchmarks, trials, overall, rows)
		}
	}
}

// TestVerdicts simulates differences.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4)) // the same in each run
	for _, c := range []struct {
		ratio, deviation float64
		rounds           int
		want             Verdict
	}{
		{1.1, 0.01, 10, Slower}, {1 / 1.1, 0.01, 10, Faster}, {1, 0.001, 10, Equal}, {1, 0.1, 10, Noisy}, {1.05, 0.2, 10, Noisy},
		{100, 0.1, 3, Slower}, {1.1, 0.001, 2, Unknown}, {1.1, 0.001, 1, Unknown}, {1, 0, 3, Equal},
	} {
		r := simulated(rng, c.rounds, 1, c.ratio, c.deviation)
		if r.Overall.Verdict != c.want || r.Benchmarks[0].Difference != r.Overall {
			t.Errorf("%+v: %+v", c, r.Overall)
		}
		if d := r.Overall; c.rounds > 1 && c.deviation > 0 && (d.Low > c.ratio || d.High < c.ratio) {
			t.Errorf("%+v: %+v", c, d)
		}
	}
	must.Equal(t, "-9.8 % (-10.2 to -9.4)", Difference{Ratio: 0.902, Low: 0.898, High: 0.906}.Change())
	must.Equal(t, "+0.50 % (0.0 to +1.2)", Difference{Ratio: 1.005, Low: 1.00001, High: 1.012}.Change())
	must.Equal(t, "b is faster than a: it takes 9.8 % less time (9.4 to 10.2)", Difference{0.902, 0.898, 0.906, Faster}.Sentence([2]string{"a", "b"}))
	must.Equal(t, "b is slower than a: it takes 2000 % more time (1900 to 2100)", Difference{21, 20, 22, Slower}.Sentence([2]string{"a", "b"}))
}

// TestRanking tests that the overall ratio is that of the scores.
func TestRanking(t *testing.T) {
	t.Parallel()
	for ranking, want := range map[string]float64{"geom": 1, "last": 1, "mean": (4 + 50) / (2 + 100.)} {
		r := &Report{Ranking: ranking, Rounds: []Round{{Means: [][2]float64{{2, 4}, {100, 50}}}}}
		r.Judge([]string{"x", "y"})
		if math.Abs(r.Overall.Ratio-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", ranking, r.Overall.Ratio, want)
		}
	}
}

// ran returns a result of benchmarks with these means.
func ran(mode string, means ...string) arena.Evaluation {
	run := &result.Run{Success: true, Passed: true, Duration: "1"}
	run.Result.Set("benchmark-count", fmt.Sprint(len(means)))
	for i, m := range means {
		run.Result.Set(fmt.Sprintf("benchmark.%d.spec", i), fmt.Sprintf("size: %d", i))
		run.Result.Set(fmt.Sprintf("benchmark.%d.mean", i), m)
	}
	run.Result.Set("check", "pass")
	return arena.Evaluation{Result: &result.Result{Success: true, Runs: result.Pairs[*result.Evaluation]{{Key: mode, Value: &result.Evaluation{Run: run}}}}}
}

func wrong(mode string) arena.Evaluation {
	e := ran(mode)
	e.Result.Runs[0].Value.Run.Passed, e.Result.Runs[0].Value.Run.ExitCode = false, result.ExitWrong
	return e
}

func TestRun(t *testing.T) {
	t.Parallel()
	slow := func(side int) string { return []string{"1000", "1100"}[side] }
	for _, c := range []struct {
		name     string
		evaluate func(side, round int) arena.Evaluation // round 0 is the test
		says     string                                 // the error
		rounds   int
		verdict  Verdict
	}{
		{"slower", func(side, round int) arena.Evaluation { return ran("benchmark", slow(side), "5e6") }, "", 4, Slower},
		{"b fails its tests", func(side, round int) arena.Evaluation {
			if side == 1 {
				return wrong("test")
			}
			return ran("test")
		}, "failure of 1 in round 0", 0, Unknown},
		{"b is wrong later", func(side, round int) arena.Evaluation {
			if side == 1 && round == 3 {
				return wrong("benchmark")
			}
			return ran("benchmark", slow(side))
		}, "failure of 1 in round 3", 2, Unknown},
		{"other benchmarks", func(side, round int) arena.Evaluation {
			return ran("benchmark", []string{"1", "2"}[:1+side]...)
		}, "round 1: the benchmarks of both submissions differ; use a judge that reports the same for each", 0, Unknown},
		{"other benchmarks later", func(side, round int) arena.Evaluation {
			return ran("benchmark", []string{"1", "2"}[:1+round/2]...)
		}, "round 2: the benchmarks are not those of round 1; use a judge that reports the same in each run", 1, Unknown},
		{"no mean", func(side, round int) arena.Evaluation { return ran("benchmark") }, "round 1: a.py: it reports no benchmark.0.mean; use a problem whose judge reports one, as kernelbot's eval.py does", 0, Unknown},
		{"a mean that is no number", func(side, round int) arena.Evaluation { return ran("benchmark", "nan") }, `round 1: a.py: the mean "nan" of benchmark 0 is no time`, 0, Unknown},
		{"no time", func(side, round int) arena.Evaluation { return ran("benchmark", "1", "0.0") }, `round 1: a.py: the mean "0.0" of benchmark 1 is no time`, 0, Unknown},
		{"a time of nothing", func(side, round int) arena.Evaluation { return ran("benchmark", "1e-320") }, `round 1: a.py: the mean "1e-320" of benchmark 0 is no time`, 0, Unknown},
		{"a time of ages", func(side, round int) arena.Evaluation { return ran("benchmark", "1e308") }, `round 1: a.py: the mean "1e308" of benchmark 0 is no time`, 0, Unknown},
		{"no mean later", func(side, round int) arena.Evaluation {
			if side == 1 && round == 4 {
				return ran("benchmark")
			}
			return ran("benchmark", slow(side))
		}, "round 4: b.py: it reports no benchmark.0.mean; use a problem whose judge reports one, as kernelbot's eval.py does", 3, Unknown},
		{"implausible, then no mean", func(side, round int) arena.Evaluation {
			if round == 4 {
				e := ran("benchmark")
				e.Witness = "benchmark, benchmark.0: all runs took exactly 5 ns"
				return e
			}
			return ran("benchmark", slow(side))
		}, "round 4: b.py: it reports no benchmark.0.mean; use a problem whose judge reports one, as kernelbot's eval.py does", 3, Implausible},
		{"endless", func(side, round int) arena.Evaluation { return ran("benchmark", "1e400") }, `round 1: a.py: the mean "1e400" of benchmark 0 is no time`, 0, Unknown},
		{"too many", func(side, round int) arena.Evaluation {
			return ran("benchmark", strings.Fields(strings.Repeat("5 ", maxBenchmarks+1))...)
		}, "round 1: a.py: it reports more than 256 benchmarks", 0, Unknown},
		{"another mode", func(side, round int) arena.Evaluation { return ran("leaderboard", "1") }, "round 1: a.py: there is no run of mode benchmark", 0, Unknown},
		{"no result", func(side, round int) arena.Evaluation {
			if round == 2 {
				return arena.Evaluation{Err: errors.New("no space left")}
			}
			return ran("benchmark", slow(side))
		}, "evaluate b.py: no space left", 1, Unknown},
		{"implausible", func(side, round int) arena.Evaluation {
			e := ran("benchmark", slow(side))
			if side == 1 && round == 2 {
				e.Witness = "benchmark, benchmark.0: all runs took exactly 5 ns"
			}
			return e
		}, "", 4, Implausible},
	} {
		round := 0
		r := &Report{Files: [2]string{"a.py", "b.py"}}
		o := Options{Mode: "benchmark", Rounds: 4, On: func(_, n int) { round = n }, Evaluate: func(_ context.Context, side int, mode string) arena.Evaluation {
			if want := map[bool]string{true: "test", false: "benchmark"}[round == 0]; mode != want {
				t.Errorf("%s: mode %s in round %d", c.name, mode, round)
			}
			return c.evaluate(side, round)
		}}
		err := Run(t.Context(), o, r)
		says := ""
		if f, ok := errors.AsType[*Failure](err); ok {
			says = fmt.Sprintf("failure of %d in round %d", f.Side, f.Round)
		} else if err != nil {
			says = err.Error()
		}
		if says != c.says || len(r.Rounds) != c.rounds || r.Overall.Verdict != c.verdict || r.Done() != (c.verdict == Slower) && c.rounds > 0 {
			t.Errorf("%s: %q, %d rounds, %+v", c.name, says, len(r.Rounds), r.Overall)
		}
	}
}

// TestRunInterrupt interrupts in the tests, in the first round, and in the fourth.
func TestRunInterrupt(t *testing.T) {
	t.Parallel()
	for at, want := range map[int]int{1: 0, 4: 0, 10: 3} {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		var order []string
		o := Options{Mode: "benchmark", Rounds: 9, Evaluate: func(_ context.Context, side int, _ string) arena.Evaluation {
			order = append(order, fmt.Sprint(side))
			calls++
			if calls == at {
				cancel()
				return wrong("benchmark") // it was ended
			}
			return ran("benchmark", "7")
		}}
		r := &Report{}
		err := Run(ctx, o, r)
		if (err != nil) != (at <= 2) || len(r.Rounds) != want || calls != at || r.Done() && at > 2 {
			t.Errorf("at %d: %v, %d rounds after %d calls, %q", at, err, len(r.Rounds), calls, r.Stopped)
		}
		if got := strings.Join(order, ""); !strings.HasPrefix("0101100110", got) {
			t.Errorf("the order is %s", got)
		}
	}
}

// TestRunWitness interrupts a round after a time that cannot be.
func TestRunWitness(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	r := &Report{Files: [2]string{"a.py", "b.py"}}
	o := Options{Mode: "benchmark", Rounds: 9, Untested: true, Evaluate: func(_ context.Context, side int, _ string) arena.Evaluation {
		e := ran("benchmark", []string{"1000", "1100"}[side])
		calls++
		switch calls {
		case 7:
			e.Witness = "all runs took exactly 5 ns"
		case 8:
			cancel()
		}
		return e
	}}
	must.Do(t, Run(ctx, o, r))
	says, beside := r.Conclusion(r.Files)
	must.Equal(t, "no verdict: some times cannot be\nimplausible: b.py, round 4: all runs took exactly 5 ns\nstopped after 3 of 9 rounds: interrupted", strings.Join(append([]string{says}, beside...), "\n"))
	must.Equal(t, Implausible, r.Benchmarks[0].Verdict)
}

// TestRoundsFor tests that the advice can be typed, and is no less than was done.
func TestRoundsFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n         int
		low, high float64
		want      int
	}{
		{3, 0.9995, 1.0105, 6}, {10, 0.9975, 1.0125, 20}, {60, 0.9975, 1.0125, 100}, {100, 0.9975, 1.0125, 0},
		{3, math.Exp(-0.06), math.Exp(0.06), 26}, {3, math.Exp(-0.01), math.Exp(0.01), 4}, {10, 0.5, 2, 0}, {3, math.Exp(-700), math.Exp(700), 0},
	} {
		must.Equal(t, c.want, Difference{Low: c.low, High: c.high}.RoundsFor(c.n))
	}
}

// TestJSON marshals the widest interval that times allow.
func TestJSON(t *testing.T) {
	t.Parallel()
	r := &Report{Ranking: "mean"}
	for _, both := range [][2]float64{{minTime, maxTime}, {maxTime, minTime}} {
		r.Rounds = append(r.Rounds, Round{Means: slices.Repeat([][2]float64{both}, maxBenchmarks)})
	}
	r.Judge(make([]string, maxBenchmarks))
	_, err := json.Marshal(r)
	must.Do(t, err)
}

// TestLabel tells files apart whose names are long, and alike but for a part anywhere.
func TestLabel(t *testing.T) {
	t.Parallel()
	for _, files := range [][2]string{
		{"fp8_gemm_v1_kernel.py", "fp8_gemm_v2_kernel.py"}, {"attention_kernel_v1_fp8_blockscaled.py", "attention_kernel_v2_fp8_blockscaled.py"},
		{"/home/me/exp/old/submission.py", "/home/me/exp/new/submission.py"}, {strings.Repeat("a", 50), strings.Repeat("a", 51)}, {"a\x00.py", "a.py"}, {"a.py", "a.py"},
	} {
		for _, most := range []int{14, 16, 24, 30} {
			names := Label(files, most)
			if names[0] == names[1] || utf8.RuneCountInString(names[0]) > most || utf8.RuneCountInString(names[1]) > most {
				t.Errorf("%d: %q", most, names)
			}
		}
	}
	must.Equal(t, [2]string{"…mm_v1_kernel…", "…mm_v2_kernel…"}, Label([2]string{"fp8_gemm_v1_kernel.py", "fp8_gemm_v2_kernel.py"}, 16))
	must.Equal(t, [2]string{"/x/a.py", "/y/a.py"}, Label([2]string{"/x/a.py", "/y/a.py"}, 14))
}

// TestPlots draws comparisons of all kinds, as hostile as reports can be.
func TestPlots(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6)) // the same in each run
	plain := func(_ int, s string) string { return s }
	for _, c := range []struct {
		rounds, benchmarks int
		ratio, deviation   float64
	}{{1, 1, 1, 0}, {3, 1, 1, 0}, {10, 2, 1.1, 0.01}, {100, 100, 1e9, 1}, {5, 1, 1e-12, 2}, {10, 1, 1, 1e-9}} {
		r := simulated(rng, c.rounds, c.benchmarks, c.ratio, c.deviation)
		r.Files, r.Problem = [2]string{"x/<a>&\x1b[31m.py", "x/" + strings.Repeat("b", 300) + ".py"}, "sort\xff\"'"
		r.Benchmarks[0].Spec = "</text>\x00\u202e" + strings.Repeat("size: 5; ", 30)
		for _, columns := range []int{60, 80, 100} {
			for line := range strings.Lines(r.Strips(columns, plain)) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > columns {
					t.Errorf("%+v: %d of %d columns: %s", c, n, columns, line)
				}
			}
		}
		picture := r.SVG()
		d := xml.NewDecoder(strings.NewReader(picture))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%+v: %v\n%.2000s", c, err, picture)
				break
			}
		}
		if strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") || strings.Count(picture, "<circle") != 2*c.rounds*min(c.benchmarks, maxPanels) {
			t.Errorf("%+v: %.2000s", c, picture)
		}
	}
}

func TestStrips(t *testing.T) {
	t.Parallel()
	r := &Report{}
	for _, both := range [][2]float64{{100e3, 110e3}, {101e3, 111e3}, {100e3, 111e3}, {99e3, 113e3}, {108e3, 109.6e3}} {
		r.Rounds = append(r.Rounds, Round{Means: [][2]float64{both}})
	}
	r.Judge([]string{"size: 10000"})
	must.Equal(t, `
  size: 10000
  A   ·  │   ·                         ·
  B                                          ··   │      ·
    ─────┬──────────────────┬─────────────────┬─────────────
      100 µs             105 µs            110 µs
`, r.Strips(60, func(_ int, s string) string { return s }))
}
