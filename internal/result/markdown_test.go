package result

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMarkdown(t *testing.T) {
	t.Parallel()
	r := &Result{Success: true, System: &System{GPU: "NVIDIA B200", DeviceCount: 1, Runtime: "CUDA"}, Runs: Pairs[*Evaluation]{
		{"test", &Evaluation{Run: &Run{Passed: true, Duration: "12.071", Result: reported("test-count: 1", "test.0.status: pass")}}},
		{"benchmark", &Evaluation{Run: &Run{ExitCode: 112, Duration: "1.5", Result: reported("benchmark-count: 2",
			"benchmark.0.spec: size: 1024", "benchmark.0.mean: 4096000.0", "benchmark.0.err: 256000.0", "benchmark.0.best: 4000000", "benchmark.0.worst: 5000000",
			"benchmark.1.spec: size: 1", "benchmark.1.status: fail", "benchmark.1.error: got 3")}}},
	}}
	list := told(&Log{W: io.Discard}, r)
	body, style := Markdown(r, list)
	want := strings.ReplaceAll(`**Not passed: benchmark: 1 of 2 benchmarks failed**

on NVIDIA B200, CUDA

| evaluation | verdict | | time |
|---|---|---|---:|
| test | passed | 1 of 1 test | 12.07 s |
| benchmark | not passed | 1 of 2 benchmarks | 1.50 s |

| benchmark | mean ± error | best | worst |
|---|---:|---:|---:|
| 'size: 1024' | 4.096 ms ± 256 µs | 4.000 ms | 5.000 ms |
| 'size: 1' | failed |  |  |

'benchmark 1: size: 1'

'''
got 3
'''
`, "'", "`")
	if d := cmp.Diff(want, body); d != "" || style != "warning" {
		t.Errorf("style %s (-want +got):\n%s", style, d)
	}
}

// TestMarkdownCannotBeForged checks that any text from a program leaves the
// Markdown's lines and cells the same and adds no markup outside code.
func TestMarkdownCannotBeForged(t *testing.T) {
	t.Parallel()
	var tables [2]string
	for i, text := range []string{"harmless words that are as long as the others", "</code>|`x``|\\| <b>\n--- [a](javascript:1) :x: @all **b** &lt;"} {
		r := &Result{Success: true, System: &System{GPU: text, Torch: text, Runtime: text}, Runs: Pairs[*Evaluation]{
			{"test", &Evaluation{Run: &Run{Passed: true, Duration: "1", Result: reported("check: "+text, "benchmark-count: 2",
				"benchmark.0.spec: "+text, "benchmark.0.mean: "+text, "benchmark.0.err: "+text, "benchmark.0.best: "+text, "benchmark.0.worst: "+text,
				"benchmark.1.status: fail", "benchmark.1.spec: "+text)}}},
			{"benchmark", &Evaluation{Run: &Run{Duration: "1", Result: reported("check: " + text)}}},
		}}
		list := told(&Log{W: io.Discard}, r)
		body, _ := Markdown(r, list)
		for line := range strings.Lines(body) {
			tables[i] += strings.Repeat("|", strings.Count(line, "|")) + "\n"
			if strings.HasPrefix(line, "|---") {
				continue
			}
			// Without its code spans, a line has only our own characters.
			if rest := codeSpan.ReplaceAllString(line, ""); strings.ContainsAny(strings.ReplaceAll(rest, "**", ""), "<>`[]\\*&@") || strings.Contains(rest, ":x") {
				t.Errorf("%s", line)
			}
		}
	}
	if d := cmp.Diff(tables[0], tables[1]); d != "" {
		t.Errorf("other lines or cells: %s", d)
	}
}

// codeSpan matches a code span with one to three backquotes.
var codeSpan = regexp.MustCompile("```[^`].*?[^`]```|``[^`].*?[^`]``|`[^`]+`")

func TestMarkdownOfALine(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "12.50 s", "1.024 ms ± 64.0 µs", `main: "gone.py" is not there; add it`, "torch 2.9.0+cu130 (CUDA)"} {
		if got := plain(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	for in, want := range map[string]string{
		"a|b": "`a¦b`", "`": "`` ` ``", "a``b`": "``` a``b` ```", "a\nb<": "`a b<`", "https://x.example": "`https://x.example`",
		"www.x": "`www.x`", ":x:": "`:x:`", "a_b": "`a_b`", "\x1b[1m*": "`*`",
	} {
		if got := plain(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
	block := codeBlock("a\n```\n</code>\n````x\n~~~\n")
	if want := "\n`````\na\n```\n</code>\n````x\n~~~\n`````\n"; block != want {
		t.Errorf("got %s", block)
	}
	if got := codeBlock(" \n"); got != "" {
		t.Errorf("nothing became %s", got)
	}
}

func TestMarkdownIsBounded(t *testing.T) {
	t.Parallel()
	r := &Result{Success: true, System: &System{}}
	for i := range 200 {
		name := "profile." + strings.Repeat("9", i)
		r.Runs = append(r.Runs, Pair[*Evaluation]{name, &Evaluation{Run: &Run{Duration: "1", Result: reported(timings(100, strings.Repeat("|", 500)+"%d")...)}}})
	}
	list := told(&Log{W: io.Discard}, r)
	body, _ := Markdown(r, list)
	if len(body) > 64<<10 || !strings.HasSuffix(body, "\n… and more; see result.json for all\n") {
		t.Errorf("%d bytes, ending in %q", len(body), body[max(0, len(body)-100):])
	}
}

// FuzzMarkdown checks that a text stays inside its code.
func FuzzMarkdown(f *testing.F) {
	for _, s := range []string{"size: 3", "`", "a``b`", "|\\|", "```\nx\n````", "~~~", "    x", "</code>", "\x1b[m`", "\r\n```\r", "www.x", ":x:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		line := plain(s)
		if strings.ContainsAny(line, "|\n\r") {
			t.Errorf("%q became %q", s, line)
		}
		if inner := strings.Trim(line, "`"); strings.HasPrefix(line, "`") {
			fence := line[:strings.Index(line, inner)]
			if inner == "" || line != fence+inner+fence || strings.Contains(inner, fence) {
				t.Errorf("%q became %q", s, line)
			}
		} else if strings.ContainsAny(line, "`<>&[]*_\\$~@#!{}^") || strings.Contains(line, "://") {
			t.Errorf("%q became %q", s, line)
		}
		block := codeBlock(s)
		if block == "" {
			return
		}
		lines := strings.Split(block, "\n")
		fence := lines[1]
		if lines[0] != "" || strings.Trim(fence, "`") != "" || len(fence) < 3 || strings.Count(block, fence) != 2 || !strings.HasSuffix(block, "\n"+fence+"\n") {
			t.Errorf("%q became %q", s, block)
		}
	})
}
