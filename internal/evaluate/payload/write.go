package payload

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
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
