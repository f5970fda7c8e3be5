package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// acceptTime is how long doctor's other checks may take for the acceptance: no one waits at a screen.
const acceptTime = 5 * time.Minute

type verbosity int

const (
	normal       verbosity = iota
	onlyFailures           // only what failed, and the verdict
	onlyProblems           // only what is wrong
	everyCheck             // also each check that passed or was skipped
)

// printDoctor shows what is OK or was skipped as a table. Below it is everything that is wrong, the
// worst last, because that stays on the screen.
func printDoctor(w io.Writer, r *doctor.Report, how verbosity) {
	if how == onlyProblems && r.Count(doctor.Warn)+r.Count(doctor.Fail) == 0 {
		return
	}
	printRecorded(w, r.Recorded)
	printFindings(w, r, how)
	verdict := term.PaintWord(w, map[bool]string{true: "FIT", false: "NOT FIT"}[r.Fit])
	if r.Recorded != "" && r.Fit {
		verdict = "NO FAULT RECORDED"
	}
	if r.Cut {
		term.Printf(w, "\n%s. Nothing else was looked at.\n", verdict)
		return
	}
	term.Printf(w, "\n%s: %d failed, %d %s, %d ok, %d skipped.\n", verdict, r.Count(doctor.Fail),
		r.Count(doctor.Warn), text.Plural(r.Count(doctor.Warn), "warning", "warnings"), r.Count(doctor.OK), r.Count(doctor.Skip))
}

// printFindings is printDoctor without the verdict.
func printFindings(w io.Writer, r *doctor.Report, how verbosity) {
	if how == normal || how == everyCheck {
		printChecks(w, r, how == everyCheck)
	}
	for _, status := range []doctor.Status{doctor.Warn, doctor.Fail} {
		if how == onlyFailures && status == doctor.Warn {
			continue
		}
		for _, a := range advised(r, status) {
			a.print(w, status)
		}
	}
}

// printChecks shows the checks that passed or were skipped, by group. Unless all are to be listed,
// those that passed are one line, and so are those that were skipped for the same reason.
func printChecks(w io.Writer, r *doctor.Report, all bool) {
	t := term.NewList(w, "Group", "Check", "", "Found")
	reason := func(c doctor.Result) string {
		switch {
		case all:
			return c.ID
		case c.Status == doctor.Skip:
			return c.Summary()
		}
		return ""
	}
	for _, group := range doctor.Groups {
		shown := group
		for _, status := range []doctor.Status{doctor.OK, doctor.Skip} {
			checks := slices.DeleteFunc(slices.Clone(r.Checks), func(c doctor.Result) bool { return c.Group != group || c.Status != status })
			for _, alike := range term.Grouped(checks, reason) {
				name, saw := alike[0].ID, alike[0].Summary()
				if n := len(alike); n > 1 {
					name, saw = fmt.Sprintf("%d checks", n), reason(alike[0])
				}
				t.Row(shown, name, paintStatus(w, status), saw)
				shown = ""
			}
		}
	}
	if len(t.Rows) > 0 {
		t.Print()
	}
}

// checkFinding is what a check found, with the check and the slots.
type checkFinding struct{ check, says string }

type advice struct {
	findings []checkFinding
	fix      string
	more     []string // what to do besides, or instead
}

// advised returns all findings of a status. Those with the same fix are together, and the same
// finding of several slots is one.
func advised(r *doctor.Report, status doctor.Status) []*advice {
	var all []*advice
	for _, c := range causesFirst(r.Checks) {
		slots := map[string][]int{} // by detail and advice
		for _, f := range c.Findings {
			slots[f.Detail+f.Fix+f.Advice] = append(slots[f.Detail+f.Fix+f.Advice], f.Slots...)
		}
		for _, f := range c.Findings {
			if f.Status != status {
				continue
			}
			where := ""
			if on := slots[f.Detail+f.Fix+f.Advice]; len(on) > 0 {
				where = fmt.Sprintf("%s %s: ", text.Plural(len(on), "slot", "slots"), cpuset.Of(on...))
			}
			says := checkFinding{c.ID, fmt.Sprintf("%s: %s%s", c.ID, where, f.Detail)}
			i := slices.IndexFunc(all, func(a *advice) bool {
				return a.fix == f.Fix && (f.Fix != "" || f.Advice != "" && slices.Contains(a.more, f.Advice))
			})
			if i < 0 {
				i = len(all)
				all = append(all, &advice{fix: f.Fix})
			}
			a := all[i]
			if !slices.Contains(a.findings, says) {
				a.findings = append(a.findings, says)
			}
			if f.Advice != "" && !slices.Contains(a.more, f.Advice) {
				a.more = append(a.more, f.Advice)
			}
		}
	}
	return all
}

