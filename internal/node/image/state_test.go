package image

import (
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestStandsFor reads which image a name stands for: none while that changes, or for another name.
func TestStandsFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, id, refused string }{
		{text: `{"schema": 1, "name": "x:1", "current": {"id": "sha256:1"}}`, id: "sha256:1"},
		{text: `{"schema": 1, "name": "x:1", "current": {"id": "sha256:1"}, "candidate": {"id": "sha256:2"}}`, id: "sha256:1"},
		{text: `{"schema": 1, "name": "x:1", "current": {"id": "sha256:1"}, "moving": true}`},
		{text: `{"schema": 1, "name": "x:2", "current": {"id": "sha256:1"}}`},
		{text: `{"schema": 1, "name": "x:1"}`},
		{text: `{"schema": 1, "name": "x:1", "current": {}}`},
		{text: `{"schema": 2, "name": "x:1", "current": {"id": "sha256:1"}}`, refused: "written by another version of kbnode; move the file away"},
		{text: `{`, refused: "read images /var/lib/kbnode/images.json: unexpected end"},
		{text: ``, refused: "read images"},
	} {
		id, err := StandsFor([]byte(tt.text), "x:1")
		must.Err(t, err, tt.refused)
		if id != tt.id {
			t.Errorf("%s: %q", tt.text, id)
		}
	}
}

// TestAnotherName keeps what is known of bad images, however they came, when jobs name their image otherwise.
func TestAnotherName(t *testing.T) {
	t.Parallel()
	s := State{Name: "x:1", Current: &Image{ID: "sha256:1"}}
	s.refuse(&Image{ID: "sha256:2", Digest: "sha256:d"}, "it is bad")
	s.refuse(&Image{ID: "sha256:3", Archive: "abc"}, "it is bad")
	next := s.named("x:2")
	must.Equal(t, true, next.Current == nil && next.refused("sha256:d") != nil && next.Left("abc"))
}
