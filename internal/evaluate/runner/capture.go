package runner

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	textLimit  = result.MaxText
	textMargin = 100 // of them, reserved for the note on omitted lines

	// headLimit is how many bytes of an output are kept. They always contain the text
	// up to textLimit, because a character takes at most 4 bytes.
	headLimit = 8 * textLimit

	// popcornLimit is how many bytes a program may report, also as they are in result.json.
	// Hundreds of tests report less than 1 MiB.
	popcornLimit = 4 << 20
)

// capture takes output of any length and keeps what its truncated text depends on: the
// beginning and the number of lines.
type capture struct {
	head []byte
	size int64
	lf   int  // "\n"
	cr   int  // "\r", including those before "\n"
	crlf int  // "\r\n"
	last byte // the last byte so far
}

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if room := headLimit - len(c.head); room > 0 {
		c.head = append(c.head, p[:min(room, len(p))]...)
	}
	c.size += int64(len(p))
	c.lf += bytes.Count(p, []byte{'\n'})
	if cr := bytes.Count(p, []byte{'\r'}); cr > 0 {
		c.cr += cr
		c.crlf += bytes.Count(p, []byte("\r\n"))
	}
	if c.last == '\r' && p[0] == '\n' {
		c.crlf++
	}
	c.last = p[len(p)-1]
	return len(p), nil
}

// text returns the output, decoded and truncated, with newlines translated if translate
// is set.
func (c *capture) text(translate bool) string {
	s, pieces := decode(c.head), c.lf+1
	if translate {
		s, pieces = newlines(s), pieces+c.cr-c.crlf
	}
	return truncate(s, pieces)
}

// truncate cuts a text before the first line with which it has more than
// textLimit-textMargin characters, newlines included. It appends how many of its pieces
// (lines, split at "\n" only) are missing.
func truncate(s string, pieces int) string {
	size, start := 0, 0
	for i := 0; start <= len(s); i++ {
		end := strings.IndexByte(s[start:], '\n')
		if end < 0 {
			end = len(s)
		} else {
			end += start
		}
		size += utf8.RuneCountInString(s[start:end]) + 1
		if size+textMargin > textLimit {
			return s[:start] + "[...] " + strconv.Itoa(pieces-i) + " lines omitted"
		}
		start = end + 1
	}
	return s
}

// bounded keeps up to limit bytes and records whether there were more.
type bounded struct {
	buf   []byte
	limit int
	over  bool
}

// Write never fails, so that the program at the other end does not block.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.limit - len(b.buf)
	b.over = b.over || len(p) > room
	b.buf = append(b.buf, p[:min(room, len(p))]...)
	return len(p), nil
}

// parsePopcorn reads what a program wrote to POPCORN_FD: one "key: value" per line. The
// last of equal keys counts. It sets over if it left something out.
func parsePopcorn(b []byte) (reported result.Pairs[string], over bool) {
	at, room := map[string]int{}, popcornLimit
	for line := range splitLines(newlines(decode(b))) {
		k, v, _ := strings.Cut(chomp(line), ":")
		if k == "" && v == "" {
			continue
		}
		k, v = strip(k), strip(v)
		i, old := at[k]
		room -= encodedSize(v)
		if !old {
			room -= encodedSize(k)
		}
		if room < 0 || !old && len(reported) == result.MaxNames {
			over = true
			continue
		}
		if old {
			reported[i].Value = v
			continue
		}
		at[k] = len(reported)
		reported = append(reported, result.Pair[string]{Key: k, Value: v})
	}
	return reported, over
}

// caseAtEnd says in which case a judge was ended, by its report, and how many had passed; "" if it told of none.
func caseAtEnd(report []byte) string {
	reported, _ := parsePopcorn(report)
	name, spec, when, passed := "", "", "in", 0
	for _, m := range reported {
		switch prefix, isSpec := strings.CutSuffix(m.Key, ".spec"); {
		case isSpec:
			name, spec, when = prefix, m.Value, "in"
		case m.Key == name+".status" && m.Value == "pass", m.Key == name+".mean":
			passed++
			fallthrough
		case m.Key == name+".error":
			when = "after"
		}
	}
	kind, number, _ := strings.Cut(name, ".")
	if name == "" {
		return ""
	}
	total := cmp.Or(reported.Get(kind+"-count"), "?")
	return fmt.Sprintf("%s %s %s (%s); %d of %s had passed", when, kind, text.Line(number, 10), text.Line(spec, 200), passed, text.Line(total, 10))
}

// encodedSize returns how many bytes a text takes in JSON, quotes included, at most.
func encodedSize(s string) int {
	n := len(s) + len(`"":,`)
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ':
			n += len(`\u0000`) - 1
		case c == 0xe2: // U+2028 and U+2029 are escaped
			n += 3
		case c == '"' || c == '\\':
			n++
		}
	}
	return n
}