// causesFirst returns the checks in their order, but plan below the GPUs: without a driver, it has none to plan.
func causesFirst(checks []doctor.Result) []doctor.Result {
	sorted := slices.Clone(checks)
	rank := func(c doctor.Result) int {
		switch {
		case c.ID == "plan":
			return 1
		case c.Group == "node" || c.Group == "gpu":
			return 0
		}
		return 2
	}
	slices.SortStableFunc(sorted, func(a, b doctor.Result) int { return rank(a) - rank(b) })
	return sorted
}

func (a *advice) print(w io.Writer, status doctor.Status) {
	term.Printf(w, "\n")
	last := ""
	for _, f := range a.findings {
		if f.check == last { // a check fails once
			term.Printf(w, "      %s\n", f.says)
			continue
		}
		term.Printf(w, "%s  %s\n", paintStatus(w, status), f.says)
		last = f.check
	}
	if a.fix != "" {
		term.Verbatim(w, "      type  "+asRoot(a.fix)+"\n") // not broken, so that it can be pasted
	}
	for _, more := range a.more {
		term.Printf(w, "      do    %s\n", more)
	}
}

// asRoot returns a command line for a root shell as others can type it.
func asRoot(command string) string {
	var b strings.Builder
	quote, begins := rune(0), true
	for i, r := range command {
		if begins && !strings.ContainsRune(" &;", r) {
			begins = false
			if !strings.HasPrefix(command[i:], "sudo ") {
				b.WriteString("sudo ")
			}
		}
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '\'' || r == '"':
			quote = r
		case strings.ContainsRune("<>|*$`(", r): // the shell itself must be root's
			return "sudo sh -c " + text.ShellWord(command)
		case r == '&' || r == ';':
			begins = true
		}
		b.WriteRune(r)
	}
	return b.String()
}

// accept runs all groups, and prints a report plain enough for a letter.
func accept(ctx context.Context, s term.Streams, limit time.Duration, asJSON bool) error {
	if err := needRoot(s, "doctor --acceptance"); err != nil {
		return err
	}
	report, m, err := here(s).Doctor(ctx, doctor.Options{Only: doctor.Groups, Limit: cmp.Or(limit, acceptTime)}, buildkiteAPI())
	if err != nil {
		return err
	}
	out := doctor.Accept(m, report, Version())
	return term.ExitUnless(out.Accepted, acceptanceDoc.Print(s, asJSON, out, func() { printAcceptance(s.Out, out) }))
}

func printAcceptance(w io.Writer, out doctor.Acceptance) {
	term.Printf(w, "Node    %s\nTime    %s\nkbnode  %s, %s\nQueue   %s\nImage   %s\n", out.Node, out.Time.Format(time.DateTime+" UTC"), out.Kbnode, runtime.GOARCH, strings.Join(out.Queues, ", "), out.Image)
	for _, gpu := range out.GPUs {
		term.Printf(w, "GPU     %s\n", gpu)
	}
	term.Printf(w, "\n")
	printDoctor(w, out.Report, normal)
	if len(out.Untried) > 0 {
		term.Printf(w, "Not tried: %s; type sudo kbnode doctor --acceptance again when no job runs.\n", strings.Join(out.Untried, ", "))
	}
	verdict := term.PaintWord(w, map[bool]string{true: "ACCEPTED", false: "NOT ACCEPTED"}[out.Accepted])
	term.Printf(w, "\n%s. Send all of this to the operators, who test the queue with kbnode e2e.\n", verdict)
}
