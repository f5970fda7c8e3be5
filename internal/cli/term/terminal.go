package term

import (
	"bytes"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	pretty "github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// Draft is text for To that is not written yet. It has the width and the colors that it has there.
type Draft struct {
	bytes.Buffer
	To io.Writer
}

// Terminal reports whether w is a terminal, and returns its width in columns.
func Terminal(w io.Writer) (width int, ok bool) {
	width, _, ok = size(w)
	return width, ok
}

// Height returns the lines of a terminal, or 0.
func Height(w io.Writer) int {
	_, height, _ := size(w)
	return height
}

func size(w io.Writer) (width, height int, ok bool) {
	switch to := w.(type) {
	case *Answer:
		return size(to.To)
	case *Draft:
		return size(to.To)
	case *os.File:
		if !term.IsTerminal(int(to.Fd())) {
			return 0, 0, false
		}
		width, height, err := term.GetSize(int(to.Fd()))
		if err != nil || width <= 0 {
			width = 80
		}
		return width, max(0, height), true
	}
	return 0, 0, false
}

// Cursor returns the width of a terminal whose lines can be rewritten, or 0.
func Cursor(w io.Writer) int {
	width, _ := Terminal(w)
	if os.Getenv("TERM") == "dumb" {
		return 0
	}
	return width
}

func colored(w io.Writer) bool { return Cursor(w) > 0 && os.Getenv("NO_COLOR") == "" }

// IsTerminal reports whether r is a terminal, at which a person types.
func IsTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Wrap breaks lines that are wider than width between words. The rest of a line is indented to
// the words that it belongs to: after the last column that two blanks end, or two blanks more
// than its line.
func Wrap(s string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		words := strings.TrimRight(line, "\n")
		b.WriteString(Fold(words, width, Hang(words, width)) + line[len(words):])
	}
	return b.String()
}

// Fold breaks a line between words into lines of at most width columns. All but the first are indented.
func Fold(line string, width, indent int) string {
	if pretty.StringWidthWithoutEscSequences(line) <= width {
		return line
	}
	var b strings.Builder
	at, begun := 0, false
	for i, word := range strings.Split(line, " ") {
		n := pretty.StringWidthWithoutEscSequences(word)
		switch {
		case i == 0:
		case begun && at > indent && at+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
		begun = begun || n > 0
	}
	return b.String()
}

// Hang returns the indentation of what follows on the next line.
func Hang(line string, width int) int {
	plain := []rune(pretty.StripEscape(line))
	lead := len(plain) - len([]rune(strings.TrimLeft(string(plain), " ")))
	head := string(plain[:min(width/2, len(plain))])
	if i := strings.LastIndex(head, "  "); i >= lead {
		return utf8.RuneCountInString(head[:i]) + 2
	}
	return min(lead+2, width/2)
}
