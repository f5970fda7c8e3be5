package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/noise"
	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/text"
)

// submitProgress shows the status of one build: on a terminal as one line that counts the
// seconds, otherwise as a line for each change.
type submitProgress struct {
	*progress
	stop func() // may be called more than once

	status atomic.Pointer[submit.Status]
}

func newSubmitProgress(line *progress) *submitProgress {
	p := &submitProgress{progress: line}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	p.stop = func() {
		cancel()
		done.Wait()
		p.end("")
	}
	done.Go(func() {
		for limit.Sleep(ctx, time.Second) == nil {
			p.refresh("")
		}
	})
	return p
}

// show is called with each change.
func (p *submitProgress) show(_ int, st submit.Status) {
	before := p.status.Swap(&st)
	fixed := buildStatus(st)
	if st.State == "creating" {
		fixed = ""
	}
	if st.Build != 0 && (before == nil || before.Build == 0) {
		p.end("")
		p.say("build %d: %s", st.Build, text.Line(st.URL, 300))
		fixed = ""
	}
	p.refresh(fixed)
}

// showRetry reports an error that is retried.
func (p *submitProgress) showRetry(why string, pause time.Duration) {
	p.say("%s; retrying in %s", text.Line(why, 300), max(pause, time.Second).Round(time.Second))
}

// refresh shows the status and its age; fixed is for what is no terminal.
func (p *submitProgress) refresh(fixed string) {
	if st := p.status.Load(); st != nil && st.State != "" {
		p.progress.show(fmt.Sprintf("%s, %d s", buildStatus(*st), int(time.Since(st.Since).Seconds())), fixed)
	}
}

func buildStatus(st submit.Status) string {
	status := st.State
	if st.Build != 0 {
		status = fmt.Sprintf("build %d: %s", st.Build, st.State)
	}
	if st.Agent != "" && st.State == "running" {
		status += " on " + text.Line(st.Agent, 60)
	}
	return status
}

// leave returns a function that asks after Ctrl-C whether to leave the build running. Another
// Ctrl-C means no. Without a terminal it returns nil, so that the build is canceled.
func (p *submitProgress) leave() func() bool {
	if !isTerminal(p.s.In) || p.width == 0 {
		return nil
	}
	return func() bool {
		p.pause(true)
		defer p.pause(false)
		what := "the build"
		if st := p.status.Load(); st != nil && st.Build != 0 {
			what = fmt.Sprintf("build %d", st.Build)
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		reply, _ := p.s.answer(ctx, fmt.Sprintf("Cancel %s in Buildkite? [Y/n]", what), false) // the end of the input means yes
		reply = strings.ToLower(reply)
		return reply == "n" || reply == "no"
	}
}

func printOutcome(s Streams, out submit.Outcome) {
	verdict := ""
	if out.Result != nil {
		var passed bool
		verdict, passed = out.Result.Verdict()
		if _, ok := terminal(s.Err); ok {
			printf(s.Err, "\n") // between the progress and the result
		}
		var report strings.Builder
		out.Result.Report(&report)
		printf(s.Out, "%s\n", paintReport(s.Out, report.String(), verdict, passed))
	}
	var node noise.Record
	if json.Unmarshal(out.Node, &node) == nil && node.Noisy {
		for _, why := range node.Why[:min(len(node.Why), 5)] {
			printf(s.Out, "noisy: %s\n", text.Line(why, 200))
		}
	}
	to := s.Out
	if out.Verdict != submit.Passed {
		to = s.Err
	}
	if verdict != out.Reason {
		printf(to, "%s: %s\n", out.Verdict, text.Line(out.Reason, 1000))
	}
	if out.Build != 0 {
		printf(s.Out, "%s\n", buildLine(out))
	}
}

// paintReport colors the verdict in a report.
func paintReport(w io.Writer, report, verdict string, passed bool) string {
	word, _, _ := strings.Cut(verdict, ":")
	c := pretty.FgRed
	if passed {
		c = pretty.FgGreen
	}
	before, after, found := strings.Cut("\n"+report, "\n"+word)
	if !found {
		return report
	}
	return (before + "\n" + paint(w, c, word) + after)[1:]
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
