package payload

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/text"
)

// indentDepth bounds the indentation, so that the text for nested lists does not grow
// with the square of their number.
const indentDepth = 32

// Indent writes a JSON text on several lines. It changes only white space between
// values; numbers, escapes and duplicate keys stay as they are. ParseObject must accept
// the text.
func Indent(w *bufio.Writer, doc string) error {
	depth := 0
	newline := func() {
		_ = w.WriteByte('\n') // the writer keeps its error
		for range min(depth, indentDepth) {
			_, _ = w.WriteString("  ")
		}
	}
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; c {
		case ' ', '\t', '\n', '\r':
		case '"':
			end := stringEnd(doc, i)
			_, _ = w.WriteString(doc[i:end])
			i = end - 1
		case '{', '[':
			_ = w.WriteByte(c)
			rest := strings.TrimLeft(doc[i+1:], " \t\n\r")
			if rest != "" && rest[0] == c+2 { // } and ] are two code points after their openers
				_ = w.WriteByte(rest[0])
				i = len(doc) - len(rest)
				continue
			}
			depth++
			newline()
		case '}', ']':
			depth--
			newline()
			_ = w.WriteByte(c)
		case ',':
			_ = w.WriteByte(c)
			newline()
		case ':':
			_, _ = w.WriteString(": ")
		default:
			_ = w.WriteByte(c)
		}
	}
	return w.WriteByte('\n')
}

// stringEnd returns the offset after the string that begins at start.
func stringEnd(doc string, start int) int {
	for i := start + 1; i < len(doc); i++ {
		switch doc[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(doc)
}

// EscapeInvisible escapes the characters that a terminal would act on or not show. In
// JSON they occur only in strings, where the escapes mean the same.
func EscapeInvisible(doc string) string {
	var b strings.Builder
	for _, r := range doc {
		switch {
		case r == '\n' || r == '\t' || r == '\r' || text.Visible(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
