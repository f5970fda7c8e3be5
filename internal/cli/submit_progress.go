package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/submit"
	"github.com/gpu-mode/kbnode/internal/text"
)

// submitProgress shows the status of one build: on a terminal as one line that counts the
// seconds, otherwise as a line for each change.
type submitProgress struct {
	s     Streams
	width int // of the terminal; 0 if there is none

	mu     sync.Mutex
	status submit.Status
	quiet  bool // a question is on the screen
	stop   chan struct{}
	done   sync.WaitGroup
}

func newSubmitProgress(s Streams) *submitProgress {
	p := &submitProgress{s: s, stop: make(chan struct{})}
	if p.width = cursor(s.Err); p.width > 0 {
		p.done.Go(func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-p.stop:
					return
				case <-tick.C:
					p.mu.Lock()
					p.draw()
					p.mu.Unlock()
				}
			}
		})
	}
	return p
}

// show is called with each change.
func (p *submitProgress) show(_ int, st submit.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.status.Build == 0 && st.Build != 0
	p.status = st
	if first {
		p.above("build %d: %s", st.Build, text.Line(st.URL, 300))
	}
	if p.width == 0 && st.State != "creating" && !first {
		p.s.progress("%s", p.line())
	}
	p.draw()
}

// trouble reports an error that is retried.
func (p *submitProgress) trouble(why string, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.above("%s; retrying in %s", text.Line(why, 300), max(pause, time.Second).Round(time.Second))
	p.draw()
}

// above writes a line that stays. The caller holds the lock.
func (p *submitProgress) above(format string, args ...any) {
	if p.width > 0 {
		printf(p.s.Err, "\r\x1b[K")
	}
	p.s.progress(format, args...)
}

func (p *submitProgress) line() string {
	st := p.status
	says := st.State
	if st.Build != 0 {
		says = fmt.Sprintf("build %d: %s", st.Build, st.State)
	}
	if st.Agent != "" && st.State == "running" {
		says += " on " + text.Line(st.Agent, 60)
	}
	return says
}

// draw replaces the terminal's current line. The caller holds the lock.
func (p *submitProgress) draw() {
	if p.width == 0 || p.quiet || p.status.State == "" {
		return
	}
	select {
	case <-p.stop: // the result is on the screen
		return
	default:
	}
	rewriteLine(p.s.Err, p.width, fmt.Sprintf("  %s, %d s", p.line(), int(time.Since(p.status.Since).Seconds())))
}

// end removes the moving line. It may be called more than once.
func (p *submitProgress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stop:
		return
	default:
	}
	close(p.stop)
	if p.width > 0 {
		printf(p.s.Err, "\r\x1b[K")
	}
}

// leave returns a function that asks after Ctrl-C whether to leave the build running. Another
// Ctrl-C means no. Without a terminal it returns nil, so that the build is canceled.
func (f *submitFlags) leave(s Streams, p *submitProgress) func() bool {
	if !isTerminal(s.In) || p.width == 0 {
		return nil
	}
	return func() bool {
		p.mu.Lock()
		p.quiet = true
		number := p.status.Build
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			p.quiet = false
			p.mu.Unlock()
		}()
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(again)
		what := "the build"
		if number != 0 {
			what = fmt.Sprintf("build %d", number)
		}
		printf(s.Err, "\r\x1b[KCancel %s in Buildkite? [Y/n] ", what)
		said := make(chan string, 1)
		go func() {
			answer, _ := bufio.NewReader(s.In).ReadString('\n') // the end of the input means yes
			said <- answer
		}()
		select {
		case <-again:
			printf(s.Err, "\n")
			return false
		case answer := <-said:
			a := strings.ToLower(strings.TrimSpace(answer))
			return a == "n" || a == "no"
		}
	}
}
