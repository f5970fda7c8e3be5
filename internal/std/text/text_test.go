package text

import (
	"encoding/json"
	"errors"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestBlock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"plain text", "naïve\t→ 3\n", "naïve\t→ 3\n"},
		{"colours", "\x1b[1;31mred\x1b[0m", "red"},
		{"colours by one character", "\u009b31mred", "red"},
		{"a link, ended by ST", "\x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\", "text"},
		{"Buildkite's timestamp", "\x1b_bk;t=1700000000000\x07text", "text"},
		{"Buildkite's image", "a\x1b]1338;url='x'\ab", "ab"},
		{"a title that does not end", "\x1b]0;title\nnext", "0;title\nnext"},
		{"a string that another sequence ends", "\x1b]0;\x1b[mtext", "text"},
		{"a character set", "\x1b(0text", "text"},
		{"a lone escape", "a\x1b", "a"},
		{"an escape before a newline", "a\x1b\nb", "a\nb"},
		{"carriage returns", "a\r\nb\rc", "a\nb\nc"},
		{"bells, backspaces, NUL, DEL", "a\a\b\x00\x7fb", "ab"},
		{"turned writing", "a\u202eb\u2066c\u200b", "abc"},
		{"line separators", "a\u2028--- b", "a--- b"},
		{"bytes that are not UTF-8", "a\xffb", "a\ufffdb"},
	} {
		if got := Block(c.in); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"one\n  two\tthree\r\nfour", 100, "one two three four"},
		{"a\u202egpj.exe\u2066 \u200bb", 100, "agpj.exe b"},
		{"\x1b]0;title\a\x1b[2Jred", 100, "red"},
		{"abcdef", 6, "abcdef"},
		{"abcdefg", 6, "abcde…"},
		{"äöüß", 4, "äöüß"},
		{"äöüß", 3, "äö…"},
		{" a " + strings.Repeat("\x00", 1<<20), 10, "a…"},
		{"abc", 0, "…"},
		{"", 10, ""},
	} {
		if got := Line(c.in, c.most); got != c.want || !utf8.ValidString(got) {
			t.Errorf("Line(%.20q, %d) = %q, want %q", c.in, c.most, got, c.want)
		}
	}
}

// TestJSON escapes what an encoder leaves as it is, and changes no value.
func TestJSON(t *testing.T) {
	t.Parallel()
	plain := "{\n\t\"é😀\": \"日 \\u001b<\"\r\n}"
	for in, want := range map[string]string{
		plain:                                  plain,
		"\"\u0080\u009b31m\u009d0;x\u009c\"":   `"\u0080\u009b31m\u009d0;x\u009c"`,
		"\"\u202eexe\u2066\u200b\ufeff\x7f\"":  `"\u202eexe\u2066\u200b\ufeff\u007f"`,
		"[\"\\\\\u2028\", \"\\n\U000e0041é\"]": `["\\\u2028", "\n\udb40\udc41é"]`,
	} {
		got := JSON(in)
		if got != want {
			t.Errorf("%q: got %q", in, got)
		}
		var before, after any
		if err := errors.Join(json.Unmarshal([]byte(in), &before), json.Unmarshal([]byte(got), &after)); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%q became %q, %v", before, after, err)
		}
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{"": true, "naïve 3": true, "a\nb": false, "a\u202eb": false, "\x1b[m": false} {
		if got := Plain(s); got != want {
			t.Errorf("Plain(%q) = %v", s, got)
		}
	}
}

// TestShellWord has a shell read each word.
func TestShellWord(t *testing.T) {
	t.Parallel()
	for word, plain := range map[string]bool{
		"--queue=b200": true, "/a/b_c.d,e:f@g+h%": true, "naïve…": true, "": false, "a b": false, "a\nb\tc": false, "it's": false,
		"$HOME": false, "`x`": false, `a"b\c`: false, "*?[a]{b,c}": false, "(a)<b>|c&d;e": false, "#a": false, "~": false, "a!b^c": false, "\xff": false,
	} {
		got := ShellWord(word)
		if (got == word) != plain {
			t.Errorf("%q: %s", word, got)
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+got).Output()
		must.Do(t, err)
		must.Equal(t, word, string(out))
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		-1: "-", 0: "-", 2048: "2 KiB", 512 << 20: "512 MiB", 3 << 29: "1.5 GiB", 180 << 30: "180 GiB", 2 << 40: "2048 GiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestEdits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"b200", "B200", 0}, {"b20", "b200", 1}, {"h100", "b200", 2}, {"", "abc", 3}} {
		if got := Edits(c.a, c.b); got != c.want {
			t.Errorf("Edits(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestAkin(t *testing.T) {
	t.Parallel()
	names := []string{"benchmark_timeout", "cpus_per_slot", "gpu_count", "gpus", "ranked_timeout", "ranking_by", "test_timeout", "tests", "time_limit"}
	for word, want := range map[string]string{
		"timeout": "time_limit test_timeout benchmark_timeout ranked_timeout", "rank_by": "ranking_by", "testcases": "tests", "test-cases": "tests",
		"gpu": "gpus", "CPUs": "cpus_per_slot", "count": "gpu_count", "by_rank": "ranking_by", "by": "ranking_by", "tes": "", "memory": "", "rank_it": "", "": "", "__": "",
	} {
		got := strings.Join(Akin(word, names), " ")
		if wants := strings.Fields(want); len(wants) != len(strings.Fields(got)) || slices.ContainsFunc(wants, func(w string) bool { return !strings.Contains(got, w) }) {
			t.Errorf("%s: %s; want %s", word, got, want)
		}
	}
}
