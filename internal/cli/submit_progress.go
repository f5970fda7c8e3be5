package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
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

// trouble reports an error that is retried.
func (p *submitProgress) trouble(why string, pause time.Duration) {
	p.say("%s; retrying in %s", text.Line(why, 300), max(pause, time.Second).Round(time.Second))
}

// refresh shows the status and its age; fixed is for what is no terminal.
func (p *submitProgress) refresh(fixed string) {
	if st := p.status.Load(); st != nil && st.State != "" {
		p.progress.show(fmt.Sprintf("%s, %d s", buildStatus(*st), int(time.Since(st.Since).Seconds())), fixed)
	}
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
		said, _ := p.s.answer(ctx, fmt.Sprintf("Cancel %s in Buildkite? [Y/n]", what), false) // the end of the input means yes
		said = strings.ToLower(said)
		return said == "n" || said == "no"
	}
}
