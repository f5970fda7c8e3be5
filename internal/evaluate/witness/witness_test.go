package witness

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

const ms = time.Millisecond

// reporter is a program whose lines arrive one by one, each at the time that step adds.
type reporter struct{ Evaluation }

func (r *reporter) line(step, cpu time.Duration, key string, value any) {
	v := fmt.Sprint(value)
	r.Report = append(r.Report, key+": "+v+"\n"...)
	r.Claims.Set(key, v)
	last := Mark{}
	if len(r.Marks) > 0 {
		last = r.Marks[len(r.Marks)-1]
	}
	r.Marks = append(r.Marks, Mark{len(r.Report), last.At + step, last.CPU + cpu})
	r.End = Mark{len(r.Report), last.At + step + ms, last.CPU + cpu + ms}
}

// case reports a benchmark that took a time, and CPU time; from its numbers, those that are "" are left out.
func (r *reporter) benchmark(i int, took, cpu time.Duration, values ...any) {
	r.line(ms, ms, fmt.Sprintf("benchmark.%d.spec", i), "size: 1000; seed: 5")
	for n, key := range numbers {
		if n < len(values) && values[n] != "" {
			r.line(took, cpu, fmt.Sprintf("benchmark.%d.%s", i, key), values[n])
			took, cpu = 0, 0
		}
	}
}

// tests is an evaluation of two tests, with 40 ms of CPU time until the first line and for each test.
func tests() Evaluation {
	r := &reporter{Evaluation{Name: "test"}}
	r.line(90*ms, 40*ms, "test-count", 2)
	for _, key := range []string{"test.0.spec", "test.0.status", "test.1.spec", "test.1.status"} {
		r.line(100*ms, map[bool]time.Duration{true: 40 * ms}[strings.HasSuffix(key, "status")], key, "pass")
	}
	r.line(0, 0, "check", "pass")
	return r.Evaluation
}

// ran is an evaluation of one benchmark, of 300 ms and 250 ms of CPU time.
func ran(name string, values ...any) Evaluation {
	r := &reporter{Evaluation{Name: name}}
	r.line(90*ms, 40*ms, "benchmark-count", 1)
	r.benchmark(0, 300*ms, 250*ms, values...)
	r.line(0, 0, "check", "pass")
	return r.Evaluation
}

var (
	python = Job{Python: true}
	gpu    = Job{Python: true, GPUs: 1, OnGPU: true}
)

