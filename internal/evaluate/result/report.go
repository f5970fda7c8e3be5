package result

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Verdict returns a sentence on how the job went, and whether the submission passed.
func (r *Result) Verdict() (sentence string, ok bool) {
	return verdictOf(r, r.summaries())
}

// Report writes the end of the job's log for people, and all details of what did not
// pass. With tests, it lists each test.
func (r *Result) Report(w io.Writer, tests bool) {
	l := &Log{W: w}
	list := r.summaries()
	for i, s := range list {
		if s.verdict != passed {
			l.Evaluation(s, r.Runs[i].Value)
			l.Line("")
		}
	}
	sentence, _ := verdictOf(r, list)
	l.Line("%s", sentence)
	l.tables(r, list, tests)
}

// Completed writes the tables of a job that was canceled, if an evaluation had passed.
func (r *Result) Completed(w io.Writer) {
	list := r.summaries()
	if slices.ContainsFunc(list, func(s *Summary) bool { return s.verdict == passed }) {
		(&Log{W: w}).tables(r, list, true)
	}
}

func (r *Result) summaries() []*Summary {
	var list []*Summary
	for _, run := range r.Runs {
		list = append(list, Summarize(run.Key, run.Value, strings.HasPrefix(r.Error, Cancelled)))
	}
	return list
}

// Log is the log of a job, for people. In a Buildkite job its steps are groups: the
// build's page folds the lines after one that begins with "---", and opens them after
// "+++". Output of programs is cleaned and indented, so that it cannot look like such a
// line.
type Log struct {
	W      io.Writer
	Groups bool // in a Buildkite job
}

// Line writes a line. It ignores errors: a log that cannot be written must not cost the
// result.
func (l *Log) Line(format string, args ...any) {
	_, _ = fmt.Fprintf(l.W, format+"\n", args...)
}

// Group opens a group. Outside Buildkite its title is an ordinary line.
func (l *Log) Group(fold, icon, title string) {
	if l.Groups {
		title = fold + " " + icon + " " + title
	}
	l.Line("%s", title)
}

// Evaluation writes how an evaluation ended, with all details if it did not pass.
func (l *Log) Evaluation(s *Summary, ev *Evaluation) {
	run, comp := ev.Run, ev.Compilation
	if s.verdict == passed {
		l.Line("%s: %s", s.name, s.outcome())
		l.text("Standard output", run.Stdout, "runs."+s.name+".run.stdout", nil)
		l.text("Standard error", run.Stderr, "runs."+s.name+".run.stderr", nil)
		return
	}
	l.Group("+++", ":x:", s.name+": "+s.reason)
	if run == nil || comp != nil && comp.ExitCode != 0 {
		l.compilation(s.name, comp)
	}
	if run == nil {
		return
	}
	l.Line("Command: %s", text.Line(run.Command, maxLine))
	l.Line("Exit code %d after %s", run.ExitCode, s.seconds)
	traces, at := &tracebacks{}, "runs."+s.name+".run."
	for i, c := range s.failed.list {
		l.Line("Failed: %s", c.title())
		if i+1 == len(s.failed.list) || s.failed.list[i+1].message != c.message {
			l.quote(c.message, messageRunes, messageLines, at+"result", traces)
		}
	}
	l.more(s.failed.more, "failed")
	l.text("Standard error", run.Stderr, at+"stderr", traces)
	l.text("Standard output", run.Stdout, at+"stdout", traces)
}

func (l *Log) compilation(name string, c *Compilation) {
	if c == nil {
		return
	}
	l.Line("Compilation: %s", text.Line(c.Command, 5*maxLine))
	l.Line("Exit code %d", c.ExitCode)
	l.text("Standard error", c.Stderr, "runs."+name+".compilation.stderr", nil)
	l.text("Standard output", c.Stdout, "runs."+name+".compilation.stdout", nil)
}

// more writes that a list goes on.
func (l *Log) more(n int, what string) {
	if n > 0 {
		l.Line("… and %d more %s; see result.json for all", n, what)
	}
}

// text writes a program's text under a title, unless it is blank.
func (l *Log) text(title, s, key string, traces *tracebacks) {
	if strings.TrimSpace(s) != "" {
		l.Line("%s:", title)
		l.quote(s, outputRunes, outputRunes, key, traces)
	}
}

// quote writes a program's text, bounded and with each line indented. key is where result.json has all of it. Unless traces
// is nil, tracebacks are short, and shown once.
func (l *Log) quote(s string, runes, lines int, key string, traces *tracebacks) {
	most := min(len(s), longest*runes)
	shown, cut := text.Block(s[:most]), false
	if traces != nil {
		shown, cut = traces.brief(shown, runes, lines)
	} else {
		shown, cut = text.Cut(shown, runes, lines)
	}
	var b strings.Builder
	for line := range strings.SplitSeq(strings.TrimRight(shown, "\n"), "\n") {
		b.WriteString("  " + strings.TrimRight(line, " \t\n") + "\n")
	}
	if cut || most < len(s) {
		b.WriteString("  […] truncated; the rest is in " + key + " of result.json\n")
	}
	_, _ = io.WriteString(l.W, b.String())
}

