package runner

import (
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

// decode converts a program's bytes to text like Python's bytes.decode("utf-8",
// "replace"): it writes one U+FFFD for each longest piece that could have begun a
// character, where Go would write one for each byte.
func decode(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		for r == utf8.RuneError && n < min(len(b), utf8.UTFMax) && !utf8.FullRune(b[:n+1]) {
			n++
		}
		out.WriteRune(r)
		b = b[n:]
	}
	return out.String()
}

// newlines is Python's universal newline translation.
func newlines(s string) string {
	if !strings.Contains(s, "\r") {
		return s
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

// splitLines is str.splitlines(keepends=True): it splits after every line
// boundary of Python and leaves no empty last piece.
func splitLines(s string) iter.Seq[string] {
	return func(yield func(string) bool) {
		start := 0
		for i := 0; i < len(s); {
			r, n := utf8.DecodeRuneInString(s[i:])
			i += n
			if !isBoundary(r) {
				continue
			}
			if r == '\r' && strings.HasPrefix(s[i:], "\n") {
				i++
			}
			if !yield(s[start:i]) {
				return
			}
			start = i
		}
		if start < len(s) {
			yield(s[start:])
		}
	}
}

// chomp removes the line boundary at the end of a line.
func chomp(line string) string {
	if s, ok := strings.CutSuffix(line, "\r\n"); ok {
		return s
	}
	if r, n := utf8.DecodeLastRuneInString(line); isBoundary(r) {
		return line[:len(line)-n]
	}
	return line
}

func isBoundary(r rune) bool {
	switch r {
	case '\n', '\v', '\f', '\r', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

// strip is str.strip(): White_Space as in strings.TrimSpace, plus the four
// information separators.
func strip(s string) string {
	return strings.TrimFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f })
}

// quote is shlex.join.
func quote(argv []string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_@%+=:,./-", r)
	}
	quoted := make([]string, len(argv))
	for i, a := range argv {
		if a == "" || strings.TrimFunc(a, safe) != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'"'"'`) + "'"
		}
		quoted[i] = a
	}
	return strings.Join(quoted, " ")
}
