package cli

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	pretty "github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/gpu-mode/kbnode/internal/text"
)

// terminal reports whether w is a terminal, and returns its width in columns.
func terminal(w io.Writer) (width int, ok bool) {
	f, isFile := bottom(w).(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return width, true
}

// bottom returns the writer that a stream finally writes to.
func bottom(w io.Writer) io.Writer {
	for {
		switch v := w.(type) {
		case *answer:
			w = v.to
		case *text.ASCIIWriter:
			w = v.To
		default:
			return w
		}
	}
}

// cursor returns the width of a terminal whose lines can be rewritten, or 0.
func cursor(w io.Writer) int {
	width, _ := terminal(w)
	if os.Getenv("TERM") == "dumb" {
		return 0
	}
	return width
}

// colored reports whether to color what is written to w.
func colored(w io.Writer) bool { return cursor(w) > 0 && os.Getenv("NO_COLOR") == "" }

// isTerminal reports whether r is a terminal, at which a person types.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// rewriteLine replaces the terminal's current line, cut to its width.
func rewriteLine(w io.Writer, width int, line string) {
	if r := []rune(spell(w, line)); len(r) >= width {
		line = string(r[:max(0, width-1)])
	}
	printf(w, "\r\x1b[K%s", strings.TrimRight(line, " "))
}

// wrap breaks lines that are wider than width between words. The rest of a line is indented to
// the words that it belongs to: after the last column that two blanks end, or two blanks more
// than its line.
func wrap(s string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		words := strings.TrimRight(line, "\n")
		b.WriteString(fold(words, "", width, hang(words, width)) + line[len(words):])
	}
	return b.String()
}

// commands breaks lines of commands so that they can still be typed as shown.
func commands(s string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		words := strings.TrimRight(line, "\n")
		b.WriteString(fold(words, " \\", width, hang(words, width)) + line[len(words):])
	}
	return b.String()
}

// fold breaks a line between words into lines of at most width columns. All but the last end
// with end, and all but the first are indented. If end is not empty, quoted text is not broken.
func fold(line, end string, width, indent int) string {
	if pretty.StringWidthWithoutEscSequences(line) <= width {
		return line
	}
	var b strings.Builder
	at, begun, quotes := 0, false, 0
	for i, word := range strings.Split(line, " ") {
		n := pretty.StringWidthWithoutEscSequences(word)
		switch {
		case i == 0:
		case begun && at > indent && at+1+n+len(end) > width && (end == "" || quotes%2 == 0):
			b.WriteString(end + "\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
		begun = begun || n > 0
		quotes += strings.Count(word, "'") + strings.Count(word, `"`)
	}
	return b.String()
}

func hang(line string, width int) int {
	seen := []rune(pretty.StripEscape(line))
	lead := len(seen) - len([]rune(strings.TrimLeft(string(seen), " ")))
	head := string(seen[:min(width/2, len(seen))])
	if i := strings.LastIndex(head, "  "); i >= lead {
		return utf8.RuneCountInString(head[:i]) + 2
	}
	return min(lead+2, width/2)
}

// spell returns a text as w will show it.
func spell(w io.Writer, s string) string {
	if a, ok := w.(*answer); ok {
		w = a.to
	}
	if _, ok := w.(*text.ASCIIWriter); ok {
		return text.ToASCII(s)
	}
	return s
}

// data returns a command's standard output for programs to read: its bytes are the same in every
// locale.
func data(w io.Writer) io.Writer {
	if a, ok := w.(*answer); ok {
		a.to = bottom(a.to)
	}
	return w
}

// document returns standard output for a text that people save as often as they read it.
func document(w io.Writer) io.Writer {
	if _, ok := terminal(w); ok {
		return w
	}
	return data(w)
}
