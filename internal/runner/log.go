package runner

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpu-mode/kbnode/internal/text"
)

// Bounds, in characters, on what the log shows of texts by others.
const (
	outputRunes  = textLimit // stdout, stderr: as much as result.json holds
	messageRunes = 2000      // a test's message
	messageLines = 30
	lineRunes    = 200 // a text on one of our lines
	maxRows      = 50  // tests or benchmarks in one list

	// errorLimit bounds an error, also in result.json: a payload may have thousands of
	// faults.
	errorLimit = 8192
)

// buildLog is the log of a job, for people. In a Buildkite job its steps are groups:
// the build's page folds the lines after one that begins with "---", and opens them
// after "+++". Output of programs is cleaned and indented, so that it cannot look like
// such a line.
type buildLog struct {
	out, err io.Writer
	groups   bool // in a Buildkite job
}

// line writes a line. It ignores errors: a log that cannot be written must not cost the
// result.
func (l *buildLog) line(format string, args ...any) {
	_, _ = fmt.Fprintf(l.out, format+"\n", args...)
}

// note writes a line about a problem.
func (l *buildLog) note(format string, args ...any) {
	_, _ = fmt.Fprintf(l.err, "kbnode runner: %s\n", text.Line(fmt.Sprintf(format, args...), errorLimit))
}

// group opens a group. Outside Buildkite its title is an ordinary line.
func (l *buildLog) group(fold, icon, title string) {
	if l.groups {
		title = fold + " " + icon + " " + title
	}
	l.line("%s", title)
}

// begin opens the group of a step: what is "compile" or "run", name is the
// evaluation's.
func (l *buildLog) begin(what, name string) {
	icon := ":compile:"
	if what != "compile" {
		kind, _, _ := strings.Cut(name, ".")
		switch kind {
		case "benchmark":
			icon = ":stopwatch:"
		case "leaderboard":
			icon = ":trophy:"
		case "profile":
			icon = ":mag:"
		default:
			icon = ":test_tube:"
		}
	}
	l.group("---", icon, name+": "+what)
}

// done writes how an evaluation ended, with all details if it did not pass.
func (l *buildLog) done(s *evalSummary, ev *Evaluation) {
	run, comp := ev.Run, ev.Compilation
	if s.verdict == passed {
		l.line("%s: %s", s.name, s.outcome())
		l.text("Standard output", run.Stdout)
		l.text("Standard error", run.Stderr)
		return
	}
	l.group("+++", ":x:", s.name+": "+s.reason)
	if run == nil || comp != nil && comp.ExitCode != 0 {
		l.compilation(comp)
	}
	if run == nil {
		return
	}
	l.line("Command: %s", text.Line(run.Command, lineRunes))
	l.line("Exit code %d after %s", run.ExitCode, s.seconds)
	for _, c := range s.failed {
		l.line("Failed: %s", c.title())
		l.quote(c.message, messageRunes, messageLines)
	}
	l.more(s.failedMore, "failed")
	l.text("Standard error", run.Stderr)
	l.text("Standard output", run.Stdout)
}

func (l *buildLog) compilation(c *Compilation) {
	if c == nil {
		return
	}
	l.line("Compilation: %s", text.Line(c.Command, 5*lineRunes))
	l.line("Exit code %d", c.ExitCode)
	l.text("Standard error", c.Stderr)
	l.text("Standard output", c.Stdout)
}

// more writes that a list goes on.
func (l *buildLog) more(n int, what string) {
	if n > 0 {
		l.line("… and %d more %s; see result.json for all", n, what)
	}
}

// text writes a program's text under a title, unless it is blank.
func (l *buildLog) text(title, s string) {
	if strings.TrimSpace(s) != "" {
		l.line("%s:", title)
		l.quote(s, outputRunes, outputRunes)
	}
}

// quote writes a program's text, bounded and with each line indented.
func (l *buildLog) quote(s string, runes, lines int) {
	most := min(len(s), 64*runes)
	shown, cut := text.Cut(text.Block(s[:most]), runes, lines)
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(shown, "\n")) {
		b.WriteString("  " + strings.TrimRight(line, " \t\n") + "\n")
	}
	if cut || most < len(s) {
		b.WriteString("  […] truncated; see result.json for the rest\n")
	}
	_, _ = io.WriteString(l.out, b.String())
}
