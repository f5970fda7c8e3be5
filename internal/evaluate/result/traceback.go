package result

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxSource bounds the lines of source that Python shows of one call; more are output that looks like them.
const maxSource = 12

// joints are what Python writes between two tracebacks of one exception.
var joints = []string{
	"The above exception was the direct cause of the following exception:",
	"During handling of the above exception, another exception occurred:",
}

// maxShown bounds the tracebacks that are compared with those that follow.
const maxShown = 100

// tracebacks are those of Python that the report of an evaluation has shown. Anyone may have written them: what is
// left out of a text is a call outside of the submission, where one inside is shown, or lines that were shown before.
type tracebacks struct{ shown []string }

// brief shortens the tracebacks in a text, says in brackets what it leaves out, and then cuts the text to at most that many
// characters and lines.
func (t *tracebacks) brief(s string, characters, lines int) (head string, cut bool) {
	var b strings.Builder
	again, before := 0, len(t.shown)
	var ends []int // in b, of the tracebacks that are new
	for i, part := range split(s) {
		rest, known := part, false
		if i > 0 {
			rest, known = t.rest(part)
		}
		if known {
			again++
		}
		if known && rest == "" {
			continue
		}
		writeAgain(&b, again)
		again = 0
		if i == 0 || known {
			b.WriteString(rest)
			continue
		}
		writeCalls(&b, part)
		if len(t.shown) < maxShown {
			t.shown, ends = append(t.shown, strings.TrimRight(part, "\n")+"\n"), append(ends, b.Len())
		}
	}
	writeAgain(&b, again)
	head, cut = text.Cut(b.String(), characters, lines)
	for len(ends) > 0 && ends[len(ends)-1] > len(head) { // what was cut off was not shown
		ends = ends[:len(ends)-1]
	}
	t.shown = t.shown[:before+len(ends)]
	return head, cut
}

func writeAgain(b *strings.Builder, times int) {
	if times > 0 {
		fmt.Fprintf(b, "[the same traceback %s]\n", text.Count(times, "more time"))
	}
}

// rest returns what a part has besides a traceback that was shown, and whether it has one.
func (t *tracebacks) rest(part string) (string, bool) {
	for _, shown := range t.shown {
		// What is indented still belongs to the traceback, which is then another.
		rest, ok := strings.CutPrefix(part, shown)
		if ok && (rest == "" || !strings.HasPrefix(rest, " ") && strings.Contains(shown, "\n  ")) {
			return strings.TrimLeft(rest, "\n"), true
		}
	}
	return part, false
}

// split cuts a text before each traceback, which it leaves together with those of the exception's causes. The first part
// is what comes before.
func split(s string) (parts []string) {
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	from, at, last := 0, 0, ""
	for line := range strings.Lines(s) {
		isJoint := false
		for _, joint := range joints {
			isJoint = isJoint || last == joint
		}
		trimmed := strings.TrimRight(line, "\n")
		if body := strings.TrimPrefix(trimmed, "  + Exception Group "); !isJoint && body == "Traceback (most recent call last):" {
			parts, from = append(parts, s[from:at]), at
		}
		at += len(line)
		if trimmed != "" {
			last = trimmed
		}
	}
	return append(parts, s[from:])
}

// writeCalls writes a traceback and those of its causes without the calls outside of the submission. One that has no others
// is written whole: it is the judge's, and what a submission wrote before must not make it shorter.
func writeCalls(b *strings.Builder, part string) {
	var whole, short strings.Builder // of the traceback since the last header
	var source, left int
	var skip, inside, entered bool // entered: the submission was called
	sum := func(prefix string) {
		if left > 0 {
			fmt.Fprintf(&short, "%s  [%s of the judge and of packages left out]\n", prefix, text.Count(left, "call"))
		}
		left = 0
	}
	flush := func() {
		sum("")
		if entered {
			b.WriteString(short.String())
		} else {
			b.WriteString(whole.String())
		}
		whole.Reset()
		short.Reset()
	}
	for line := range strings.Lines(part) {
		prefix := groupPrefix(line)
		body := strings.TrimSuffix(line[len(prefix):], "\n")
		file, called, isFrame := frameOf(body)
		again := timesAgain(body)
		switch {
		case strings.HasSuffix(body, "Traceback (most recent call last):"):
			flush()
			inside, entered, skip, source = true, false, false, 0
		case !inside:
		case isFrame:
			skip, source = called && isOutside(file, entered), 0
			entered = entered || !skip
			if skip {
				left++
			}
		case skip && again > 0:
			left += again
		case strings.HasPrefix(body, "    ") && source < maxSource:
			source++
		default: // the exception, or what only looks like a traceback
			inside, skip = strings.HasPrefix(body, " "), false
			if !inside {
				sum(strings.Replace(prefix, "+", "|", 1))
			}
		}
		whole.WriteString(line)
		if !skip {
			short.WriteString(line)
		}
	}
	flush()
}

// isOutside reports whether a file is not the submission's. Once that was entered, a file with the judge's name is its own.
func isOutside(file string, entered bool) bool {
	return !entered && (file == "<string>" || path.Base(file) == "eval.py") || isPackage(file)
}

const digits = "0123456789"

// groupPrefix returns what Python draws before a line of an exception group, such as "  | ".
func groupPrefix(line string) string {
	rest := strings.TrimLeft(line, " ")
	if !strings.HasPrefix(rest, "| ") && !strings.HasPrefix(rest, "+ ") {
		return ""
	}
	return line[:len(line)-len(rest)+2]
}

// frameOf returns the file in a line that begins a frame, and whether the frame is a call: that of a syntax error is none.
func frameOf(line string) (file string, called, ok bool) {
	rest, is := strings.CutPrefix(line, `  File "`)
	file, rest, found := strings.Cut(rest, `", line `)
	after := strings.TrimLeft(rest, digits)
	ok = is && found && !strings.Contains(file, `"`) && after != rest
	return file, strings.HasPrefix(after, ", in "), ok
}

// timesAgain returns how often the frame above a line was repeated, if the line says so.
func timesAgain(line string) int {
	rest, is := strings.CutPrefix(line, "  [Previous line repeated ")
	count, unit, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(count, 10, 30)
	if !is || err != nil || unit != "more times]" && unit != "more time]" {
		return 0
	}
	return int(n)
}

// isPackage reports whether a file is Python's or of an installed package.
func isPackage(file string) bool {
	if strings.HasPrefix(file, "<frozen ") || strings.Contains(file, "/site-packages/") || strings.Contains(file, "/dist-packages/") {
		return true
	}
	for _, lib := range []string{"/lib/python3", "/lib64/python3"} {
		for _, rest := range strings.Split(file, lib)[1:] {
			if strings.HasPrefix(strings.TrimLeft(rest, digits+"."), "/") {
				return true
			}
		}
	}
	return false
}