// End writes the summary of the job.
func (l *Log) End(r *Result, list []*Summary) {
	sentence, ok := verdictOf(r, list)
	icon := ":x:"
	if ok {
		icon = ":white_check_mark:"
	}
	if !l.Groups {
		if !r.Success && len(list) == 0 {
			return // the error says it all
		}
		if !r.Success {
			sentence = "Completed before the error:"
		}
		l.Line("")
	}
	l.Group("+++", icon, sentence)
	l.tables(r, list, false)
}

// tables writes what the job ran on, its evaluations, its tests if they are wanted, and its benchmarks.
func (l *Log) tables(r *Result, list []*Summary, tests bool) {
	if on := machine(r.System); on != "" {
		l.Line("on %s", on)
	}
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{s.name, s.verdict, s.numbers(), s.seconds})
	}
	if len(rows) > 0 {
		l.Line("")
	}
	l.table(rows[:min(len(rows), maxRows)], 3)
	l.more(len(rows)-maxRows, "evaluations")
	for _, s := range list {
		if tests && len(s.tests.list) > 0 {
			rows := [][]string{{s.name, ""}}
			for _, c := range s.tests.list {
				rows = c.rows(rows, map[bool]string{true: "failed", false: passed}[c.failed])
			}
			l.Line("")
			l.table(rows)
			l.more(s.tests.more, "tests")
		}
		if len(s.timings.list) == 0 || s.inRound() {
			continue
		}
		rows := [][]string{{s.name, "mean ± error", "best", "worst"}}
		for _, c := range s.timings.list {
			if c.failed {
				message, _, _ := strings.Cut(c.message, "\n")
				rows = c.rows(rows, "failed: "+text.Line(message, 32))
			} else {
				rows = c.rows(rows, c.mean, c.best, c.worst)
			}
		}
		l.Line("")
		l.table(rows, 1, 2, 3)
		l.more(s.timings.more, "benchmarks")
	}
	if part := vague(list); part > 0 {
		l.Line("")
		percent := fmt.Sprintf("%.2g", 100*part)
		if part >= 0.1 {
			percent = fmt.Sprintf("%.0f", 100*part)
		}
		l.Line("± is up to %s %% of a mean: to another evaluation,", percent)
		l.Line("differences below %.0f %% mean nothing", math.Ceil(100*part*unclear))
	}
}

const (
	// maxBlur is the error, of a mean, above which people are told that it is large: judges go on until it is
	// a tenth of that, if they can.
	maxBlur = 0.01
	// unclear times the error is what the means of two evaluations of one program differ by in one of 20
	// cases: 1.96 times the square root of 2. Memory that lies elsewhere, or a warmer machine, adds to it.
	unclear = 2.8
)

// vague returns the largest error of the last evaluation with times, of its mean, or 0 if none is large.
func vague(list []*Summary) float64 {
	for _, s := range slices.Backward(list) {
		most := 0.0
		for _, c := range s.timings.list {
			if !c.failed {
				most = max(most, c.blur)
			}
		}
		if len(s.timings.list) > 0 && !s.inRound() {
			return map[bool]float64{true: most}[most > maxBlur]
		}
	}
	return 0
}

// Vague reports whether the error of a time is so large that it is compared with another only by chance.
func (r *Result) Vague() bool { return vague(r.summaries()) > 0 }

// rows appends the rows of a case: what it is, in lines that leave room for the cells in 80 columns.
func (c *testCase) rows(rows [][]string, cells ...string) [][]string {
	lines := wrap(c.spec, 36, 4)
	rows = append(rows, append([]string{lines[0]}, cells...))
	for _, line := range lines[1:] {
		rows = append(rows, []string{line, ""})
	}
	return rows
}

// table writes rows in indented columns and aligns the columns in right to the right.
// The last cell of a row that is shorter than the first row does not widen its column.
func (l *Log) table(rows [][]string, right ...int) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if i == 0 || len(row) == len(rows[0]) {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
			if slices.Contains(right, i) && len(row) == len(rows[0]) {
				cell = pad + cell
			} else {
				cell += pad
			}
			b.WriteString("  " + cell)
		}
		l.Line("%s", strings.TrimRight(b.String(), " "))
	}
}

// wrap breaks words into one to most lines of at most width characters.
func wrap(s string, width, most int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		word = text.Line(word, width)
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	lines = append(lines, line)
	if len(lines) > most {
		lines = append(lines[:most-1], "…")
	}
	return lines
}
