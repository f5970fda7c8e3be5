package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// SubmitProgress shows the status of one build: on a terminal as one line that counts the
// seconds, otherwise as a line for each change, and each minute without one.
type SubmitProgress struct {
	*term.Progress
	Stop func() // may be called more than once

	status atomic.Pointer[submit.Status]
	said   atomic.Pointer[time.Time] // when it was last shown where there is no terminal
}

// NewSubmitProgress shows a build on a line until Stop.
func NewSubmitProgress(line *term.Progress) *SubmitProgress {
	p := &SubmitProgress{Progress: line}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	p.Stop = func() {
		cancel()
		done.Wait()
		p.End("")
	}
	done.Go(func() {
		for limit.Sleep(ctx, time.Second) == nil {
			p.refresh("", time.Now())
		}
	})
	return p
}

// Show is called with each change.
func (p *SubmitProgress) Show(_ int, st submit.Status) {
	before := p.status.Swap(&st)
	fixed := buildStatus(st)
	if st.State == "creating" {
		fixed = ""
	}
	if st.Build != 0 && (before == nil || before.Build == 0) {
		p.End("")
		p.Say("build %d: %s", st.Build, text.Line(st.URL, 300))
		if st.RunID != "" {
			p.Say("run ID: %s", text.Line(st.RunID, 100))
		}
		fixed = ""
	}
	p.refresh(fixed, time.Now())
}

// Trouble reports an error that is retried.
func (p *SubmitProgress) Trouble(why string, pause time.Duration) {
	p.Say("%s; retrying in %s", text.Line(why, 300), max(pause, time.Second).Round(time.Second))
}

// refresh shows the status and its age; fixed is for what is no terminal.
func (p *SubmitProgress) refresh(fixed string, now time.Time) {
	st := p.status.Load()
	if st == nil || st.State == "" {
		return
	}
	moving := fmt.Sprintf("%s, %d s", buildStatus(*st), int(now.Sub(st.Since).Seconds()))
	switch last := p.said.Load(); {
	case fixed != "" || last == nil:
		p.said.Store(&now)
	case now.Sub(*last) >= time.Minute:
		fixed = moving
		p.said.Store(&now)
	}
	p.Progress.Show(moving, fixed)
}

func buildStatus(st submit.Status) string {
	says := st.State
	if st.Build != 0 {
		says = fmt.Sprintf("build %d: %s", st.Build, st.State)
	}
	if st.Agent != "" && st.State == "running" {
		says += " on " + text.Line(st.Agent, 60)
	}
	return says
}

func printOutcome(s term.Streams, out submit.Outcome) {
	said := ""
	if out.Result != nil {
		if _, ok := term.Terminal(s.Err); ok {
			term.Printf(s.Err, "\n") // between the progress and the result
		}
	}
	if out.Comparison != nil {
		said = printComparison(s, out.Comparison)
		term.Printf(s.Out, "\n")
	} else if out.Result != nil {
		var passed bool
		said, passed = out.Result.Verdict()
		var report strings.Builder
		out.Result.Report(&report, false)
		term.Printf(s.Out, "%s\n", paintReport(s.Out, report.String(), said, passed))
	}
	var node noise.Record
	if json.Unmarshal(out.Node, &node) == nil {
		for _, why := range node.Why[:min(len(node.Why), 5)] {
			if node.Noisy {
				term.Printf(s.Out, "noisy: %s\n", text.Line(why, 200))
			}
		}
		if out.Comparison == nil { // it says so
			printImplausible(s, "", node.Implausible)
		}
	}
	if out.NodeErr != nil {
		term.Printf(s.Out, "it is unknown whether the node disturbed the timings: %s\n", text.Line(out.NodeErr.Error(), 300))
	}
	to := s.Out
	if out.Verdict != submit.Passed {
		to = s.Err
	}
	if said != out.Reason {
		term.Printf(to, "%s: %s\n", out.Verdict, text.Line(out.Reason, 1000))
	}
	switch {
	case !out.Cached.IsZero():
		term.Printf(s.Out, "%s\n", cachedLine(out))
	case out.Build != 0:
		term.Printf(s.Out, "%s\n", buildLine(out))
	}
}

func paintReport(w io.Writer, report, said string, passed bool) string {
	word, _, _ := strings.Cut(said, ":")
	c := pretty.FgRed
	if passed {
		c = pretty.FgGreen
	}
	before, after, found := strings.Cut("\n"+report, "\n"+word)
	if !found {
		return report
	}
	return (before + "\n" + term.Paint(w, c, word) + after)[1:]
}

// buildLine returns where a job ran, and for how long.
func buildLine(out submit.Outcome) string {
	parts := []string{fmt.Sprintf("build %d", out.Build)}
	if out.Agent != "" {
		parts[0] += " on " + out.Agent
	}
	if out.Run > 0 {
		parts = append(parts, fmt.Sprintf("waited %.0f s", out.Queue), fmt.Sprintf("ran %.0f s", out.Run))
	}
	return strings.Join(append(parts, text.Line(out.URL, 300)), ", ")
}

// printImplausible writes a line for each reason not to believe a job's times.
func printImplausible(s term.Streams, prefix string, found []witness.Finding) {
	for _, f := range witness.Clean(found) {
		term.Printf(s.Out, "implausible: %s%s\n", prefix, f)
	}
}
