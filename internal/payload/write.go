package payload

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// JSON writes a value as Python's json.dumps does with ensure_ascii=False, but without
// blanks: NaN and Infinity are numbers, and halves of surrogate pairs are escaped.
// ParseObject reads the same value again.
func JSON(v Value) string {
	var b strings.Builder
	writeJSON(&b, v)
	return b.String()
}

func writeJSON(b *strings.Builder, v Value) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		fmt.Fprint(b, v)
	case Int:
		b.WriteString(string(v))
	case Float:
		b.WriteString(FloatJSON(v))
	case string:
		writeString(b, v)
	case []Value:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, e)
		}
		b.WriteByte(']')
	case *Object:
		b.WriteByte('{')
		sep := ""
		for k, e := range v.All() {
			b.WriteString(sep)
			writeString(b, k)
			b.WriteByte(':')
			writeJSON(b, e)
			sep = ","
		}
		b.WriteByte('}')
	default:
		panic(fmt.Sprintf("%T is no payload.Value", v))
	}
}

// FloatJSON returns a number as Python's json writes it, also as an object's key.
func FloatJSON(f Float) string {
	switch {
	case math.IsNaN(float64(f)):
		return "NaN"
	case math.IsInf(float64(f), 1):
		return "Infinity"
	case math.IsInf(float64(f), -1):
		return "-Infinity"
	}
	return floatRepr(float64(f))
}

func writeString(b *strings.Builder, s string) {
	b.WriteByte('"')
	start := 0
	flush := func(end, next int) {
		b.WriteString(s[start:end])
		start = next
	}
	for i := 0; i < len(s); {
		r, n := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, n = decodeRune(s[i:])
		}
		switch {
		case r == '\n': // texts often contain it and tabs
			flush(i, i+n)
			b.WriteString(`\n`)
		case r == '\t':
			flush(i, i+n)
			b.WriteString(`\t`)
		case r == '"' || r == '\\':
			flush(i, i)
			b.WriteByte('\\')
		case r < ' ' || isHigh(r) || isLow(r):
			flush(i, i+n)
			fmt.Fprintf(b, `\u%04x`, r)
		case r == utf8.RuneError && n == 1: // not from a Value; from a file in Latin-1, say
			flush(i, i+n)
			b.WriteRune(r)
		}
		i += n
	}
	flush(len(s), len(s))
	b.WriteByte('"')
}

// decodeRune is utf8.DecodeRuneInString, except that it decodes the surrogates that
// appendRune wrote.
func decodeRune(s string) (rune, int) {
	if len(s) >= 3 && s[0] == 0xED && s[1]&0xE0 == 0xA0 && s[2]&0xC0 == 0x80 {
		return 0xD000 | rune(s[1]&0x3F)<<6 | rune(s[2]&0x3F), 3
	}
	return utf8.DecodeRuneInString(s)
}
