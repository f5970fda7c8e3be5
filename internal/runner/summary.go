package runner

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Verdicts on an evaluation, as shown to people.
const (
	passed       = "passed"
	notPassed    = "not passed"
	compileError = "compile error"
	noCompiler   = "no compiler"
	outOfTime    = "out of time"
	wasCancelled = "cancelled"
)

// evalSummary is what people see of an evaluation. Its texts are safe to print.
type evalSummary struct {
	name    string
	verdict string
	reason  string // what went wrong; empty if it passed
	counts  string // "16 of 17 tests"
	seconds string // "0.07 s"; empty if it did not run

	failed      []reportedCase
	failedMore  int
	timings     []reportedCase
	timingsMore int
}

// reportedCase is a test or a benchmark of an evaluation.
type reportedCase struct {
	kind    string // test or benchmark
	index   int
	spec    string
	message string // what went wrong
	failed  bool

	mean, best, worst string // "4.096 ms"; the mean with its error
}

func (c *reportedCase) title() string { return fmt.Sprintf("%s %d: %s", c.kind, c.index, c.spec) }

// outcome returns the verdict and the numbers on one line.
func (s *evalSummary) outcome() string {
	parts := []string{s.verdict}
	for _, p := range []string{s.counts, s.seconds} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ", ")
}

// numbers returns how many cases passed or, without a count, why the evaluation did not
// pass.
func (s *evalSummary) numbers() string {
	if s.counts == "" && s.verdict == notPassed {
		return s.reason
	}
	return s.counts
}

// summarize summarizes an evaluation. The program's report may break the task's
// protocol.
func summarize(ctx context.Context, name string, ev *Evaluation) *evalSummary {
	s := &evalSummary{name: text.Line(name, lineRunes)}
	run := ev.Run
	if run == nil {
		s.verdict, s.reason = compileError, "does not compile"
		if c := ev.Compilation; c != nil && !c.NvccFound {
			s.verdict, s.reason = noCompiler, "nvcc was not found"
		}
		return s
	}
	s.seconds = secondsText(string(run.Duration))
	report := make(map[string]string, len(run.Result))
	for _, m := range run.Result {
		report[m.Key] = m.Value
	}
	failures := s.read(report)
	s.verdict = notPassed
	check, checked := report["check"]
	name, signalled := signalName(run.ExitCode)
	switch {
	case run.Passed:
		s.verdict = passed
	case ctx.Err() != nil && signalled:
		s.verdict, s.reason = wasCancelled, "the job was cancelled"
	case run.ExitCode == exitTimeout && len(run.Result) == 0:
		s.verdict, s.reason = outOfTime, "exceeded its time limit of "+text.Line(string(run.Duration), 16)+" s"
	case signalled:
		s.reason = "ended by " + name
	case check == "pass":
		s.reason = "reported more than a program is allowed to"
	case failures != "":
		s.reason = failures
	case run.ExitCode == 110:
		s.reason = "CUDA reported an error (exit code 110)"
	case run.ExitCode == 111:
		s.reason = "could not write its report (exit code 111)"
	case run.ExitCode == exitValidate:
		s.reason = "the results are wrong (exit code 112)"
	case run.ExitCode == 113:
		s.reason = "could not read the tests (exit code 113)"
	case run.ExitCode != 0:
		s.reason = fmt.Sprintf("ended with exit code %d", run.ExitCode)
	case checked:
		s.reason = "reported check: " + text.Line(check, 40)
	default:
		s.reason = "reported no verdict"
	}
	return s
}

// signalName returns the signal that an exit code stands for, if any.
func signalName(code int) (string, bool) {
	if code >= 0 {
		return "", false
	}
	if name := unix.SignalName(syscall.Signal(-code)); name != "" {
		return name, true
	}
	return fmt.Sprintf("signal %d", -code), true
}

