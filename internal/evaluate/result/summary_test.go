package result

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/test/must"
)

// reported returns a program's report with these lines.
func reported(lines ...string) (all Pairs[string]) {
	for _, line := range lines {
		k, v, _ := strings.Cut(line, ": ")
		all.Set(k, v)
	}
	return all
}

// timings returns a report of n benchmarks.
func timings(n int, spec string) []string {
	lines := []string{fmt.Sprintf("benchmark-count: %d", n), "check: pass"}
	for i := range n {
		p := fmt.Sprintf("benchmark.%d.", i)
		lines = append(lines, p+"spec: "+fmt.Sprintf(spec, i), p+"mean: 1024000.5", p+"err: 0.0", p+"best: 999999.0", p+"worst: 12345678901.0")
	}
	return lines
}

func TestSummarise(t *testing.T) {
	t.Parallel()
	tests := []string{"test-count: 3", "test.0.status: pass", "test.1.status: fail", "test.1.error: bad", "test.2.status: pass"}
	for _, c := range []struct {
		name   string
		run    *Run
		report []string
		want   string // verdict | reason | counts | seconds
	}{
		{"passed", &Run{Passed: true, Duration: "0.0712"}, []string{"test-count: 1", "test.0.status: pass"}, "passed||1 of 1 test|0.07 s"},
		{"wrong results", &Run{ExitCode: 112, Duration: "1"}, tests, "not passed|1 of 3 tests failed|2 of 3 tests|1.00 s"},
		{"a crash after a wrong result", &Run{ExitCode: -6, Duration: "1"}, tests, "not passed|ended by SIGABRT|2 of 3 tests|1.00 s"},
		{"a signal without a name", &Run{ExitCode: -40, Duration: "1"}, nil, "not passed|ended by signal 40||1.00 s"},
		{"a limit", &Run{ExitCode: 114, Duration: "180"}, nil, "out of time|exceeded its time limit of 180 s||180.00 s"},
		{"an own 114", &Run{ExitCode: 114, Duration: "3"}, []string{"check: fail"}, "not passed|ended with exit code 114||3.00 s"},
		{"cancelled", &Run{ExitCode: -9, Duration: "3"}, nil, "cancelled|the job was cancelled||3.00 s"},
		{"too much reported", &Run{Duration: "3"}, []string{"check: pass"}, "not passed|reported more than a program is allowed to||3.00 s"},
		{"a crash after the check", &Run{ExitCode: 1, Duration: "3"}, []string{"check: pass"}, "not passed|ended with exit code 1||3.00 s"},
		{"CUDA failed", &Run{ExitCode: 110, Duration: "3"}, nil, "not passed|CUDA reported an error (exit code 110)||3.00 s"},
		{"no report", &Run{ExitCode: 111, Duration: "3"}, nil, "not passed|could not write its report (exit code 111)||3.00 s"},
		{"wrong, not said where", &Run{ExitCode: 112, Duration: "3"}, nil, "not passed|the results are wrong (exit code 112)||3.00 s"},
		{"tests not understood", &Run{ExitCode: 113, Duration: "3"}, nil, "not passed|could not read the tests (exit code 113)||3.00 s"},
		{"no verdict", &Run{Duration: "3"}, nil, "not passed|reported no verdict||3.00 s"},
		{"another verdict", &Run{Duration: "3"}, []string{"check: \x1b[1mmaybe"}, "not passed|reported check: maybe||3.00 s"},
		{"benchmarks", &Run{Passed: true, Duration: "3"}, timings(2, "size: %d"), "passed||2 of 2 benchmarks|3.00 s"},
		{"a failed benchmark", &Run{ExitCode: 112, Duration: "3"}, []string{"benchmark-count: 2", "benchmark.0.status: fail", "benchmark.1.mean: 5"},
			"not passed|1 of 2 benchmarks failed|1 of 2 benchmarks|3.00 s"},
		{"a profile", &Run{Passed: true, Duration: "3"}, []string{"benchmark-count: 1", "benchmark.0.spec: size: 3"}, "passed||size: 3|3.00 s"},
		{"a count that is none", &Run{Passed: true, Duration: "3"}, []string{"test-count: 1e9", "benchmark-count: -4"}, "passed|||3.00 s"},
		{"a count without end", &Run{Passed: true, Duration: "3"}, []string{"test-count: 2000000000"}, "passed||0 of 2000000000 tests|3.00 s"},
		{"a case without end", &Run{ExitCode: 112, Duration: "3"}, []string{"test-count: 2000000000", "test.1999999999.status: fail", "test.-1.status: fail"},
			"not passed|1 of 2000000000 tests failed|0 of 2000000000 tests|3.00 s"},
		{"a limit that is no time", &Run{ExitCode: 114, Duration: "12345678901234567890"}, nil,
			"out of time|exceeded its time limit of 123456789012345… s||123456789012345… s"},
		{"not compiled", nil, nil, "compile error|does not compile||"},
		{"no compiler", nil, nil, "no compiler|nvcc was not found||"},
	} {
		ev := &Evaluation{Run: c.run, Compilation: &Compilation{NvccFound: c.name != "no compiler"}}
		if c.run != nil {
			c.run.Result = reported(c.report...)
		}
		s := Summarize("test", ev, c.name == "cancelled")
		if got := strings.Join([]string{s.verdict, s.reason, s.counts, s.seconds}, "|"); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestTimeText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"0": "0 ns", "0.0": "0 ns", "0.25": "0.250 ns", "1": "1.000 ns", "12.3456": "12.35 ns", "123.456": "123.5 ns", "999.94": "999.9 ns",
		"999.96": "1.000 µs", "999999.9": "1.000 ms", "1024000.0": "1.024 ms", "4.2e10": "42.00 s", "1234567890123456": "1235000 s",
		"-1": "-1", "nan": "nan", "inf": "inf", "": "", "fast": "fast", "1e300": "1e300",
		"\x1b[31m" + strings.Repeat("9", 400) + "x": "999999999999999…",
	} {
		if got := timeText(in, 4); got != want {
			t.Errorf("%.30q: got %q, want %q", in, got, want)
		}
	}
	must.Equal(t, "256 µs64.0 µs1.23 ms", timeText("256000.0", 3)+timeText("64000", 3)+timeText("1234567", 3))
}

