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
// compare as one, since columns are as wide as what stands in them. Days, times of day,
// durations and identifiers are not the same twice: one stands for another of its form.
func Differ(want, got string) string {
	text := flat(got)
	lines := strings.Split(strings.TrimSpace(want), "\n")
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

// flat is text with each line's blanks made one.
func flat(text string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// volatile are the forms of what is not the same twice.
var volatile = []string{
	`\d{4}-\d\d-\d\d`,
	`\d\d:\d\d(?::\d\d)?`,
	`(?:\d+(?:\.\d+)? ?(?:ms|µs|ns|h|m|s|d)(?:in)?)+`,
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
	lines = slices.Compact(slices.Clone(lines))
	if len(lines) == 1 && strings.TrimSpace(lines[0]) == "…" {
		return regexp.MustCompile(``)
	}
	var b strings.Builder
	b.WriteString(`^`)
	for i, line := range lines {
		line = strings.Join(strings.Fields(line), " ")
		if line == "…" {
			// It takes the line break that stood before it, or the one after it.
			b.WriteString(map[bool]string{true: `(?:.*\n)*?`, false: `(?:\n.*)*?`}[i == 0])
			continue
		}
		if i > 1 || i == 1 && strings.TrimSpace(lines[0]) != "…" {
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
