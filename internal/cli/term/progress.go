package term

import (
	"strings"
	"sync"
)

// Progress shows work in progress on standard error. The last line of a terminal is rewritten;
// elsewhere each line is printed once.
type Progress struct {
	S     Streams
	Width int // of the terminal; 0 if no line can be rewritten

	mu   sync.Mutex
	Line string // on the screen; "" if there is none
}

// NewProgress shows progress on s.Err.
func NewProgress(s Streams) *Progress { return &Progress{S: s, Width: Cursor(s.Err)} }

// Show rewrites the moving line. Where there is none, it prints fixed unless that is "".
func (p *Progress) Show(moving, fixed string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.Width == 0 && fixed != "":
		p.S.Progress("%s", fixed)
	case p.Width > 0:
		p.Line = moving
		p.draw()
	}
}

// draw replaces the terminal's current line, cut to its width.
func (p *Progress) draw() {
	line := []rune("  " + p.Line)
	Printf(p.S.Err, "%s%s", ClearLine, strings.TrimRight(string(line[:min(len(line), max(0, p.Width-1))]), " "))
}

// Say prints a line that stays, above the moving one.
func (p *Progress) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Line == "" {
		p.S.Progress(format, args...)
		return
	}
	Printf(p.S.Err, ClearLine)
	p.S.Progress(format, args...)
	p.draw()
}

// End leaves last in place of the moving line, or nothing if last is "".
func (p *Progress) End(last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.Line == "":
		return
	case last == "":
		Printf(p.S.Err, ClearLine)
	default:
		p.Line = last
		p.draw()
		Printf(p.S.Err, "\n")
	}
	p.Line = ""
}

// What clears the terminal's current line, and all of it.
const (
	ClearLine   = "\r\x1b[K"
	ClearScreen = "\x1b[H\x1b[2J"
)
