package noise

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestPage checks that the example in docs/results.md is judged as it says. internal/cli compares its fields.
func TestPage(t *testing.T) {
	t.Parallel()
	page := must.Read(t, "../../docs/results.md")
	m := regexp.MustCompile("(?s)\n## node.json\n.*?```json\n(.*?)```").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("no example")
	}
	var rec Record
	must.Do(t, json.Unmarshal([]byte(m[1]), &rec))
	again := rec
	again.Schema = Schema
	again.Noisy, again.Why = Judge(rec)
	again.Notes = notes(rec)
	must.Equal(t, again, rec)
}
