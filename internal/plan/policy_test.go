package plan

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// An empty list allows nothing. A policy without the key would allow all images.
func TestEmptyListsAllowNothing(t *testing.T) {
	t.Parallel()
	for _, images := range [][]string{nil, {}, {"^a$"}} {
		text, err := json.Marshal(JobPolicy{Images: images})
		var back JobPolicy
		must.Do(t, json.Unmarshal(text, &back))
		if err != nil || (back.Images == nil) != (images == nil) || len(back.Images) != len(images) {
			t.Errorf("%#v is read back as %#v, %v", images, back.Images, err)
		}
	}
}

// TestReservedEnv tests that no job can give a variable of its slot another value.
func TestReservedEnv(t *testing.T) {
	t.Parallel()
	for _, vendor := range []string{"nvidia", "amd", ""} {
		s := Slot{CPUs: "0-3"}
		if vendor != "" {
			s.GPUs = []SlotGPU{{Vendor: vendor, UUID: "GPU-1"}}
		}
		env := slotEnv(s)
		if len(env) < 5 {
			t.Errorf("%q: %q", vendor, env)
		}
		for _, e := range env {
			name, _, _ := strings.Cut(e, "=")
			if !slices.ContainsFunc(ReservedEnv, func(p string) bool {
				prefix, isPrefix := strings.CutSuffix(p, "*")
				return p == name || isPrefix && strings.HasPrefix(name, prefix)
			}) {
				t.Errorf("a job may set %s, although the slot does", name)
			}
		}
	}
}
