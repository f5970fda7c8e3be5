package node

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestStateOfANewerVersion reads the state that a newer kbnode left with fields that this one does not know, as
// after a roll back.
func TestStateOfANewerVersion(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		read func(t *testing.T, text string) (any, error)
	}{
		"drains": {
			`{"written_by":"kbnode","schema":1,"drains":[{"slot":3,"by":"operator","reason":"new fan","since":"2026-11-30T00:00:00Z"}]}`,
			func(_ *testing.T, text string) (any, error) { return plan.ParseDrains([]byte(text)) },
		},
		"bindings": {
			`{"written_by":"kbnode","schema":1,"slots":[{"slot":0,"gpu":0,"uuid":"GPU-1","pci":"0000:1b:00.0","vendor":"nvidia","numa_node":0,"memory_node":-1,"last":{"cpus":"0-3","memory_nodes":"0","memory_bytes":1}}]}`,
			func(_ *testing.T, text string) (any, error) { return plan.ParseBindings([]byte(text)) },
		},
		"agents": {
			`{"written_by":"kbnode","schema":1,"version":"3.138.3"}`,
			func(_ *testing.T, text string) (any, error) { return plan.ParseAgent([]byte(text)) },
		},
		"inventory": {
			`{"written_by":"kbnode","inventory":{"schema":1,"hostname":"n1","cpu":{"list":[{"id":1}]},"gpus":[{"index":0}]}}`,
			func(_ *testing.T, text string) (any, error) { return plan.ParseLast([]byte(text)) },
		},
		"health": {
			`{"schema":1,"marks":[{"check":"gpu.throttle","gpu":"GPU-1","slot":1}]}`,
			func(_ *testing.T, text string) (any, error) { return health.ParseState([]byte(text)) },
		},
		"images": {
			`{"written_by":"kbnode","schema":1,"name":"x:1","current":{"id":"sha256:1"},"previous":[],"drop":[],"refused":[{"reason":"bad"}]}`,
			func(t *testing.T, text string) (any, error) {
				t.Helper()
				dir := t.TempDir()
				must.Write(t, dir, "images.json", text)
				return image.Read(dir)
			},
		},
		"policy": {
			`{"slot":2,"user":"kbnode-gpu2","cpus":"0-3"}`,
			func(t *testing.T, text string) (any, error) {
				t.Helper()
				root := t.TempDir()
				must.Write(t, filepath.Join(root, filepath.Dir(plan.SlotPolicyPath(2))), "gpu2.json", text)
				return slot.ReadPolicy(root, 2)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, err := tt.read(t, tt.text)
			must.Do(t, err)
			var v any
			must.Do(t, json.Unmarshal([]byte(tt.text), &v))
			later, err := json.Marshal(extended(v))
			must.Do(t, err)
			got, err := tt.read(t, string(later))
			must.Do(t, err)
			if diff := cmp.Diff(want, got, cmp.Comparer(time.Time.Equal), cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// extended adds a field to every object.
func extended(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = extended(v[name])
		}
		v["of_a_newer_version"] = map[string]any{"more": true}
	case []any:
		for i := range v {
			v[i] = extended(v[i])
		}
	}
	return v
}