// TestCase judges the numbers of one benchmark.
func TestCase(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		job    Job
		values []any // runs, mean, std, err, best, worst
		want   string
	}{
		{"honest", python, []any{100, 230000., 12000., 1200., 220000., 310000.}, ""},
		{"a recorded case", python, []any{3, 4096000.0, 512000.0, 256000.0, 2048000.0, 8192000.0}, ""},
		{"without deviation, best and worst", gpu, []any{100, 4096., "", "", "", ""}, ""},
		{"without best and worst", gpu, []any{100, 4096., 40., 4., "", ""}, ""},
		{"three equal runs of a coarse clock", gpu, []any{3, 4096., 0., 0., 4096., 4096.}, ""},
		{"a best time of zero after a subtraction", gpu, []any{10, 1500., 900., 284.6, 0., 3000.}, ""},
		{"a median as the mean", gpu, []any{30, 4000., 800., 146., 3900., 8400.}, ""},
		{"single precision", gpu, []any{100, 4096.0001, 0.0001, 0.00001, 4096.0002, 4096.0002}, ""},
		{"a confidence interval as the error", gpu, []any{100, 4096., 40., 7.84, 4000., 4200.}, ""},
		{"one run", gpu, []any{1, 4096., 0., 0., 4096., 4096.}, ""},
		{"a disturbed run", python, []any{100, 642300., 2167226., 216722., 168500., 16430000.}, ""},
		{"an upward time", python, []any{3, 23726951., 41021904., 23684000., 32570., 71090000.}, ""},

		{"no number", python, []any{100, "fast", 1., .1, 1., 1.}, `mean "fast" is not a finite number`},
		{"NaN", python, []any{100, math.NaN(), 1., .1, 1., 1.}, `mean "NaN" is not a finite number`},
		{"infinite", python, []any{100, 230000., "inf", .1, 1., 1.}, `std "inf" is not a finite number`},
		{"beyond all numbers", python, []any{100, 230000., 1., .1, 1., "1e999"}, `worst "1e999" is not a finite number`},
		{"zero", python, []any{100, 0., 0., 0., 0., 0.}, `mean "0" is zero: nothing takes no time`},
		{"negative", python, []any{100, -5., 0., 0., -5., -5.}, `mean "-5" is negative; best "-5" is negative; worst "-5" is negative`},
		{"no runs", python, []any{0, 230000., 0., 0., 1., 230000.}, `runs "0" is not a positive whole number`},
		{"half a run", python, []any{2.5, 230000., 0., 0., 1., 230000.}, `runs "2.5" is not a positive whole number`},
		{"a mean below the best", python, []any{100, 23000., 12000., 1200., 220000., 310000.}, `best "220000", mean "23000" and worst "310000" are not in this order`},
		{"a mean above the worst", python, []any{100, 330000., 12000., 1200., 220000., 310000.}, `best "220000", mean "330000" and worst "310000" are not in this order`},
		{"no deviation between best and worst", python, []any{100, 230000., 0., 0., 220000., 310000.}, `std is zero, but best and worst are 90 µs apart`},
		{"no deviation of many", python, []any{100, 23000., 0., 0., 23000., 23000.}, `all 100 runs took exactly 23 µs; times of so many calls differ`},
		{"a deviation of one", python, []any{1, 23000., 100., 100., 23000., 23000.}, `std "100" is of one run, which has no deviation`},
		{"a large deviation", python, []any{100, 230000., 60000., 6000., 220000., 310000.}, `std "60000" is larger than best and worst allow, which are 90 µs apart`},
		{"another error", python, []any{100, 230000., 12000., 12000., 220000., 310000.}, `err "12000" is not that of 100 runs with std "12000"; it would be 1.2 µs`},
		{"no error", python, []any{100, 230000., 12000., 0., 220000., 310000.}, `err "0" is not that of 100 runs with std "12000"; it would be 1.2 µs`},
		{"less than a call", python, []any{100, 5., 1., .1, 3., 8.}, `a mean of 5 ns is less than Python needs to call a function`},
		{"a call less than a call", python, []any{100, 235., 2300., 230., 1., 23450.}, `a best time of 1 ns is less than Python needs to call a function`},
		{"a subtraction without a GPU", python, []any{10, 15000., 9000., 2846., 0., 30000.}, ""},
		{"less than a call, of C++", Job{}, []any{100, 5., 1., .1, 3., 8.}, ""},
		{"less than a launch", gpu, []any{100, 60., 1., .1, 50., 80.}, `a mean of 60 ns is less than any work on a GPU takes`},
		{"less than a launch, of a CPU's problem", Job{Python: true, GPUs: 1}, []any{100, 60., 1., .1, 50., 80.}, ""},

		{"more than has passed", python, []any{100, 7e6, 1e5, 1e4, 6e6, 8e6}, `up to benchmark.0, runs × mean are 700 ms, but only 391 ms had passed since the program's start`},
		{"most of what has passed", python, []any{100, 3.9e6, 1e5, 1e4, 3e6, 5e6}, ""},
		{"more than has passed, on two GPUs", Job{Python: true, GPUs: 2, OnGPU: true}, []any{100, 7e6, 1e5, 1e4, 6e6, 8e6}, ""},
		{"nearly idle", python, []any{100, 3000., 100., 10., 2900., 3300.}, `99 runs of 3 µs are less than 1/300 of the 251 ms of CPU time that the case took`},
		{"nearly idle but for one call", python, []any{100, 6000., 30000., 3000., 2900., 300000.}, `99 runs of 3.03 µs are less than 1/300 of the 251 ms of CPU time that the case took`},
		{"a fast one", python, []any{100, 8000., 100., 10., 7900., 8300.}, ""},
		{"spinning", Job{Python: true, Apart: true}, []any{100, 3000., 100., 10., 2900., 3300.}, ""},
		{"nearly idle on a GPU", gpu, []any{100, 3000., 100., 10., 2900., 3300.}, ""},
		{"nearly idle beside a GPU", Job{Python: true, GPUs: 1}, []any{100, 3000., 100., 10., 2900., 3300.}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range Judge(tt.job, []Evaluation{tests(), ran("leaderboard", tt.values...)}) {
				got = append(got, f.Reason)
			}
			must.Equal(t, tt.want, strings.Join(got, "; "))
		})
	}
}

