package doctor

import (
	"regexp"
	"strings"
	"sync"

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
)

// String returns a chapter with links as a terminal shows them.
func (c chapter) String() string {
	text := linkPage.ReplaceAllString(c.text, "]("+Pages+"$1")
	return c.about + "\n\n" + strings.TrimSpace(link.ReplaceAllString(text, "$1 ($2)")) + "\n"
}
