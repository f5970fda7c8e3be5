package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/check"
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
		for line := range strings.Lines(text) {
			if len(line) > 120 && !strings.Contains(line, "https://") {
				t.Errorf("%s: a line is too long: %s", c.ID, line)
			}
		}
		if group, err := Explain(c.Group); err != nil || !strings.Contains(group, c.ID+"\n\n"+text) {
			t.Errorf("the chapter on %s is not in that on %s (%v)", c.ID, c.Group, err)
		}
	}
	var unknown *UnknownError
	if _, err := Explain("nonsense"); !errors.As(err, &unknown) {
		t.Errorf("nonsense: %v", err)
	}
}

func TestNothingLeft(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{
		{Checks: All(), Only: []string{"gpu"}, Skip: []string{"gpu"}},
		{Checks: All(), Only: []string{"config"}, Skip: []string{"node"}},
		{Checks: All(), Skip: Groups},
	} {
		if ids, err := o.Choose(); !errors.Is(err, check.ErrNothingLeft) {
			t.Errorf("%v without %v leaves %v, %v", o.Only, o.Skip, ids, err)
		}
	}
}