func silent(t *testing.T, found []Finding) {
	t.Helper()
	if len(found) > 0 {
		t.Errorf("implausible: %v", found)
	}
}

// TestNothingIsKnown has no reason where the runner could not see enough.
func TestNothingIsKnown(t *testing.T) {
	t.Parallel()
	idle := []any{100, 3000., 100., 10., 2900., 3300.}
	silent(t, Judge(python, nil))
	silent(t, Judge(python, []Evaluation{ran("benchmark", idle...)})) // without tests
	silent(t, Judge(python, []Evaluation{tests(), {Name: "leaderboard", Claims: ran("leaderboard", idle...).Claims}}))

	// A program that reports all at its end has spent the CPU time on anything.
	together := ran("leaderboard", idle...)
	together.Marks = together.Marks[len(together.Marks)-1:]
	together.Marks[0].CPU = 150 * ms
	silent(t, Judge(python, []Evaluation{tests(), together}))
	two := &reporter{Evaluation{Name: "leaderboard"}}
	two.line(ms, ms, "benchmark-count", 2)
	two.benchmark(0, 300*ms, 250*ms, idle...)
	two.benchmark(1, 0, 0, idle...)
	two.Marks = []Mark{two.Marks[0], two.Marks[len(two.Marks)-1]}
	silent(t, Judge(python, []Evaluation{tests(), two.Evaluation}))

	// A program whose start takes seconds varies by more than its calls take.
	slow := tests()
	for i := range slow.Marks {
		slow.Marks[i].CPU *= 50
	}
	late := ran("leaderboard", idle...)
	for i := 2; i < len(late.Marks); i++ {
		late.Marks[i].CPU += 2 * time.Second
	}
	late.End.CPU += 2 * time.Second
	silent(t, Judge(python, []Evaluation{slow, late}))
}

// TestStart subtracts what starting a program, or a process for a case, took in the tests.
func TestStart(t *testing.T) {
	t.Parallel()
	idle := []any{100, 300., 10., 1., 290., 330.}
	// One process for all tests: only the first of them waits for it.
	one := &reporter{Evaluation{Name: "test"}}
	one.line(90*ms, 40*ms, "test-count", 2)
	one.line(100*ms, 100*ms, "test.0.status", "pass")
	one.line(100*ms, 5*ms, "test.1.status", "pass")
	r := &reporter{Evaluation{Name: "leaderboard"}}
	r.line(90*ms, 40*ms, "benchmark-count", 2)
	r.benchmark(0, 300*ms, 120*ms, idle...)
	r.benchmark(1, 300*ms, 120*ms, idle...)
	found := Judge(python, []Evaluation{one.Evaluation, r.Evaluation})
	if len(found) != 1 || found[0].Case != "benchmark.1" {
		t.Error(found)
	}
	// A program that says nothing before its first numbers has started since then, too.
	for cpu, want := range map[time.Duration]int{170 * ms: 0, 250 * ms: 1} {
		r = &reporter{Evaluation{Name: "leaderboard"}}
		r.line(300*ms, cpu, "benchmark.0.runs", 100)
		for n, v := range idle[1:] {
			r.line(0, 0, "benchmark.0."+numbers[n+1], v)
		}
		found = Judge(python, []Evaluation{one.Evaluation, r.Evaluation})
		if len(found) != want {
			t.Errorf("after %s: %v", cpu, found)
		}
	}
}

// TestOrder has programs that report what a case is after its run, as kernelbot's do in mode leaderboard, and in any order.
func TestOrder(t *testing.T) {
	t.Parallel()
	r := &reporter{Evaluation{Name: "leaderboard"}}
	r.line(ms, ms, "benchmark-count", 2)
	for i, cpu := range []time.Duration{300 * ms, 250 * ms} {
		r.line(300*ms, cpu, fmt.Sprintf("benchmark.%d.spec", i), "size: 1")
		for n, v := range []any{100, 3000., 100., 10., 2900., 3300.} {
			r.line(0, 0, fmt.Sprintf("benchmark.%d.%s", i, numbers[n]), v)
		}
	}
	var got []string
	for _, f := range Judge(python, []Evaluation{tests(), r.Evaluation}) {
		got = append(got, f.String())
	}
	const reason = ": 99 runs of 3 µs are less than 1/300 of the "
	must.Equal(t, []string{
		"leaderboard, benchmark.0" + reason + "300 ms of CPU time that the case took",
		"leaderboard, benchmark.1" + reason + "250 ms of CPU time that the case took",
	}, got)
}

