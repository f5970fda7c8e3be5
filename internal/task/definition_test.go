package task

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// kernelbot reads a leaderboard's task into these fields, and refuses others.
func TestDefinition(t *testing.T) {
	t.Parallel()
	keys := []string{"benchmark_timeout", "benchmarks", "config", "files", "lang", "libraries", "multi_gpu", "ranked_timeout", "ranking_by", "seed", "test_timeout", "tests"}
	for dir, config := range map[string][]string{
		"prefix_python": {"main"}, "identity_cuda": {"compile_flags", "defines", "include_dirs", "sources"},
	} {
		p, err := Read("../../examples/" + dir)
		must.Do(t, err)
		var all map[string]json.RawMessage
		var some struct {
			Files  map[string]string
			Config map[string]any
			Tests  []map[string]any
		}
		text := []byte(p.Definition())
		must.Do(t, json.Unmarshal(text, &all))
		must.Do(t, json.Unmarshal(text, &some))
		must.Equal(t, keys, slices.Sorted(maps.Keys(all)))
		must.Equal(t, config, slices.Sorted(maps.Keys(some.Config)))
		if len(some.Files) != 3 || some.Files[p.Submission] != Submission || len(some.Tests) != p.Tests {
			t.Errorf("%s: %s", dir, text)
		}
	}
}
