package cli

import (
	"cmp"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
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
		case *asciiText:
			w = v.to
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
	if text.StringWidthWithoutEscSequences(line) <= width {
		return line
	}
	var b strings.Builder
	at, begun, quotes := 0, false, 0
	for i, word := range strings.Split(line, " ") {
		n := text.StringWidthWithoutEscSequences(word)
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
	seen := []rune(text.StripEscape(line))
	lead := len(seen) - len([]rune(strings.TrimLeft(string(seen), " ")))
	head := string(seen[:min(width/2, len(seen))])
	if i := strings.LastIndex(head, "  "); i >= lead {
		return utf8.RuneCountInString(head[:i]) + 2
	}
	return min(lead+2, width/2)
}

// isUTF8 reports whether people read UTF-8 here, by the C library's rules. People who read the
// log of a Buildkite job do, whatever the container's locale.
func isUTF8(env func(string) string) bool {
	_, charset, _ := strings.Cut(cmp.Or(env("LC_ALL"), env("LC_CTYPE"), env("LANG")), ".")
	charset, _, _ = strings.Cut(strings.ToLower(charset), "@")
	return charset == "utf-8" || charset == "utf8" || env("BUILDKITE") == "true"
}

// asciiOf maps the characters that kbnode writes to ASCII.
var asciiOf = map[rune]string{
	'…': "...", '±': "+/-", '×': "x", '°': "", 'µ': "u", 'μ': "u", '¦': "|",
	'–': "-", '—': "-", '→': "->", '·': ".", '•': "*", '≤': "<=", '≥': ">=", '\u00a0': " ",
	'‘': "'", '’': "'", '“': `"`, '”': `"`,
}

// toASCII spells a text in ASCII. It replaces each character that kbnode does not write itself
// with a question mark.
func toASCII(s string) string {
	if isASCII(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else if as, known := asciiOf[r]; known {
			b.WriteString(as)
		} else {
			b.WriteByte('?')
		}
	}
	return b.String()
}

func isASCII[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// asciiText is a writer for people who read only ASCII.
type asciiText struct {
	to   io.Writer
	mu   sync.Mutex
	part []byte // the beginning of a character that is not complete yet
}

func (a *asciiText) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := append(a.part, p...)
	end := len(all)
	for i := max(0, end-utf8.UTFMax+1); i < end; i++ {
		if utf8.RuneStart(all[i]) && !utf8.FullRune(all[i:]) {
			end = i
		}
	}
	a.part = append([]byte{}, all[end:]...)
	if _, err := io.WriteString(a.to, toASCII(string(all[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// spell returns a text as w will show it.
func spell(w io.Writer, s string) string {
	if a, ok := w.(*answer); ok {
		w = a.to
	}
	if _, ok := w.(*asciiText); ok {
		return toASCII(s)
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
