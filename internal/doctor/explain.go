package doctor

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/check"
)

// Explain returns what is true if a check passes, what it means otherwise, and what to do. For a
// group it returns that of each of its checks, below the check's name. For unknown words it
// returns an *UnknownError.
func Explain(name string) (string, error) {
	checks := All()
	if i := slices.IndexFunc(checks, func(c Check) bool { return c.ID == name }); i >= 0 {
		return chapter(checks[i]), nil
	}
	var chapters []string
	for _, c := range checks {
		if c.Group == name {
			chapters = append(chapters, c.ID+"\n\n"+chapter(c))
		}
	}
	if chapters == nil {
		return "", check.Unknown(checks, name)
	}
	return strings.Join(chapters, "\n"), nil
}

var (
	link     = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
	linkPage = regexp.MustCompile(`\]\(([a-z]+\.md)`)
)

// chapter returns what Explain says about a check, with links as a terminal shows them.
func chapter(c Check) string {
	doc := linkPage.ReplaceAllString(c.Doc, "]("+Pages+"$1")
	return c.About + "\n\n" + folded(link.ReplaceAllString(doc, "$1 ($2)"))
}

// Reference returns the generated part of docs/doctor.md: a chapter on each check, by group.
func Reference() string {
	var b strings.Builder
	group := ""
	for _, c := range All() {
		if c.Group != group {
			group = c.Group
			title := strings.ToUpper(group[:1]) + group[1:]
			if group == "gpu" {
				title = "GPU"
			}
			b.WriteString("\n## " + title + "\n")
		}
		b.WriteString("\n### " + c.ID + "\n\n*" + c.About + "*\n\n" + folded(c.Doc))
	}
	return b.String()
}

// span matches a word, or words of code, which are not broken.
var span = regexp.MustCompile("(?:[^\\s`]|`[^`]*`)+")

// folded breaks paragraphs into lines of at most 100 characters.
func folded(s string) string {
	const most = 100
	var b strings.Builder
	for line := range strings.SplitSeq(s, "\n") {
		width := 0
		for i, word := range span.FindAllString(line, -1) {
			n := utf8.RuneCountInString(word)
			switch {
			case i == 0:
			case width+1+n > most:
				b.WriteByte('\n')
				width = 0
			default:
				b.WriteByte(' ')
				width++
			}
			b.WriteString(word)
			width += n
		}
		b.WriteByte('\n')
	}
	return b.String()
}
