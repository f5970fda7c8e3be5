package runner

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/test/must"
)

// These tests compare the functions that read programs' output with simple ones that
// have the whole text in memory. TestDecodeAgreesWithPython has decode.

// addTexts adds texts with line boundaries of Python and of other definitions.
func addTexts(f *testing.F, add func(text []byte)) {
	f.Helper()
	for _, s := range []string{
		"", "check: pass\nsize: 1", "check: pass\r\nk: v\x1ca:\xff\n:\n\u2028", " k \x1f: \u00a0v\u3000\n: only a value\nonly a key\n\n:",
		"a\rb\r\nc\n\rd\x0be\x0cf\x1dg\x1eh\u0085i\u2028j\u2029k", "check: fail\ncheck: pass\nCheck: x", "a:b:c\n::\n \t:\x00\x1b[m",
		"\u200b\ufeffk: v", "\xf0\x9f\x98", "a\xe2\x82b\xed\xa0\x80\xf4\x90\x80", "é\n", "😀",
		"\xc0\x80", "\xe0\x9f\xbf", "\xf0\x8f\x80\x80", "\xf4\x8f\xbf", "\xf5\x80", "\xe2\x82\xe2\x82\xac", "\xf1\x80\x80\xf1",
		"a\n", "a\r", "a\r\n", strings.Repeat("x", 200) + "\n", strings.Repeat("\r", 9),
	} {
		add([]byte(s))
	}
}

func FuzzParsePopcorn(f *testing.F) {
	addTexts(f, func(text []byte) { f.Add(text) })
	f.Fuzz(func(t *testing.T, in []byte) {
		got, over := parsePopcorn(in)
		must.Equal(t, plainPopcorn(decode(in)), got)
		if over {
			t.Errorf("%q: over", in)
		}
	})
}

// plainPopcorn follows section 6 of the specification literally.
func plainPopcorn(text string) result.Pairs[string] {
	blank := func(r rune) bool { return unicode.Is(unicode.White_Space, r) || r >= 0x1c && r <= 0x1f }
	for _, end := range []string{"\r\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\u0085", "\u2028", "\u2029"} {
		text = strings.ReplaceAll(text, end, "\n")
	}
	var keys []string
	values := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		key, value, _ := strings.Cut(line, ":")
		if key == "" && value == "" {
			continue
		}
		key, value = strings.TrimFunc(key, blank), strings.TrimFunc(value, blank)
		if _, ok := values[key]; !ok {
			keys = append(keys, key)
		}
		values[key] = value
	}
	var pairs result.Pairs[string]
	for _, k := range keys {
		pairs = append(pairs, result.Pair[string]{Key: k, Value: values[k]})
	}
	return pairs
}

func FuzzCapture(f *testing.F) {
	for _, times := range []int{1, 40, 5000} {
		addTexts(f, func(text []byte) {
			f.Add(text, times, 1, true)
			f.Add(text, times, 7, false)
		})
	}
	// Lines that end around the limit.
	for n := 16281; n <= 16285; n++ {
		f.Add([]byte(strings.Repeat("é", n)), 1, 1000, true)
		f.Add([]byte(strings.Repeat("é", n)+"\n"), 2, 1000, true)
	}
	for _, pairs := range []int{8140, 8141, 8142, 200_000} {
		f.Add([]byte("a\r\n"), pairs, 1<<20, pairs%2 == 0)
		f.Add([]byte("a\r"), pairs, 7, true)
	}
	f.Fuzz(func(t *testing.T, piece []byte, times, cut int, translate bool) {
		if len(piece) == 0 {
			times = 1
		} else {
			times = min(max(times, 1), max(1, 512<<10/len(piece)))
		}
		in := bytes.Repeat(piece, times)
		cut = max(cut, 1, len(in)/10_000)
		var c capture
		for rest := in; len(rest) > 0; {
			n := min(cut, len(rest))
			if written, err := c.Write(rest[:n]); written != n || err != nil {
				t.Fatalf("write: %d of %d, %v", written, n, err)
			}
			rest = rest[n:]
		}
		got := c.text(translate)
		if want := plainText(in, translate); got != want {
			t.Errorf("%q %d times: got %d bytes …%q, want %d bytes …%q", piece, times, len(got), tail(got), len(want), tail(want))
		}
		if n := utf8.RuneCountInString(got); n > textLimit || !utf8.ValidString(got) {
			t.Errorf("%q %d times: %d characters", piece, times, n)
		}
		if len(c.head) > headLimit {
			t.Errorf("%d bytes are kept", len(c.head))
		}
	})
}

func tail(s string) string { return s[max(0, len(s)-60):] }

// plainText follows section 7 of the specification, with the whole text in memory.
func plainText(in []byte, translate bool) string {
	text := decode(in)
	if translate {
		text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	}
	lines := strings.Split(text, "\n")
	size := 0
	for i, line := range lines {
		size += len([]rune(line)) + 1
		if size+100 > 16384 {
			note := fmt.Sprintf("[...] %d lines omitted", len(lines)-i)
			return strings.Join(append(lines[:i:i], note), "\n")
		}
	}
	return text
}
