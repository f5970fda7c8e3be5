package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocument tests that docs/doctor.md has a chapter on each check, in its group and in
// the same order, and no others.
func TestDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	group, heading := "", ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch name, isCheck := strings.CutPrefix(line, "### "); {
		case isCheck:
			if heading != "" {
				t.Errorf("the chapter on %s says nothing", heading)
			}
			heading = name
			got = append(got, group+" "+name)
		case strings.HasPrefix(line, "## "):
			group = strings.ToLower(line[3:])
		case line != "":
			heading = ""
		}
	}
	for _, c := range All() {
		want = append(want, c.Group+" "+c.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSymptoms tests that a symptom leads to each check that makes a node unfit.
func TestSymptoms(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range All() {
		if link := "[" + c.ID + "](doctor.md#" + c.ID + ")"; c.Worst == Fail && !strings.Contains(string(text), link) {
			t.Errorf("no symptom in docs/troubleshooting.md leads to %s", c.ID)
		}
	}
}
