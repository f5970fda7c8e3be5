package text

import (
	"cmp"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// IsUTF8 reports whether people read UTF-8 here, by the C library's rules. People who read the
// log of a Buildkite job do, whatever the container's locale.
func IsUTF8(env func(string) string) bool {
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

// ToASCII spells a text in ASCII. It replaces each character that kbnode does not write itself
// with a question mark.
func ToASCII(s string) string {
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

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// ASCIIWriter writes a text for people who read only ASCII.
type ASCIIWriter struct {
	To   io.Writer
	mu   sync.Mutex
	part []byte // the beginning of a character that is not complete yet
}

func (a *ASCIIWriter) Write(p []byte) (int, error) {
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
	if _, err := io.WriteString(a.To, ToASCII(string(all[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}
