package result

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/gpu-mode/kbnode/internal/text"
)

// markdownLimit is far below Buildkite's limit of 1 MiB for an annotation: no one reads
// more on a build's page.
const markdownLimit = 60 << 10

// markdown is an annotation of limited size.
type markdown struct {
	text []byte
	over bool
}

// add appends a block, or nothing if it or an earlier block did not fit.
func (m *markdown) add(block string) {
	if m.over = m.over || len(m.text)+len(block) > markdownLimit; !m.over {
		m.text = append(m.text, block...)
	}
}

// Annotation is a text on a build's page, and what Buildkite needs to show it there.
type Annotation struct {
	Endpoint     string // of the agent's API: https://agent.buildkite.com/v3
	JobID, Token string
	Body, Style  string // as Markdown returns them
}

// Markdown renders a result for the build's page, and returns it with Buildkite's style for it.
func Markdown(r *Result, list []*Summary) (body, style string) {
	sentence, ok := verdictOf(r, list)
	style = "warning" // the submission's fault
	switch {
	case ok:
		style = "success"
	case !r.Success:
		style = "error"
	}
	m := &markdown{}
	m.add("**" + plain(sentence) + "**\n")
	if on := machine(r.System); on != "" {
		m.add("\non " + plain(on) + "\n")
	}
	if len(list) > 0 {
		m.add("\n| evaluation | verdict | | time |\n|---|---|---|---:|\n")
	}
	for _, s := range list {
		m.add(tableRow(plain(s.name), plain(s.verdict), plain(s.numbers()), plain(s.seconds)))
	}
	for _, s := range list {
		m.timings(s)
		for _, c := range s.failed {
			m.add("\n" + code(c.title()) + "\n" + codeBlock(c.message))
		}
		m.more(s.failedMore, "failed")
	}
	if m.over {
		m.text = append(m.text, "\n… and more; see result.json for all\n"...)
	}
	return string(m.text), style
}

func (m *markdown) timings(s *Summary) {
	if len(s.timings) == 0 {
		return
	}
	m.add("\n| " + plain(s.name) + " | mean ± error | best | worst |\n|---|---:|---:|---:|\n")
	for _, c := range s.timings {
		if c.failed {
			m.add(tableRow(code(c.spec), "failed", "", ""))
		} else {
			m.add(tableRow(code(c.spec), plain(c.mean), plain(c.best), plain(c.worst)))
		}
	}
	m.more(s.timingsMore, "benchmarks")
}

func (m *markdown) more(n int, what string) {
	if n > 0 {
		m.add(fmt.Sprintf("\n… and %d more %s\n", n, what))
	}
}

func tableRow(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// plain renders a line so that Markdown, HTML and Buildkite's emoji find no markup in
// it: unchanged if it consists of letters, digits and harmless characters, else as
// code.
func plain(s string) string {
	s = text.Line(s, maxLine)
	for i, r := range s {
		colon := r == ':' && (i+1 == len(s) || s[i+1] == ' ') // not part of an emoji or an address
		if !colon && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(` .,;%/=+-±×…()'"`, r) {
			return code(s)
		}
	}
	if strings.Contains(strings.ToLower(s), "www.") {
		return code(s)
	}
	return s
}

// code renders a line as a code span. A span ends only at its own number of backquotes
// or, in a table, at a bar, so bars are replaced.
func code(s string) string {
	s = strings.ReplaceAll(text.Line(s, maxLine), "|", "¦")
	if s == "" {
		return ""
	}
	fence := "`"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	if len(fence) > 1 {
		s = " " + s + " " // not shown; separates backquotes at the ends from the fence
	}
	return fence + s + fence
}

// codeBlock renders a text unchanged, between fences that are longer than any in it.
func codeBlock(s string) string {
	s, cut := text.Cut(text.Block(s), messageRunes, messageLines)
	if s = strings.TrimRight(s, " \t\n"); s == "" {
		return ""
	}
	if cut {
		s += "\n[…]"
	}
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	return "\n" + fence + "\n" + s + "\n" + fence + "\n"
}
