// Package text makes texts for people. It makes those by others safe to show: of jobs,
// registries, servers, drivers and files. A terminal, a browser or a reader must not act on
// them.
package text

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Visible reports whether a character shows as itself. Control characters, those that
// change the writing direction, and those without width do not.
func Visible(r rune) bool { return unicode.IsGraphic(r) }

// Plain reports whether all characters of a text are visible. Newlines and tabs are not.
func Plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !Visible(r) })
}

// ShellWord returns a word as a shell reads it: in quotes, if it has what may mean something else there.
func ShellWord(s string) string {
	special := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("@%+=:,./_-…", r)
	}
	if s != "" && !strings.ContainsFunc(s, special) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
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
		characters--
		if r == '\n' {
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

// JSON escapes the characters of a JSON text that are not visible. Its value stays the same.
func JSON(doc string) string {
	var b strings.Builder
	b.Grow(len(doc))
	for _, r := range doc {
		switch {
		case r < 0x7f || Visible(r): // a lower one that is not visible is white space
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
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
		intro = rune(s[n]) + 0x40
		if s[n] < 0x30 { // ESC [ is another way to write U+009B
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

// Plural returns the form of a word for a number of things.
func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Count returns a number of things: "1 slot", "2 slots".
func Count(n int, word string) string { return fmt.Sprintf("%d %s", n, Plural(n, word, word+"s")) }

// Bytes returns a size for people to compare: "180 GiB", "512 MiB".
func Bytes(n int64) string {
	const unit = 1024
	switch {
	case n <= 0:
		return "-"
	case n < unit*unit:
		return fmt.Sprintf("%d KiB", n/unit)
	case n < unit*unit*unit:
		return fmt.Sprintf("%d MiB", n/(unit*unit))
	case n < 10*unit*unit*unit:
		return fmt.Sprintf("%.1f GiB", float64(n)/(unit*unit*unit))
	default:
		return fmt.Sprintf("%d GiB", n/(unit*unit*unit))
	}
}

// Akin returns the names of keys that a word may mean, those with the fewest words: each of its words is one of the name's, or
// one begins the other, as timeout does of test_timeout and, with a stem of four letters, rank_by of ranking_by.
func Akin(word string, names []string) (all []string) {
	split := func(s string) []string {
		return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	}
	fewest := 0
	for _, name := range names {
		in := split(name)
		within := func(w string) bool { return slices.ContainsFunc(in, func(n string) bool { return sameStem(w, n) }) }
		typed := split(word)
		if len(in) == 1 { // testcases, which means tests
			typed = []string{strings.Join(typed, "")}
		}
		if len(typed) == 0 || slices.ContainsFunc(typed, func(w string) bool { return !within(w) }) || len(all) > 0 && len(in) > fewest {
			continue
		}
		if len(in) < fewest {
			all = nil
		}
		all, fewest = append(all, name), len(in)
	}
	return all
}

// sameStem reports whether two words are the same but for a plural, or one with four letters or more begins the other.
func sameStem(a, b string) bool {
	a, b = strings.TrimSuffix(a, "s"), strings.TrimSuffix(b, "s")
	if len(a) > len(b) {
		a, b = b, a
	}
	return a == b || len(a) >= 4 && strings.HasPrefix(b, a)
}

// Edits counts the bytes to add, remove, change or swap with the next one to turn a into b, ignoring
// case. Words of more than 100 bytes are that far from all others.
func Edits(a, b string) int {
	const longest = 100
	if len(a) > longest || len(b) > longest {
		return longest
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
