// Package text makes texts for people. It makes those by others safe to show: of jobs,
// registries, servers, drivers and files. A terminal, a browser or a reader must not act on
// them.
package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible reports whether a character shows as itself. Control characters, those that
// change the writing direction, and those without width do not.
func Visible(r rune) bool { return unicode.IsGraphic(r) }

// Plain reports whether all characters of a text are visible. Newlines and tabs are not.
func Plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !Visible(r) })
}

// Line makes one line of a text and cuts it to that many characters. It removes escape
// sequences and invisible characters, replaces white space with single blanks, and ends
// a cut line with "…".
func Line(s string, most int) string {
	longest := 64 * (most + 1) // cut a text of megabytes before reading it
	cut := len(s) > longest
	if cut {
		s = s[:longest]
	}
	s = strings.Join(strings.Fields(Block(s)), " ")
	if !cut && utf8.RuneCountInString(s) <= most {
		return s
	}
	s, _ = Cut(s, most-1, 1)
	return strings.TrimRight(s, " ") + "…"
}

// Cut cuts a text to at most that many characters and lines.
func Cut(s string, characters, lines int) (head string, cut bool) {
	for i, r := range s {
		if characters <= 0 || lines <= 0 {
			return s[:i], true
		}
		if characters--; r == '\n' {
			lines--
		}
	}
	return s, false
}

// Block removes escape sequences and invisible characters from a text. It keeps
// newlines and tabs; a carriage return becomes a newline.
func Block(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == 0x1b || r >= 0x80 && r < 0xa0:
			n = escapeLen(s[i:])
		case r == '\r':
			if !strings.HasPrefix(s[i+n:], "\n") {
				b.WriteByte('\n')
			}
		case r == '\n' || r == '\t' || Visible(r):
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// escapeLen returns the length of the escape sequence at the start of a text, by
// ECMA-48: ESC or a control character of the second set, then parameters up to a final
// byte, or a string up to its terminator. Of a sequence that does not end on its line,
// only the introducer counts.
func escapeLen(s string) int {
	intro, n := utf8.DecodeRuneInString(s)
	final := byte(0x40) // the lowest byte that ends the sequence
	if intro == 0x1b {
		if n == len(s) || s[n] < 0x20 || s[n] > 0x7e {
			return n
		}
		if intro = rune(s[n]) + 0x40; s[n] < 0x30 { // ESC [ is another way to write U+009B
			intro, final = 0x9b, 0x30
		}
		n++
	}
	switch intro {
	case 0x9b:
		for i := n; i < len(s) && s[i] >= 0x20 && s[i] <= 0x7e; i++ {
			if s[i] >= final {
				return i + 1
			}
		}
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f: // device control, links, titles, and Buildkite's timestamps
		for i, r := range s[n:] {
			switch {
			case r == '\n':
				return n
			case r == '\a':
				return n + i + 1
			case r == 0x1b && strings.HasPrefix(s[n+i+1:], `\`):
				return n + i + 2
			case r == 0x9c:
				return n + i + utf8.RuneLen(r)
			case r == 0x1b || r >= 0x80 && r < 0xa0:
				return n + i // the next sequence ends the string
			}
		}
	}
	return n
}