// TestWork judges what a program does before and after its report.
func TestWork(t *testing.T) {
	t.Parallel()
	honest := []any{100, 230000., 12000., 1200., 220000., 310000.}
	after := func(cpu time.Duration) Evaluation {
		e := ran("leaderboard", honest...)
		e.End.CPU += cpu
		return e
	}
	before := func(cpu time.Duration) Evaluation {
		e := ran("leaderboard", honest...)
		for i := range e.Marks {
			e.Marks[i].CPU += cpu
		}
		e.End.CPU += cpu
		return e
	}
	for _, tt := range []struct {
		name string
		job  Job
		ev   Evaluation
		want string
	}{
		{"a slow end", python, after(4 * time.Second), ""},
		{"work after the report", python, after(6 * time.Second), "the program used 6 s of CPU time after its last line, more than the 23 ms that it reports"},
		{"less than was measured", python, func() Evaluation {
			e := ran("leaderboard", 100, 230000000., 12000000., 1200000., 220000000., 310000000.)
			for i := range e.Marks {
				e.Marks[i].At += time.Minute
			}
			e.End.CPU += 6 * time.Second
			return e
		}(), ""},
		{"a process that spins", Job{Python: true, Apart: true}, after(6 * time.Second), ""},
		{"as much on two GPUs", Job{Python: true, GPUs: 2, OnGPU: true}, after(6 * time.Second), ""},
		{"a slow start", python, before(9 * time.Second), ""},
		{"work before the report", python, before(20 * time.Second), "the program used 20 s of CPU time before its first line; with tests it was 40 ms"},
		{"a compilation for a GPU", gpu, before(20 * time.Second), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range Judge(tt.job, []Evaluation{tests(), tt.ev}) {
				got = append(got, f.Reason)
			}
			must.Equal(t, tt.want, strings.Join(got, "; "))
		})
	}
}

// TestRepeated compares two evaluations. A clock with few steps may well give the same times twice.
func TestRepeated(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		job           Job
		first, second []any
		want          bool
	}{
		{"the same", python, []any{100, 10074.31, 610.23, 61.023, 9004., 10990.}, []any{100, 10074.31, 610.23, 61.023, 9004., 10990.}, true},
		{"another mean", python, []any{100, 10074.31, 610.23, 61.023, 9004., 10990.}, []any{100, 10074.32, 610.23, 61.023, 9004., 10990.}, false},
		{"few runs", python, []any{3, 10074.31, 610.23, 352., 9004., 10990.}, []any{3, 10074.31, 610.23, 352., 9004., 10990.}, false},
		{"no steps between", python, []any{100, 10074.31, 61.23, 6.1023, 9964., 10190.}, []any{100, 10074.31, 61.23, 6.1023, 9964., 10190.}, false},
		{"few steps of events", gpu, []any{100, 10074.31, 610.23, 61.023, 9004., 10990.}, []any{100, 10074.31, 610.23, 61.023, 9004., 10990.}, false},
		{"many steps of events", gpu, []any{100, 100743.1, 6102.3, 610.23, 90040., 109900.}, []any{100, 100743.1, 6102.3, 610.23, 90040., 109900.}, true},
		{"without the deviation", python, []any{100, 10074.31}, []any{100, 10074.31}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			found := Judge(tt.job, []Evaluation{ran("benchmark", tt.first...), ran("leaderboard", tt.second...)})
			var want []Finding
			if tt.want {
				want = []Finding{{"leaderboard", "benchmark.0", "all numbers are those of benchmark, to the last digit"}}
			}
			must.Equal(t, want, found)
		})
	}
}

