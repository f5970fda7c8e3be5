package cli

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gpu-mode/kbnode/internal/reconcile"
)

// progress shows work in progress on standard error. The last line of a terminal is rewritten;
// elsewhere each line is printed once.
type progress struct {
	s     Streams
	width int // of the terminal; 0 if no line can be rewritten

	mu   sync.Mutex
	line string // on the screen; "" if there is none
	hold bool   // a question is on the screen
}

func newProgress(s Streams) *progress { return &progress{s: s, width: cursor(s.Err)} }

// show rewrites the moving line. Where there is none, it prints fixed unless that is "".
func (p *progress) show(moving, fixed string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.width == 0 && fixed != "":
		p.s.progress("%s", fixed)
	case p.width > 0 && !p.hold:
		p.line = moving
		p.draw()
	}
}

// draw replaces the terminal's current line, cut to its width.
func (p *progress) draw() {
	line := []rune("  " + p.line)
	printf(p.s.Err, "%s%s", clearLine, strings.TrimRight(string(line[:min(len(line), max(0, p.width-1))]), " "))
}

// say prints a line that stays, above the moving one.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line == "" {
		p.s.progress(format, args...)
		return
	}
	printf(p.s.Err, clearLine)
	p.s.progress(format, args...)
	p.draw()
}

// end leaves last in place of the moving line, or nothing if last is "".
func (p *progress) end(last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.line == "":
		return
	case last == "":
		printf(p.s.Err, clearLine)
	default:
		p.line = last
		p.draw()
		printf(p.s.Err, "\n")
	}
	p.line = ""
}

// pause clears the moving line for a question, or lets it move again.
func (p *progress) pause(on bool) {
	p.end("")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = on
}

const clearLine = "\r\x1b[K"

// doing names the work of each kind of change, for people who wait for it.
var doing = map[reconcile.Kind]string{
	reconcile.Create: "writing files", reconcile.Update: "writing files", reconcile.Adopt: "writing files", reconcile.Chmod: "writing files",
	reconcile.Delete: "deleting files", reconcile.Restore: "restoring files",
	reconcile.AddUser: "adding users", reconcile.DelUser: "removing users",
	reconcile.Protect: "writing firewall rules", reconcile.Unprotect: "removing networks", reconcile.DelNet: "removing networks",
	reconcile.Reload: "reloading systemd", reconcile.Start: "starting units", reconcile.Stop: "stopping units",
	reconcile.Restart: "restarting units", reconcile.Drain: "asking agents to stop after their job",
	reconcile.Tune: "applying settings", reconcile.Untune: "restoring settings",
	reconcile.Set: "setting limits", reconcile.Partition: "setting limits",
	reconcile.Enable: "enabling units", reconcile.Disable: "disabling units",
}

// changeProgress shows changes as they are made: one line for each kind of work, on a terminal with
// the current change. plan and --dry-run print the full list.
type changeProgress struct {
	*progress
	work  string
	count int
}

// show is called before a change is made.
func (p *changeProgress) show(c reconcile.Change) {
	work := doing[c.Kind]
	if strings.HasSuffix(c.Subject, ".slice") && (c.Kind == reconcile.Start || c.Kind == reconcile.Set) {
		work = doing[reconcile.Partition] // a slice only limits
	}
	fixed := ""
	if work != p.work {
		p.end()
		p.work, p.count, fixed = work, 0, work
	}
	p.count++
	p.progress.show(fmt.Sprintf("%s: %d, %s", work, p.count, c.Subject), fixed)
}

// end completes the line of the finished work with its count.
func (p *changeProgress) end() {
	p.progress.end(fmt.Sprintf("%s: %d", p.work, p.count))
	p.work = ""
}

// showProgress prints changes as they are made, instead of the log.
func showProgress(s Streams, host *reconcile.Host) (end func()) {
	p := &changeProgress{progress: newProgress(s)}
	host.Log = nil
	host.Progress = p.show
	return p.end
}