// read takes tests and benchmarks from a report and returns how many failed, "" for
// none.
func (s *evalSummary) read(report map[string]string) (failures string) {
	var counts, failed []string
	for _, kind := range []string{"test", "benchmark"} {
		count, ok := report[kind+"-count"]
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 0 {
			continue
		}
		good, bad := 0, 0
		// No report has more cases than it has keys.
		for i := range min(n, popcornKeys) {
			c := readCase(report, kind, i)
			if c.failed {
				bad++
				s.failed, s.failedMore = keep(s.failed, s.failedMore, c)
			}
			if kind == "test" {
				if report[fmt.Sprintf("test.%d.status", i)] == "pass" {
					good++
				}
				continue
			}
			if c.mean != "" && !c.failed {
				good++
			}
			if c.mean != "" || c.failed {
				s.timings, s.timingsMore = keep(s.timings, s.timingsMore, c)
			}
		}
		if kind == "benchmark" && good+bad == 0 && n > 0 {
			// A profile: its cases have no times.
			counts = append(counts, text.Line(report["benchmark.0.spec"], 40))
			continue
		}
		counts = append(counts, fmt.Sprintf("%d of %s", good, plural(n, kind)))
		if bad > 0 {
			failed = append(failed, fmt.Sprintf("%d of %s failed", bad, plural(n, kind)))
		}
	}
	s.counts = strings.Join(counts, ", ")
	return strings.Join(failed, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// keep appends up to maxRows cases and counts the others.
func keep(list []reportedCase, more int, c reportedCase) ([]reportedCase, int) {
	if len(list) < maxRows {
		return append(list, c), more
	}
	return list, more + 1
}

func readCase(report map[string]string, kind string, i int) reportedCase {
	get := func(key string) string { return report[fmt.Sprintf("%s.%d.%s", kind, i, key)] }
	c := reportedCase{kind: kind, index: i, spec: text.Line(get("spec"), lineRunes)}
	if status := get("status"); status != "" && status != "pass" {
		c.failed = true
		for _, key := range []string{"error", "message"} {
			if message := get(key); message != "" {
				message, _ = text.Cut(message, messageRunes, messageLines)
				c.message += message + "\n"
			}
		}
	}
	if mean := get("mean"); mean != "" {
		c.mean, c.best, c.worst = timeText(mean, 4), timeText(get("best"), 4), timeText(get("worst"), 4)
		if err := get("err"); err != "" {
			c.mean += " ± " + timeText(err, 3)
		}
	}
	return c
}

// timeText formats nanoseconds with that many digits: "4.096 ms". Other texts are only
// shortened.
func timeText(s string, digits int) string {
	ns, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(ns) || ns < 0 || ns > 1e18 {
		return text.Line(s, 16)
	}
	if ns == 0 {
		return "0 ns"
	}
	// Round first, so that 999.96 µs becomes 1.000 ms.
	ns, err = strconv.ParseFloat(strconv.FormatFloat(ns, 'e', digits-1, 64), 64)
	if err != nil {
		return text.Line(s, 16)
	}
	unit := "ns"
	for _, next := range []string{"µs", "ms", "s"} {
		if ns < 1000 {
			break
		}
		ns, unit = ns/1000, next
	}
	places := digits - 1
	for limit := 10.0; ns >= limit && places > 0; limit *= 10 {
		places--
	}
	return strconv.FormatFloat(ns, 'f', places, 64) + " " + unit
}

func secondsText(s string) string {
	if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1e6 {
		return strconv.FormatFloat(f, 'f', 2, 64) + " s"
	}
	return text.Line(s, 16) + " s"
}

// verdictOf returns a sentence on how the job went, and whether the submission passed.
func verdictOf(r *Result, list []*evalSummary) (sentence string, ok bool) {
	switch {
	case !r.Success:
		return "No verdict: " + text.Line(r.Error, lineRunes), false
	case len(list) == 0:
		return "Nothing ran, because the task has no benchmarks", true
	}
	var names []string
	for _, s := range list {
		if s.verdict != passed {
			return fmt.Sprintf("Not passed: %s: %s", s.name, s.reason), false
		}
		names = append(names, s.name)
	}
	if last := len(names) - 1; last > 4 {
		names = []string{names[0], "…", names[last]}
	} else if last > 0 {
		names = append(names[:last-1], names[last-1]+" and "+names[last])
	}
	return "Passed: " + strings.Join(names, ", "), true
}

// machine returns a line about what the submission ran on.
func machine(sys *System) string {
	if sys == nil {
		return ""
	}
	gpu, _, _ := strings.Cut(sys.GPU, "\n")
	if gpu = text.Line(gpu, 60); gpu == "" {
		gpu = "no GPU"
	} else if sys.DeviceCount > 1 {
		gpu = fmt.Sprintf("%d × %s", sys.DeviceCount, gpu)
	}
	parts := []string{gpu}
	if sys.Runtime != "" {
		parts = append(parts, text.Line(sys.Runtime, 20))
	}
	if sys.Torch != "" {
		parts = append(parts, "torch "+text.Line(sys.Torch, 40))
	}
	return strings.Join(parts, ", ")
}

// end writes the summary of the job.
func (l *buildLog) end(r *Result, list []*evalSummary) {
	sentence, ok := verdictOf(r, list)
	icon := ":x:"
	if ok {
		icon = ":white_check_mark:"
	}
	if !l.groups {
		if !r.Success && len(list) == 0 {
			return // the error says it all
		}
		if !r.Success {
			sentence = "Completed before the error:"
		}
		l.line("")
	}
	l.group("+++", icon, sentence)
	l.tables(r, list)
}

// tables writes what the job ran on, its evaluations and its benchmarks.
func (l *buildLog) tables(r *Result, list []*evalSummary) {
	if text := machine(r.System); text != "" {
		l.line("on %s", text)
	}
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{s.name, s.verdict, s.numbers(), s.seconds})
	}
	if len(rows) > 0 {
		l.line("")
	}
	l.table(rows, 3)
	for _, s := range list {
		if len(s.timings) == 0 {
			continue
		}
		rows := [][]string{{s.name, "mean ± error", "best", "worst"}}
		for _, c := range s.timings {
			// Make the table fit in 80 columns.
			lines := wrap(c.spec, 36, 4)
			if c.failed {
				message, _, _ := strings.Cut(c.message, "\n")
				rows = append(rows, []string{lines[0], "failed: " + text.Line(message, 32)})
			} else {
				rows = append(rows, []string{lines[0], c.mean, c.best, c.worst})
			}
			for _, line := range lines[1:] {
				rows = append(rows, []string{line, ""})
			}
		}
		l.line("")
		l.table(rows, 1, 2, 3)
		l.more(s.timingsMore, "benchmarks")
	}
}

// table writes rows in indented columns and aligns the columns in right to the right.
// The last cell of a row that is shorter than the first row does not widen its column.
func (l *buildLog) table(rows [][]string, right ...int) {
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
		l.line("%s", strings.TrimRight(b.String(), " "))
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
