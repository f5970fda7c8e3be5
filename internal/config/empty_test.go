package config

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestEmptyLists checks that an empty list allows nothing, and that a missing
// key has its default.
func TestEmptyLists(t *testing.T) {
	t.Parallel()
	c, err := Parse("f", []byte("agent: {allowed_repositories: []}\njob: {allowed_images: []}\n"))
	must.Do(t, err)
	for _, c := range []Config{c, c.WithDefaults(), Merge(c, Config{Queue: "b200"}), Merge(Config{Job: Job{AllowedImages: Patterns{"^a$"}}}, c)} {
		for name, p := range map[string]Patterns{
			"repositories": c.Agent.AllowedRepositories, "images": c.Job.AllowedImages,
		} {
			if p == nil || len(p) != 0 {
				t.Errorf("%s: %#v; want an empty list", name, p)
			}
		}
	}
	text, err := Render(c, "marker")
	must.Do(t, err)
	again, err := Parse("f", []byte(text))
	if err != nil || again.Job.AllowedImages == nil || again.Agent.AllowedRepositories == nil {
		t.Errorf("rendered and read again: %v\n%s", err, text)
	}
	if none, err := Parse("f", []byte("queue: b200\n")); err != nil || none.Job.AllowedImages != nil || len(none.WithDefaults().Agent.AllowedRepositories) == 0 {
		t.Errorf("without lists: %+v, %v", none, err)
	}
}

// TestEmptyFile checks that a file that a full disk emptied does not mean the defaults.
func TestEmptyFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", " \n\n"} {
		if _, err := Parse("f", []byte(text)); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range [][]byte{nil, []byte("# Written by kbnode\n"), []byte("{}\n")} {
		if _, err := Parse("f", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
