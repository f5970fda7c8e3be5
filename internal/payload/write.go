package payload

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/text"
)

// format is how a language writes values.
type format struct {
	null, yes, no string
	comma, colon  string
	float         func(Float) string
	string        func(*strings.Builder, string)
}

var (
	jsonFormat   = format{"null", "true", "false", ",", ":", floatJSON, jsonString}
	pythonFormat = format{"None", "True", "False", ", ", ": ", floatRepr, reprString}
)

func (f *format) write(b *strings.Builder, v Value) {
	switch v := v.(type) {
	case nil:
		b.WriteString(f.null)
	case bool:
		if v {
			b.WriteString(f.yes)
		} else {
			b.WriteString(f.no)
		}
	case Int:
		b.WriteString(string(v))
	case Float:
		b.WriteString(f.float(v))
	case string:
		f.string(b, v)
	case []Value:
		b.WriteByte('[')
		sep := ""
		for _, e := range v {
			b.WriteString(sep)
			f.write(b, e)
			sep = f.comma
		}
		b.WriteByte(']')
	case *Object:
		b.WriteByte('{')
		sep := ""
		for k, e := range v.All() {
			b.WriteString(sep)
			f.string(b, k)
			b.WriteString(f.colon)
			f.write(b, e)
			sep = f.comma
		}
		b.WriteByte('}')
	default:
		panic(fmt.Sprintf("%T is no payload.Value", v))
	}
}

// JSON writes a value as Python's json.dumps does with ensure_ascii=False, but without
// blanks: NaN and Infinity are numbers, and halves of surrogate pairs are escaped.
// ParseObject reads the same value again.
func JSON(v Value) string {
	var b strings.Builder
	jsonFormat.write(&b, v)
	return b.String()
}

// Repr renders a value as Python's repr() does.
func Repr(v Value) string {
	var b strings.Builder
	pythonFormat.write(&b, v)
	return b.String()
}

// Str renders a value as Python's str() does: strings verbatim, everything else with
// Repr.
func Str(v Value) string {
	if s, ok := v.(string); ok {
		return s
	}
	return Repr(v)
}

// HasSurrogate reports whether a string of a Value contains a lone surrogate, which no
// UTF-8 file, argument or environment variable can hold.
func HasSurrogate(s string) bool { return !utf8.ValidString(s) }

// floatJSON returns a number as Python's json writes it.
func floatJSON(f Float) string {
	switch {
	case math.IsNaN(float64(f)):
		return "NaN"
	case math.IsInf(float64(f), 1):
		return "Infinity"
	case math.IsInf(float64(f), -1):
		return "-Infinity"
	}
	return floatRepr(f)
}

// floatRepr is Python's float.__repr__: the shortest digits that parse to the same
// value, with an exponent only if it is under -4 or at least 16.
func floatRepr(float Float) string {
	f := float64(float)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'f', -1, 64), "+"))
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	_, exp, _ := strings.Cut(s, "e")
	if n, err := strconv.Atoi(exp); err == nil && (n < -4 || n >= 16) {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func reprString(b *strings.Builder, s string) {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteRune(quote)
	for len(s) > 0 {
		r, n := decodeRune(s)
		s = s[n:]
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r): // letters, marks, numbers, punctuation, symbols and the blank, as str.isprintable
			b.WriteRune(r)
		case r <= 0xFF:
			fmt.Fprintf(b, `\x%02x`, r)
		case r <= 0xFFFF:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
}

func jsonString(b *strings.Builder, s string) {
	b.WriteByte('"')
	for len(s) > 0 {
		r, n := decodeRune(s)
		s = s[n:]
		switch {
		case r == '\n': // texts often contain it and tabs
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || utf16.IsSurrogate(r):
			fmt.Fprintf(b, `\u%04x`, r)
		default: // also U+FFFD for a byte of a file in Latin-1, say
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// EscapeInvisible escapes the characters that a terminal would act on or not show. In
// JSON they occur only in strings, where the escapes mean the same.
func EscapeInvisible(doc string) string {
	var b strings.Builder
	for _, r := range doc {
		switch high, low := utf16.EncodeRune(r); {
		case r == '\n' || r == '\t' || r == '\r' || text.Visible(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// indentDepth bounds the indentation, so that the text for nested lists does not grow
// with the square of their number.
const indentDepth = 32

// Indent writes a JSON text on several lines. It changes only white space between values: numbers,
// escapes, duplicate keys and NaN, which json.Indent refuses, stay as they are. ParseObject must accept the text.
func Indent(doc string) string {
	var b strings.Builder
	depth, opened, quoted, escaped := 0, false, false, false
	newline := func(deeper int) {
		depth += deeper
		b.WriteString("\n" + strings.Repeat("  ", min(depth, indentDepth)))
	}
	for i := range len(doc) {
		c := doc[i]
		if quoted {
			b.WriteByte(c)
			quoted, escaped = c != '"' || escaped, c == '\\' && !escaped
			continue
		}
		switch closes := c == '}' || c == ']'; {
		case strings.IndexByte(" \t\n\r", c) >= 0:
			continue
		case opened && !closes:
			newline(1)
		case !opened && closes:
			newline(-1)
		}
		b.WriteByte(c)
		opened, quoted = c == '{' || c == '[', c == '"'
		switch c {
		case ',':
			newline(0)
		case ':':
			b.WriteByte(' ')
		}
	}
	return b.String()
}
