package payload

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Str renders a value as Python's str() does: strings verbatim, everything else with
// Repr.
func Str(v Value) string {
	if s, ok := v.(string); ok {
		return s
	}
	return Repr(v)
}

// Repr renders a value as Python's repr() does.
func Repr(v Value) string {
	var b strings.Builder
	repr(&b, v)
	return b.String()
}

// Truth reports whether Python treats a value as true in a condition.
func Truth(v Value) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case Int:
		return v != "0"
	case Float:
		return v != 0
	case string:
		return v != ""
	case []Value:
		return len(v) > 0
	case *Object:
		return v.Len() > 0
	}
	return true
}

// HasSurrogate reports whether a string of a Value contains a lone surrogate, which no
// UTF-8 file, argument or environment variable can hold.
func HasSurrogate(s string) bool { return !utf8.ValidString(s) }

func repr(b *strings.Builder, v Value) {
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case Int:
		b.WriteString(string(v))
	case Float:
		b.WriteString(floatRepr(float64(v)))
	case string:
		reprString(b, v)
	case []Value:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			repr(b, e)
		}
		b.WriteByte(']')
	case *Object:
		b.WriteByte('{')
		sep := ""
		for k, e := range v.All() {
			b.WriteString(sep)
			reprString(b, k)
			b.WriteString(": ")
			repr(b, e)
			sep = ", "
		}
		b.WriteByte('}')
	}
}

// floatRepr is Python's float.__repr__: the shortest digits that parse to the same
// value, with an exponent only if it is under -4 or at least 16.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
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
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteByte(quote)
	for len(s) > 0 {
		r, n := decodeRune(s)
		s = s[n:]
		switch {
		case r == rune(quote) || r == '\\':
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
	b.WriteByte(quote)
}
