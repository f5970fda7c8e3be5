package doctor

import (
	"errors"
	"strings"
	"testing"
)

// TestExplainEach tests that the program alone can explain every check.
func TestExplainEach(t *testing.T) {
	t.Parallel()
	for _, c := range All() {
		if text, err := Explain(c.ID); err != nil || len(text) < 40 || strings.Contains(text, "\n#") {
			t.Errorf("%s: %v: %q", c.ID, err, text)
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
		{Only: []string{"gpu"}, Skip: []string{"gpu"}},
		{Only: []string{"config"}, Skip: []string{"node"}},
		{Skip: Groups},
	} {
		if ids, err := o.choose(All()); !errors.Is(err, ErrNothingLeft) {
			t.Errorf("%+v leaves %v, %v", o, ids, err)
		}
	}
}
