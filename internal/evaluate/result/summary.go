package result

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Bounds, in characters, on what people see of texts by others.
const (
	outputRunes  = MaxText // stdout, stderr: as much as result.json holds
	messageRunes = 2000    // a test's message
	messageLines = 30
	maxLine      = 200 // of a text on one of our lines
	longest      = 64  // times as many bytes are read of a text: it may become shorter before it is cut
	maxRows      = 50  // tests or benchmarks in one list, and evaluations
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

// Summary is what people see of an evaluation. Its texts are safe to print.
type Summary struct {
	name    string
	verdict string
	reason  string // what went wrong; empty if it passed
	counts  string // "16 of 17 tests"
	seconds string // "0.07 s"; empty if it did not run

	tests, failed, timings cases
}

// inRound reports whether this is an evaluation in a round of a comparison, whose times count by their ratios alone.
func (s *Summary) inRound() bool { return strings.HasPrefix(s.name, "benchmark.") }

type cases struct {
	list []testCase
	more int
}

func (cs *cases) add(c testCase) {
	if len(cs.list) < maxRows {
		cs.list = append(cs.list, c)
	} else {
		cs.more++
	}
}

// testCase is a test or a benchmark of an evaluation.
type testCase struct {
	kind    string // test or benchmark
	index   int
	spec    string
	message string // what went wrong
	failed  bool

	mean, best, worst string  // "4.096 ms"; the mean with its error
	blur              float64 // the error over the mean; 0 if they are no numbers
}

func (c *testCase) title() string { return fmt.Sprintf("%s %d: %s", c.kind, c.index, c.spec) }

// outcome returns the verdict and the numbers on one line.
func (s *Summary) outcome() string {
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
func (s *Summary) numbers() string {
	if s.counts == "" && s.verdict == notPassed {
		return s.reason
	}
	return s.counts
}

// exits explains exit codes of the task's program.
var exits = map[int]string{
	110: "CUDA reported an error", 111: "could not write its report", ExitWrong: "the results are wrong", 113: "could not read the tests",
}

// Summarize summarizes an evaluation, which may have ended because its job was canceled. The
// program's report may break the task's protocol.
func Summarize(name string, ev *Evaluation, cancelled bool) *Summary {
	s := &Summary{name: text.Line(name, maxLine)}
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
	case cancelled && signalled:
		s.verdict, s.reason = wasCancelled, "the job was cancelled"
	case run.ExitCode == ExitTimeout && len(run.Result) == 0:
		s.verdict, s.reason = outOfTime, "exceeded its time limit of "+text.Line(string(run.Duration), 16)+" s"
	case signalled:
		s.reason = "ended by " + name
	case check == "pass" && run.ExitCode == 0:
		s.reason = "reported more than a program is allowed to"
	case failures != "":
		s.reason = failures
	case exits[run.ExitCode] != "":
		s.reason = fmt.Sprintf("%s (exit code %d)", exits[run.ExitCode], run.ExitCode)
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
func (s *Summary) read(report map[string]string) (failures string) {
	var counts, failed []string
	for _, kind := range []string{"test", "benchmark"} {
		count, ok := report[kind+"-count"]
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 0 {
			continue
		}
		good, bad := 0, 0
		for _, i := range reportedCases(report, kind, n) {
			c := readCase(report, kind, i)
			if c.failed {
				bad++
				s.failed.add(c)
			}
			if kind == "test" {
				s.tests.add(c)
				if report[fmt.Sprintf("test.%d.status", i)] == "pass" {
					good++
				}
				continue
			}
			if c.mean != "" && !c.failed {
				good++
			}
			if c.mean != "" || c.failed {
				s.timings.add(c)
			}
		}
		if kind == "benchmark" && good+bad == 0 && n > 0 {
			// A profile: its cases have no times.
			counts = append(counts, text.Line(report["benchmark.0.spec"], 40))
			continue
		}
		counts = append(counts, fmt.Sprintf("%d of %s", good, text.Count(n, kind)))
		if bad > 0 {
			failed = append(failed, fmt.Sprintf("%d of %s failed", bad, text.Count(n, kind)))
		}
	}
	s.counts = strings.Join(counts, ", ")
	return strings.Join(failed, ", ")
}

// reportedCases returns the numbers below n of the cases that a report has, in order. The count that a
// report states costs it nothing, and so must not decide how much is looked at.
func reportedCases(report map[string]string, kind string, n int) []int {
	var all []int
	for key := range report {
		rest, ok := strings.CutPrefix(key, kind+".")
		number, _, _ := strings.Cut(rest, ".")
		if i, err := strconv.Atoi(number); ok && err == nil && i >= 0 && i < n {
			all = append(all, i)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func readCase(report map[string]string, kind string, i int) testCase {
	get := func(key string) string { return report[fmt.Sprintf("%s.%d.%s", kind, i, key)] }
	c := testCase{kind: kind, index: i, spec: text.Line(get("spec"), maxLine)}
	if status := get("status"); status != "" && status != "pass" {
		c.failed = true
		for _, key := range []string{"error", "message"} {
			if message := get(key); message != "" {
				c.message += message[:min(len(message), longest*messageRunes)] + "\n"
			}
		}
	}
	if mean := get("mean"); mean != "" {
		c.mean, c.best, c.worst = timeText(mean, 4), timeText(get("best"), 4), timeText(get("worst"), 4)
		if err := get("err"); err != "" {
			c.mean += " ± " + timeText(err, 3)
			c.blur = blur(mean, err)
		}
	}
	return c
}

// blur returns the error of a mean over the mean, or 0 if it is none.
func blur(mean, err string) float64 {
	m, bad := strconv.ParseFloat(mean, 64)
	e, worse := strconv.ParseFloat(err, 64)
	if part := e / m; bad == nil && worse == nil && m > 0 && part > 0 && part < 100 {
		return part
	}
	return 0
}

// timeText formats nanoseconds with that many digits: "4.096 ms". Other texts are only
// shortened.
func timeText(value string, digits int) string {
	ns, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(ns) || ns < 0 || ns > 1e18 {
		return text.Line(value, 16)
	}
	return Span(ns, digits)
}

// Span formats nanoseconds with that many digits: "4.096 ms".
func Span(ns float64, digits int) string {
	if ns == 0 {
		return "0 ns"
	}
	// Round first, so that 999.96 µs becomes 1.000 ms.
	if rounded, err := strconv.ParseFloat(strconv.FormatFloat(ns, 'e', digits-1, 64), 64); err == nil {
		ns = rounded
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

func secondsText(value string) string {
	if f, err := strconv.ParseFloat(value, 64); err == nil && math.Abs(f) < 1e6 {
		return strconv.FormatFloat(f, 'f', 2, 64) + " s"
	}
	return text.Line(value, 16) + " s"
}

// verdictOf returns a sentence on how the job went, and whether the submission passed.
func verdictOf(r *Result, list []*Summary) (sentence string, ok bool) {
	switch {
	case !r.Success:
		return "No verdict: " + text.Line(r.Error, maxLine), false
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

// Machine returns a line about what the job ran on.
func (r *Result) Machine() string { return machine(r.System) }

// machine returns a line about what the submission ran on.
func machine(sys *System) string {
	if sys == nil {
		return ""
	}
	gpu, _, _ := strings.Cut(sys.GPU, "\n")
	gpu = text.Line(gpu, 60)
	if gpu == "" {
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
