package result

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestResultDocument tests that the example of docs/results.md is a result with every field, in the
// order of the types.
func TestResultDocument(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/results.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```json\n")
	example, _, _ = strings.Cut(example, "```")
	r, err := ReadStrict([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if ev := r.Runs.Get("test"); r.System == nil || ev == nil || ev.Compilation == nil || ev.Run == nil || ev.Profile == nil {
		t.Errorf("the example lacks a part: %+v", ev)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := json.Compact(&want, []byte(example)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(text), want.String()); d != "" {
		t.Errorf("docs/results.md (+) differs from the code (-):\n%s", d)
	}
}
