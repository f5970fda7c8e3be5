package doctor

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpu-mode/kbnode/docs"
)

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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
