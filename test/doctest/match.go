package doctest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// volatile has the forms of what is not the same twice: days, times of day, durations, amounts of memory, of
// which each kernel keeps its own, and identifiers.
var volatile = regexp.MustCompile(`\b(?:(\d{4}-\d\d-\d\d)|(\d\d:\d\d(?::\d\d)?)|((?:\d+(?:\.\d+)? ?(?:ms|µs|ns|h|m|s|d)(?:in)?)+)|` +
	`(\d+(?:\.\d+)? ?[MG]iB)|([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})|([0-9a-f]{12,64}))\b`)

// Differ tells from which of its lines on a page's output is not what was printed; it is
// empty where it is.
//
// A line … stands for any lines, also for none, and … in a line for any text. Blanks
// compare as one, since columns are as wide as their content, and lines without
// anything do not count. One of volatile's stands for another of its form.
func Differ(want, got string) string {
	lines, text := flat(want), ""
	for _, line := range flat(got) {
		text += mask(line) + "\n"
	}
	if pattern(lines, "$").MatchString(text) {
		return ""
	}
	for n, line := range lines {
		if !pattern(lines[:n+1], "").MatchString(text) {
			return fmt.Sprintf("line %d, %q, does not come there", n+1, line)
		}
	}
	return "there is more than the page has"
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

// mask replaces each of volatile's by the number of its form.
func mask(line string) string {
	return volatile.ReplaceAllStringFunc(line, func(match string) string {
		forms := volatile.FindStringSubmatch(match)[1:]
		return "\x00" + strconv.Itoa(slices.Index(forms, match))
	})
}

// pattern is what a masked output must be that the page has as these lines.
func pattern(lines []string, end string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString("^")
	for _, line := range lines {
		if line == "…" {
			b.WriteString(`(?:.*\n)*?`)
		} else {
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(mask(line)), "…", ".*") + `\n`)
		}
	}
	return regexp.MustCompile(b.String() + end)
}