func TestSummary(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		groups bool
		r      *Result
		want   string
	}{
		{"a leaderboard run", true, &Result{
			Success: true, System: &System{GPU: "NVIDIA B200\nNVIDIA B200\n", DeviceCount: 2, Runtime: "CUDA", Torch: "2.9.0+cu130"},
			Runs: Pairs[*Evaluation]{
				{"test", &Evaluation{Run: &Run{Passed: true, Duration: "12.071", Result: reported("test-count: 1", "test.0.status: pass")}}},
				{"benchmark", &Evaluation{Run: &Run{Passed: true, Duration: "1.5", Result: reported(timings(1, "size: %d; seed: 6256")...)}}},
				{"leaderboard", &Evaluation{Run: &Run{Passed: true, Duration: "3", Result: reported(
					"benchmark-count: 2", "benchmark.0.spec: batch: 128; heads: 32; sequence: 4096; dimension: 128; causal: yes; seed: 54352",
					"benchmark.0.mean: 4096000.0", "benchmark.0.err: 256000.0", "benchmark.0.best: 4000000", "benchmark.0.worst: 5000000",
					"benchmark.1.spec: size: 1", "benchmark.1.status: fail", "benchmark.1.error: got 3, want 4, at the index 17 of 4096 of them")}}},
			},
		}, `+++ :white_check_mark: Passed: test, benchmark and leaderboard
on 2 × NVIDIA B200, CUDA, torch 2.9.0+cu130

  test         passed  1 of 1 test        12.07 s
  benchmark    passed  1 of 1 benchmark    1.50 s
  leaderboard  passed  1 of 2 benchmarks   3.00 s

  benchmark               mean ± error      best    worst
  size: 0; seed: 6256  1.024 ms ± 0 ns  1.000 ms  12.35 s

  leaderboard                              mean ± error      best     worst
  batch: 128; heads: 32; sequence:    4.096 ms ± 256 µs  4.000 ms  5.000 ms
  4096; dimension: 128; causal: yes;
  seed: 54352
  size: 1                             failed: got 3, want 4, at the index 17…

± is up to 6.2 % of a mean: to another evaluation,
differences below 18 % mean nothing
`},
		{"a failed test on the command line", false, &Result{Success: true, System: &System{DeviceCount: 1}, Runs: Pairs[*Evaluation]{
			{"test", &Evaluation{Run: &Run{ExitCode: 112, Duration: "0.5", Result: reported("test-count: 1", "test.0.status: fail")}}},
		}}, "\nNot passed: test: 1 of 1 test failed\non no GPU\n\n  test  not passed  0 of 1 test  0.50 s\n"},
		{"no evaluation to be done", true, &Result{Success: true, System: &System{}},
			"+++ :white_check_mark: Nothing ran, because the task has no benchmarks\non no GPU\n"},
		{"an error after the tests", false, &Result{Error: "the disk is full", Runs: Pairs[*Evaluation]{
			{"test", &Evaluation{Run: &Run{Passed: true, Duration: "0.5"}}},
		}}, "\nCompleted before the error:\n\n  test  passed    0.50 s\n"},
		{"an error at once", false, &Result{Error: "no payload"}, ""},
		{"an error at once, in Buildkite", true, &Result{Error: "no payload"}, "+++ :x: No verdict: no payload\n"},
	} {
		var b bytes.Buffer
		(&Log{&b, c.groups}).End(c.r, c.r.summaries())
		must.Equal(t, c.want, b.String())
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(line); n > 81 {
				t.Errorf("%s: %d columns: %s", c.name, n, line)
			}
		}
	}
}

func TestSummaryIsBounded(t *testing.T) {
	t.Parallel()
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("test.%d.status: fail", i), fmt.Sprintf("test.%d.error: %s", i, strings.Repeat("+++ ", 1000)))
	}
	lines = append(append(lines, "test-count: 1000"), timings(1000, "size: %d")...)
	ev := &Evaluation{Run: &Run{ExitCode: 112, Duration: "1", Result: reported(lines...)}}
	var b bytes.Buffer
	l := &Log{&b, true}
	s := Summarize("test", ev, false)
	l.Evaluation(s, ev)
	l.End(&Result{Success: true}, []*Summary{s})
	must.Contain(t, b.String(), "… and 950 more failed; see result.json for all\n", "… and 950 more benchmarks; see result.json for all\n")
	if n := strings.Count(b.String(), "\n"); n > 400 || b.Len() > 256<<10 {
		t.Errorf("the log has %d lines and %d bytes", n, b.Len())
	}
}
