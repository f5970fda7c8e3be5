package compare

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/test/must"
)

// called returns an evaluation with the times of calls.
func called(mean, calls string) arena.Evaluation {
	e := ran("benchmark", mean)
	e.Result.Runs[0].Value.Run.Result.Set("benchmark.0.calls", calls)
	return e
}

// TestCalls keeps the times of single calls if all are times, and not too many.
func TestCalls(t *testing.T) {
	t.Parallel()
	for calls, want := range map[string]int{
		"990 1010": 2, "": 0, "1000": 1, "  1e3\t999.5 ": 2, "990 nan": 0, "990 -1": 0, "0 0": 0, "990, 1010": 0, "1e300": 0,
		strings.Repeat("5 ", maxCalls): maxCalls, strings.Repeat("5 ", maxCalls+1): 0,
	} {
		e := called("1000", calls)
		got, err := read(e.Result.Runs[0].Value.Run)
		must.Do(t, err)
		if len(got.calls[0]) != want {
			t.Errorf("%.40q: %d calls, want %d", calls, len(got.calls[0]), want)
		}
	}
}

// TestCallsAreBounded keeps no more than so many, and those of all benchmarks of a round or none.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	r := &Report{}
	side := timings{specs: make([]string, maxBenchmarks), means: make([]float64, maxBenchmarks)}
	for range side.specs {
		side.calls = append(side.calls, make([]float64, maxCalls))
	}
	sparse := timings{specs: []string{"a", "b"}, means: []float64{1, 1}, calls: [][]float64{{1}, nil}}
	must.Do(t, r.add(1, [2]timings{sparse, sparse}))
	r.specs = nil
	kept := 0
	for range MaxRounds {
		must.Do(t, r.add(1, [2]timings{side, side}))
	}
	for _, round := range r.Rounds {
		for _, both := range round.Calls {
			kept += len(both[0]) + len(both[1])
		}
	}
	if kept > maxKept || r.Rounds[0].Calls != nil {
		t.Errorf("%d kept, %v", kept, r.Rounds[0].Calls)
	}
}

// spreading returns a comparison whose first submission takes 100 to 109 µs, and the second 110 or, in one of 40 calls, 900.
func spreading() *Report {
	r := &Report{Files: [2]string{"a.py", "b.py"}, Ranking: "geom"}
	for n := range 4 {
		var a, b []float64
		for i := range 100 {
			a, b = append(a, 100e3+float64(i%10)*1e3), append(b, 110e3)
		}
		b[n], b[50+n] = 900e3, 900e3
		r.Rounds = append(r.Rounds, Round{Means: [][2]float64{{105e3 + float64(n), 118e3}}, Calls: [][2][]float64{{a, b}}})
	}
	r.Judge([]string{"size: 10000"})
	return r
}

// TestSpread draws single calls without the few that were interrupted.
func TestSpread(t *testing.T) {
	t.Parallel()
	r := spreading()
	got := r.Strips(60, func(_ int, s string) string { return s })
	_, got, _ = strings.Cut(got, "single calls")
	must.Equal(t, `, the middle 95 %
  A   █    █    █    █    █     █    █    █    █    █
  B                                                      █
`, strings.Join(strings.SplitAfter(got, "\n")[:3], ""))
	s, ok := r.spread(0, 5)
	if !ok {
		t.Fatal("no calls")
	}
	must.Equal(t, "400 calls: median 104.5 µs, the middle 95 % 100.0 µs to 109.0 µs", s.about(0))
	must.Equal(t, "400 calls: median 110.0 µs, the middle 95 % 110.0 µs to 110.0 µs", s.about(1))
	picture := r.SVG()
	if strings.Count(picture, "<path") != 2 || strings.Contains(picture, "NaN") {
		t.Errorf("%s", picture)
	}
	must.Contain(t, picture, "a hill: the middle 95 % of the calls", "<title>400 calls: median 104.5 µs")
	r.Rounds[2].Calls = nil // of a round that reported none
	if _, ok := r.spread(0, 5); !ok {
		t.Error("no calls of the other rounds")
	}
	body, err := json.Marshal(r)
	must.Do(t, err)
	must.Contain(t, string(body), `"calls_ns":[[[100000,101000,`)
}

// TestSpreadOfExtremes draws the shortest and the longest times that are some.
func TestSpreadOfExtremes(t *testing.T) {
	t.Parallel()
	for _, calls := range [][]float64{{minTime}, {maxTime}, {minTime, maxTime}, {1, 1, 1}, {5}} {
		r := &Report{Files: [2]string{"a.py", "b.py"}, Ranking: "geom"}
		for range 3 {
			r.Rounds = append(r.Rounds, Round{Means: [][2]float64{{5, 5}}, Calls: [][2][]float64{{calls, {5}}}})
		}
		r.Judge([]string{"x"})
		if p := r.SVG(); strings.Contains(p, "NaN") || strings.Contains(p, "Inf") {
			t.Errorf("%v: %s", calls, p)
		}
		for _, h := range must1(r.spread(0, 5)).heights(0, 30) {
			if math.IsNaN(h) || h < 0 || h > 1 {
				t.Errorf("%v: %v", calls, h)
			}
		}
		r.Strips(80, func(_ int, s string) string { return s })
	}
}

func must1(s spread, _ bool) *spread { return &s }
