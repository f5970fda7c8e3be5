package doctest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Differ tells from which of its lines on a page's output is not what was printed; it is
// empty where it is.
//
// A line … stands for any lines, also for none, and … in a line for any text. Blanks
// compare as one, since columns are as wide as their content, and lines without
// anything do not count. Days, times of day, durations, identifiers, and amounts of memory,
// of which each kernel keeps its own, are not the same twice: one stands for another of its form.
func Differ(want, got string) string {
	lines, text := flat(want), strings.Join(flat(got), "\n")
	if pattern(lines, `$`).MatchString(text) {
		return ""
	}
	n := len(lines)
	for n > 0 && !pattern(append(lines[:n:n], "…"), `$`).MatchString(text) {
		n--
	}
	if n == len(lines) {
		return "there is more than the page has"
	}
	return fmt.Sprintf("line %d, %q, does not come there", n+1, lines[n])
}

// flat are the lines of a text that have something in them, with their blanks made one.
func flat(text string) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, strings.Join(words, " "))
		}
	}
	return lines
}

// volatile are the forms of what is not the same twice.
var volatile = []string{
	`\d{4}-\d\d-\d\d`,
	`\d\d:\d\d(?::\d\d)?`,
	`(?:\d+(?:\.\d+)? ?(?:ms|µs|ns|h|m|s|d)(?:in)?)+`,
	`\d+(?:\.\d+)? ?[MG]iB`,
	`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`,
	`[0-9a-f]{12,64}`,
}

// word finds those, and …, where they stand by themselves.
var word = regexp.MustCompile(`…|\b(?:` + strings.Join(volatile, "|") + `)\b`)

// form has each of volatile to itself.
var form = func() (list []*regexp.Regexp) {
	for _, v := range volatile {
		list = append(list, regexp.MustCompile("^(?:"+v+")$"))
	}
	return list
}()

// pattern is what an output must be that the page has as these lines.
func pattern(lines []string, end string) *regexp.Regexp {
	lines = slices.CompactFunc(slices.Clone(lines), func(a, b string) bool { return a == "…" && b == "…" })
	if len(lines) == 1 && lines[0] == "…" {
		return regexp.MustCompile(``)
	}
	var b strings.Builder
	b.WriteString(`^`)
	for i, line := range lines {
		if line == "…" {
			// It takes the line break that stood before it, or the one after it.
			b.WriteString(map[bool]string{true: `(?:.*\n)*?`, false: `(?:\n.*)*?`}[i == 0])
			continue
		}
		if i > 1 || i == 1 && lines[0] != "…" {
			b.WriteString(`\n`)
		}
		last := 0
		for _, at := range word.FindAllStringIndex(line, -1) {
			b.WriteString(regexp.QuoteMeta(line[last:at[0]]))
			b.WriteString(stands(line[at[0]:at[1]]))
			last = at[1]
		}
		b.WriteString(regexp.QuoteMeta(line[last:]))
	}
	return regexp.MustCompile(b.String() + end)
}

// stands is the pattern that a word of a page stands for.
func stands(text string) string {
	if text == "…" {
		return `.*`
	}
	for i, re := range form {
		if re.MatchString(text) {
			return "(?:" + volatile[i] + ")"
		}
	}
	return regexp.QuoteMeta(text)
}
