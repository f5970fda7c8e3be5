package doctor

import (
	"os"
	"strings"
	"testing"
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