// TestRepeatedElsewhere compares a case only with itself.
func TestRepeatedElsewhere(t *testing.T) {
	t.Parallel()
	values := []any{100, 10074.31, 610.23, 61.023, 9004., 10990.}
	second := &reporter{Evaluation{Name: "leaderboard"}}
	second.line(ms, ms, "benchmark-count", 2)
	second.benchmark(0, 300*ms, 250*ms, 100, 10074.35, 610.23, 61.023, 9004., 10990.)
	second.benchmark(1, 300*ms, 250*ms, values...)
	silent(t, Judge(python, []Evaluation{ran("benchmark", values...), second.Evaluation}))
}

// TestRepeatedOften repeats all cases in each round of a comparison: no more is found than is kept.
func TestRepeatedOften(t *testing.T) {
	t.Parallel()
	r := &reporter{}
	for i := range maxCases {
		r.benchmark(i, 300*ms, 250*ms, 100, 10074.31, 610.23, 61.023, 9004., 10990.)
	}
	var rounds []Evaluation
	for n := range 10 {
		r.Name = fmt.Sprintf("benchmark.A.%d", n+1)
		rounds = append(rounds, r.Evaluation)
	}
	found := Judge(python, rounds)
	must.Equal(t, MaxFindings, len(found))
	must.Equal(t, Finding{"benchmark.A.2", "benchmark.31", "all numbers are those of benchmark.A.1, to the last digit"}, found[MaxFindings-1])
	for most := range 3 {
		must.Equal(t, most, len(read(&rounds[1]).repeated(python, read(&rounds[0]), most)))
	}
}

// TestHostileReports has more of everything than is looked at.
func TestHostileReports(t *testing.T) {
	t.Parallel()
	r := &reporter{Evaluation{Name: "\x1b[31mleaderboard"}}
	for i := range 2 * maxCases {
		r.Claims = append(r.Claims, result.Pair[string]{Key: fmt.Sprintf("benchmark.%d.mean", i), Value: "-1" + strings.Repeat("\x1b]", 1000)})
	}
	must.Equal(t, maxCases, len(read(&r.Evaluation).cases))
	found := Judge(python, []Evaluation{r.Evaluation})
	must.Equal(t, MaxFindings, len(found))
	long := &reporter{Evaluation{Name: "leaderboard"}}
	for i, key := range []string{"runs", "mean", "std"} {
		long.line(ms, ms, "benchmark."+strings.Repeat("0", 10000)+"."+key, []string{"100", "1e12", "-1"}[i])
	}
	found = append(found, Judge(python, []Evaluation{long.Evaluation})...)
	must.Equal(t, MaxFindings+2, len(found))
	for _, f := range found {
		if strings.ContainsAny(f.String(), "\x1b\n") || len(f.Reason) > maxReason+3 || len(f.Case) > maxName+3 {
			t.Errorf("%q", f)
		}
	}
}

func FuzzJudge(f *testing.F) {
	e := ran("leaderboard", 100, 3000., 100., 10., 2900., 3300.)
	f.Add(e.Report, 3, int64(5))
	f.Add([]byte("benchmark.0.mean: 1\nbenchmark.0.runs: 1e300\n:\nbenchmark..mean: 1\nbenchmark.99999999999999999999.mean: 1\n"), 1, int64(-7))
	f.Fuzz(func(t *testing.T, report []byte, step int, cpu int64) {
		e := Evaluation{Name: "leaderboard", Report: report}
		for line := range strings.Lines(string(report)) {
			k, v, _ := strings.Cut(line, ":")
			e.Claims.Set(strings.TrimSpace(k), strings.TrimSpace(v))
		}
		for n := step; step > 0 && n < len(report) && len(e.Marks) < 1000; n += step {
			e.Marks = append(e.Marks, Mark{n, time.Duration(n) * ms, time.Duration(cpu)})
		}
		for _, j := range []Job{python, gpu, {}} {
			for _, found := range Judge(j, []Evaluation{tests(), e, e}) {
				if found.Reason == "" || strings.Contains(found.Reason, "%!") {
					t.Errorf("%+v", found)
				}
			}
		}
	})
}

// TestComparison judges the times of a comparison by what its submission's tests took.
func TestComparison(t *testing.T) {
	t.Parallel()
	one, other := tests(), tests()
	other.Name = "test.B"
	none := ran("benchmark.B.1")
	if want, got := usualOf([]*claims{read(&one)}), usualOf([]*claims{read(&none), read(&other)}); want != got || want.start < 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
