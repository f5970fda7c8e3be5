package doctor

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/docs"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestExplainEach tests that every check says what it means and what to do.
func TestExplainEach(t *testing.T) {
	t.Parallel()
	for _, c := range All() {
		text, err := Explain(c.ID)
		about, doc, _ := strings.Cut(text, "\n\n")
		if err != nil || about != c.About || len(doc) < 20 || strings.Contains(doc, "\n#") {
			t.Errorf("%s: %v: %q", c.ID, err, text)
		}
		if page := regexp.MustCompile(`\([a-z0-9./-]+\.md`).FindString(text); page != "" {
			t.Errorf("%s: %s has no address", c.ID, page)
		}
		for line := range strings.Lines(text) {
			if len(line) > 120 && !strings.Contains(line, "https://") {
				t.Errorf("%s: a line is too long: %s", c.ID, line)
			}
		}
		if group, err := Explain(c.Group); err != nil || !strings.Contains(group, c.ID+"\n\n"+text) {
			t.Errorf("the chapter on %s is not in that on %s (%v)", c.ID, c.Group, err)
		}
	}
	if text, err := Explain("gpu-health"); err != nil || strings.Contains(text, "(#") || !strings.Contains(text, "and health prints its verdicts") {
		t.Errorf("%q, %v", text, err)
	}
	_, err := Explain("gpu.lost")
	must.Err(t, err, `"gpu.lost" is a verdict of the daemon, and no check; sudo kbnode status shows`)
	var unknown *UnknownError
	if _, err := Explain("nonsense"); !errors.As(err, &unknown) {
		t.Errorf("nonsense: %v", err)
	}
}

// TestChecks tests the checks themselves: what they need exists, has no cycles, and runs on
// a bare machine if they do.
func TestChecks(t *testing.T) {
	t.Parallel()
	all, byID := All(), map[string]Check{}
	for _, c := range all {
		if _, twice := byID[c.ID]; twice {
			t.Errorf("%s stands there twice", c.ID)
		}
		byID[c.ID] = c
		if !slices.Contains(Groups, c.Group) || c.About == "" || strings.HasSuffix(c.About, ".") || c.Run == nil || c.Worst < Warn || c.Limit > DefaultLimit {
			t.Errorf("%s is not whole: %+v", c.ID, c)
		}
		if slices.Contains(Groups, c.ID) && c.ID != c.Group {
			t.Errorf("%s is the name of a group", c.ID)
		}
	}
	if group := func(a, b Check) int { return slices.Index(Groups, a.Group) - slices.Index(Groups, b.Group) }; !slices.IsSortedFunc(all, group) {
		t.Errorf("the checks do not stand in the order of %v", Groups)
	}
	for _, c := range all {
		for _, need := range c.Needs {
			if _, there := byID[need]; !there {
				t.Errorf("%s needs %s, which there is not", c.ID, need)
			}
		}
		for _, id := range withNeeds(all, []string{c.ID})[1:] {
			if id == c.ID || slices.Contains(withNeeds(all, []string{id})[1:], c.ID) {
				t.Errorf("%s and %s need each other", c.ID, id)
			}
			if c.Bare && !byID[id].Bare {
				t.Errorf("%s is asked of a bare machine, and %s is not", c.ID, id)
			}
		}
	}
}

// summaries returns what a report says about each check, as text.
func summaries(r *Report) map[string]string {
	all := map[string]string{}
	for _, c := range r.Checks {
		text := c.Summary()
		if strings.HasPrefix(text, "no answer after ") {
			text = "no answer after 0s" // a loaded machine takes longer
		}
		all[c.ID] = c.Status.String() + ": " + text
	}
	return all
}

// TestPage tests that docs/doctor.md has a chapter on each check, in the same order.
func TestPage(t *testing.T) {
	t.Parallel()
	var want []string
	group := ""
	for _, c := range All() {
		if c.Group != group {
			group = c.Group
			want = append(want, "## "+group)
		}
		want = append(want, "### "+c.ID)
	}
	_, page, _ := strings.Cut(docs.Doctor, "\n## Node\n")
	got := append([]string{"## node"}, regexp.MustCompile(`(?m)^##.*$`).FindAllString(page, -1)...)
	for i := range got {
		if strings.HasPrefix(got[i], "## ") {
			got[i] = strings.ToLower(got[i])
		}
	}
	must.Equal(t, want, got)
}
