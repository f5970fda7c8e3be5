package result

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestResultDocument tests that the example of docs/results.md is a result with every field, in the
// order of the types.
func TestResultDocument(t *testing.T) {
	t.Parallel()
	page := must.Read(t, "../../docs/results.md")
	_, example, _ := strings.Cut(page, "```json\n")
	example, _, _ = strings.Cut(example, "```")
	r, err := ReadStrict([]byte(example))
	must.Do(t, err)
	if ev := r.Runs.Get("test"); r.System == nil || ev == nil || ev.Compilation == nil || ev.Run == nil || ev.Profile == nil {
		t.Errorf("the example lacks a part: %+v", ev)
	}
	text, err := json.Marshal(r)
	must.Do(t, err)
	var want bytes.Buffer
	must.Do(t, json.Compact(&want, []byte(example)))
	if d := cmp.Diff(string(text), want.String()); d != "" {
		t.Errorf("docs/results.md (+) differs from the code (-):\n%s", d)
	}
}
