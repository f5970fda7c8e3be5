package result

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/test/must"
)

// FuzzClean shows only harmless characters of a program's text, within the limits.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"\x1b[1;31mred\r\n--- x", "\x1b]8;;u\x1b\\t\u009d\u009c", "\x1b_bk;t=1\a+++\u202e\xff", "\x1b", "\x1b(", "\u009b12"} {
		f.Add(s, 20, 3)
	}
	f.Fuzz(func(t *testing.T, s string, runes, lines int) {
		runes, lines = min(max(runes, 1), 1000), min(max(lines, 1), 100)
		if got := text.Block(s); text.Block(got) != got || len(got) > 3*len(s) {
			t.Errorf("%q became %q, and then %q", s, got, text.Block(got))
		}
		var b strings.Builder
		(&Log{W: &b}).quote(s, runes, lines, "k", nil)
		got := b.String()
		if n := strings.Count(got, "\n"); n > lines+1 || utf8.RuneCountInString(got) > runes+3*n+60 {
			t.Errorf("%q within %d characters and %d lines is %q", s, runes, lines, got)
		}
		for line := range strings.Lines(got) {
			body, indented := strings.CutPrefix(line, "  ")
			if body, ended := strings.CutSuffix(body, "\n"); !indented || !ended || !text.Plain(strings.ReplaceAll(body, "\t", " ")) {
				t.Errorf("%q is quoted as %q", s, got)
			}
		}
	})
}

// A text of megabytes is read only as far as it is shown.
func TestLongTextsAreCut(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	(&Log{W: &b}).quote(strings.Repeat("x", 8<<20), 100, 10, "runs.test.run.stdout", nil)
	if want := "  " + strings.Repeat("x", 100) + "\n  […] truncated; the rest is in runs.test.run.stdout of result.json\n"; b.String() != want {
		t.Errorf("got %.400q", b.String())
	}
}

func TestLogOfCompilation(t *testing.T) {
	t.Parallel()
	stderr := "a.cu(1): error: --- expected a \x1b[31m;\x1b[0m\n+++ more\n"
	for _, c := range []struct {
		name string
		ev   Evaluation
		want string
	}{
		{"does not compile", Evaluation{Compilation: &Compilation{NvccFound: true, Command: "nvcc a.cu", ExitCode: 2, Stderr: stderr}},
			"+++ :x: test: does not compile\nCompilation: nvcc a.cu\nExit code 2\nStandard error:\n  a.cu(1): error: --- expected a ;\n  +++ more\n"},
		{"no compiler", Evaluation{Compilation: &Compilation{Command: "which nvcc", ExitCode: 1}},
			"+++ :x: test: nvcc was not found\nCompilation: which nvcc\nExit code 1\n"},
		{"an extension that did not compile", Evaluation{
			Compilation: &Compilation{NvccFound: true, Success: true, Command: "python3 submission.py", ExitCode: 1, Stdout: "broken"},
			Run:         &Run{ExitCode: 1, Duration: "2.5", Command: "python3 eval.py", Stderr: "ImportError"},
		}, "+++ :x: test: ended with exit code 1\nCompilation: python3 submission.py\nExit code 1\nStandard output:\n  broken\n" +
			"Command: python3 eval.py\nExit code 1 after 2.50 s\nStandard error:\n  ImportError\n"},
	} {
		var b bytes.Buffer
		l := &Log{&b, true}
		l.Evaluation(Summarize("test", &c.ev, false), &c.ev)
		must.Equal(t, c.want, b.String())
	}
}

// TestReportTests lists tests, each on a line that fits, and no more than a screenful of them.
func TestReportTests(t *testing.T) {
	t.Parallel()
	r := &Result{Success: true, Runs: Pairs[*Evaluation]{{"test", &Evaluation{Run: &Run{ExitCode: 112, Duration: "1", Result: reported(
		"test-count: 3", "test.0.spec: size: 1", "test.0.status: pass",
		"test.1.spec: "+strings.Repeat("shape: 12345; ", 5), "test.1.status: fail", "test.1.error: \x1b[31mbad",
		"test.2.spec: size: 3; \x1b[2Jseed: 4", "test.2.status: pass",
	)}}}}}
	want := "\n  test\n  size: 1                             passed\n" +
		"  shape: 12345; shape: 12345; shape:  failed\n  12345; shape: 12345; shape: 12345;\n  size: 3; seed: 4                    passed\n"
	var with, without strings.Builder
	r.Report(&with, true)
	r.Report(&without, false)
	if !strings.HasSuffix(with.String(), want) || with.String() != without.String()+want {
		t.Errorf("%s\n%s", with.String(), without.String())
	}
	lines := []string{"test-count: 1000"}
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("test.%d.status: pass", i), fmt.Sprintf("test.%d.spec: %s", i, strings.Repeat("x ", 500)))
	}
	r.Runs[0].Value.Run.Result = reported(lines...)
	with.Reset()
	r.Report(&with, true)
	if n := strings.Count(with.String(), "\n"); n > 300 || !strings.Contains(with.String(), "… and 950 more tests; see result.json for all\n") {
		t.Errorf("%d lines", n)
	}
	r.Runs[0].Value.Run.Result = reported("test-count: 65536", "test.7.spec: size: 1", "test.7.status: pass")
	with.Reset()
	r.Report(&with, true)
	if want := "\n  test\n  size: 1  passed\n"; !strings.HasSuffix(with.String(), want) {
		t.Errorf("%s", with.String())
	}
}

// TestVague tests when a report says that an error is large: of the last evaluation with times only.
func TestVague(t *testing.T) {
	t.Parallel()
	timed := func(mean, err string) *Evaluation {
		return &Evaluation{Run: &Run{Passed: true, Duration: "1", Result: reported("benchmark-count: 1", "benchmark.0.mean: "+mean, "benchmark.0.err: "+err)}}
	}
	for _, c := range []struct{ before, mean, err, says string }{
		{"1", "1000", "10", ""},
		{"1", "1000", "11", "± is up to 1.1 % of a mean: to another evaluation,\ndifferences below 4 % mean nothing\n"},
		{"1", "1000", "997", "± is up to 100 % of a mean: to another evaluation,\ndifferences below 280 % mean nothing\n"},
		{"1", "1000", "400", "± is up to 40 % of a mean: to another evaluation,\ndifferences below 112 % mean nothing\n"},
		{"900", "1000", "1", ""}, {"1", "1000", "-400", ""}, {"1", "0", "1", ""}, {"1", "1e-300", "1e300", ""}, {"1", "nan", "nan", ""}, {"1", "1000", "much", ""},
	} {
		r := &Result{Success: true, Runs: Pairs[*Evaluation]{{"benchmark", timed("1000", c.before)}, {"leaderboard", timed(c.mean, c.err)}}}
		var b bytes.Buffer
		r.Report(&b, false)
		_, got, _ := strings.Cut(b.String(), "\n±")
		if got != strings.TrimPrefix(c.says, "±") || r.Vague() != (c.says != "") {
			t.Errorf("%+v: %s", c, b.String())
		}
	}
}
