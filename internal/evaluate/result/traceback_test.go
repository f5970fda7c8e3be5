package result

import (
	"bytes"
	"flag"
	"math"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/test/must"
)

var update = flag.Bool("update", false, "write testdata again")

// whole returns what is shown of a text that is not cut.
func whole(s string) string {
	shown, _ := (&tracebacks{}).brief(s, math.MaxInt, math.MaxInt)
	return shown
}

// TestTracebacks compares what is shown of what Python 3.11 wrote for submissions with an error of each kind, and of
// texts that only look like it. In testdata/tracebacks.txtar, "NAME" is a text, and "NAME shown" what is shown of it.
func TestTracebacks(t *testing.T) {
	t.Parallel()
	const file = "testdata/tracebacks.txtar"
	from := txtar.Parse([]byte(must.Read(t, file)))
	want := txtar.Archive{Comment: from.Comment}
	for _, f := range from.Files {
		if !strings.HasSuffix(f.Name, " shown") {
			want.Files = append(want.Files, f, txtar.File{Name: f.Name + " shown", Data: []byte(whole(string(f.Data)))})
		}
	}
	must.Golden(t, file, *update, string(txtar.Format(&want)))
}

// TestTracebackOnce shows a traceback once, whether a message, the error or the output has it, and all that differs.
func TestTracebackOnce(t *testing.T) {
	t.Parallel()
	const one = "Traceback (most recent call last):\n  File \"<string>\", line 1, in worker\n  File \"/x/submission.py\", line 2, in f\n    g()\nValueError: bad\n"
	ev := &Evaluation{Run: &Run{ExitCode: 112, Duration: "1", Command: "python3 eval.py", Stderr: one + one + "kbnode: memory ran out\n", Stdout: one + strings.Replace(one, "bad", "worse", 1),
		Result: reported("test-count: 1", "test.0.spec: size: 1", "test.0.status: fail")}}
	ev.Run.Result = append(ev.Run.Result, Pair[string]{"test.0.error", one})
	var b bytes.Buffer
	(&Log{W: &b}).Evaluation(Summarize("test", ev, false), ev)
	const short = "  Traceback (most recent call last):\n    File \"/x/submission.py\", line 2, in f\n      g()\n    [1 call of the judge and of packages left out]\n  ValueError: "
	must.Equal(t, "test: 1 of 1 test failed\nCommand: python3 eval.py\nExit code 112 after 1.00 s\nFailed: test 0: size: 1\n"+short+"bad\n"+
		"Standard error:\n  [the same traceback 2 more times]\n  kbnode: memory ran out\n"+
		"Standard output:\n  [the same traceback 1 more time]\n"+short+"worse\n", b.String())
}

// TestTracebackLong shows the exception of a traceback whose calls are longer than what is shown of a text, and what was cut
// off before.
func TestTracebackLong(t *testing.T) {
	t.Parallel()
	const head = "Traceback (most recent call last):\n  File \"/x/submission.py\", line 2, in f\n    g()\n"
	long := head + strings.Repeat("  File \"/usr/lib/python3/dist-packages/torch/nn/modules/module.py\", line 1501, in _call_impl\n    return forward_call(*args, **kwargs)\n", 500) + "RuntimeError: bad\n"
	other := head + "ValueError: other\n"
	ev := &Evaluation{Run: &Run{ExitCode: 112, Duration: "1", Stderr: long + strings.Repeat("x\n", outputRunes/2) + other, Stdout: other,
		Result: reported("test-count: 1", "test.0.spec: size: 1", "test.0.status: fail")}}
	ev.Run.Result = append(ev.Run.Result, Pair[string]{"test.0.error", long})
	var b bytes.Buffer
	(&Log{W: &b}).Evaluation(Summarize("test", ev, false), ev)
	_, failed, _ := strings.Cut(b.String(), "Failed: test 0: size: 1\n")
	message, rest, _ := strings.Cut(failed, "Standard error:\n")
	must.Equal(t, "  Traceback (most recent call last):\n    File \"/x/submission.py\", line 2, in f\n      g()\n    [500 calls of the judge and of packages left out]\n  RuntimeError: bad\n", message)
	_, out, _ := strings.Cut(rest, "Standard output:\n")
	must.Equal(t, "  Traceback (most recent call last):\n    File \"/x/submission.py\", line 2, in f\n      g()\n  ValueError: other\n", out)
}

// FuzzBrief keeps a text without tracebacks, never shows more lines than there are, and leaves no line out but those of calls
// and those that it has shown.
func FuzzBrief(f *testing.F) {
	for _, s := range []string{"a\n\nb", "Traceback (most recent call last):\n  File \"<string>\", line 1, in f\n    x\nE\nTraceback (most recent call last):\n", "  + Exception Group Traceback (most recent call last):\n  |   File \"a\", line 1, in f\n  | E"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := whole(s)
		if !strings.Contains(s, "Traceback (most recent call last):") && strings.TrimRight(got, "\n") != strings.TrimRight(s, "\n") {
			t.Errorf("%q became %q", s, got)
		}
		if strings.Count(got, "\n") > strings.Count(s, "\n")+1 {
			t.Errorf("%q grew to %q", s, got)
		}
		for line := range strings.SplitSeq(s, "\n") {
			if !strings.HasPrefix(line[len(groupPrefix(line)):], "  ") && !strings.Contains(got, line) {
				t.Errorf("%q is not in %q", line, got)
			}
		}
	})
}
