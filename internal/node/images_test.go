package node

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestImageTag plans a node after its image was updated, and when nothing can be read of that.
func TestImageTag(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	before, _ := installed(t)
	id := "sha256:" + strings.Repeat("12", 32)
	for _, tt := range []struct{ updates, images, tag, note string }{
		{"@daily", `{"schema": 1, "name": "ghcr.io/gpu-mode/other:1", "current": {"id": "` + id + `"}}`, "image=121212121212", ""},
		{"off", `{"schema": 1, "name": "ghcr.io/gpu-mode/other:1", "current": {"id": "` + id + `"}}`, "", ""},
		{"@daily", `{"schema": 1, "name": "ghcr.io/gpu-mode/other:2", "current": {"id": "` + id + `"}}`, "", ""},
		{"@daily", `{"schema": 7}`, "", "written by another version of kbnode"},
		{"off", `{"schema": 7}`, "", ""},
		{"@daily", "", "", "unexpected end of JSON input"},
	} {
		must.Write(t, before.Root, plan.ImagesPath, tt.images)
		n := &Node{Root: before.Root}
		must.Do(t, n.Load(func(string) string { return "" }, config.Config{Image: config.Image{AutoUpdate: tt.updates}}))
		must.Do(t, n.Read(t.Context()))
		for range 2 { // the daemon plans again
			must.Do(t, n.MakePlan())
		}
		tags, warnings := strings.Join(n.Plan.Slots[1].Tags, " "), strings.Join(n.Plan.Warnings, "\n")
		if strings.Contains(tags, "image=") != (tt.tag != "") || !strings.Contains(tags, tt.tag) {
			t.Errorf("%+v: tags %s", tt, tags)
		}
		if strings.Count(warnings, "images.json") > 1 || strings.Contains(warnings, "images.json") != (tt.note != "") || !strings.Contains(warnings, tt.note) {
			t.Errorf("%+v: warned %s", tt, warnings)
		}
	}
}
