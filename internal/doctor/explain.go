package doctor

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/docs"
	"github.com/gpu-mode/kbnode/internal/check"
)

// All returns all checks in the order in which they are shown.
func All() (all []Check) {
	for _, g := range checks {
		for _, c := range g.list {
			c.Group, c.About = g.group, chapters()[c.ID].about
			all = append(all, c)
		}
	}
	return all
}

// chapter is what docs/doctor.md says about a check: in one line what is true if it passes, and below that
// what it means otherwise, and what to do.
type chapter struct{ about, text string }

var chapters = sync.OnceValue(func() map[string]chapter {
	all := map[string]chapter{}
	for part := range strings.SplitSeq(docs.Doctor, "\n### ") {
		id, text, _ := strings.Cut(part, "\n\n*")
		about, text, _ := strings.Cut(text, "*\n\n")
		text, _, _ = strings.Cut(text, "\n## ")
		all[id] = chapter{about, text}
	}
	return all
})

// Explain returns what is true if a check passes, what it means otherwise, and what to do. For a
// group it returns that of each of its checks, below the check's name. For unknown words it
// returns an *UnknownError.
func Explain(name string) (string, error) {
	var all []string
	for _, c := range All() {
		switch name {
		case c.ID:
			return chapters()[name].String(), nil
		case c.Group:
			all = append(all, c.ID+"\n\n"+chapters()[c.ID].String())
		}
	}
	if all == nil {
		return "", check.Unknown(All(), name)
	}
	return strings.Join(all, "\n"), nil
}

var (
	link     = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
	linkPage = regexp.MustCompile(`\]\(([a-z]+\.md)`)
	// span matches a word, or words of code, which are not broken.
	span = regexp.MustCompile("(?:[^\\s`]|`[^`]*`)+")
)

// String returns a chapter with links as a terminal shows them, in lines of at most 100 characters.
func (c chapter) String() string {
	const most = 100
	text := link.ReplaceAllString(linkPage.ReplaceAllString(c.text, "]("+Pages+"$1"), "$1 ($2)")
	var b strings.Builder
	b.WriteString(c.about + "\n")
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		width := most
		b.WriteByte('\n')
		for i, word := range span.FindAllString(paragraph, -1) {
			n := utf8.RuneCountInString(word)
			switch {
			case i == 0:
				width = 0
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
