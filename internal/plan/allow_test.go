package plan

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/gpu-mode/kbnode/internal/config"
)

// An empty list allows nothing. The agent would take an empty value for no list, and a
// policy without the key would allow all images.
func TestEmptyListsAllowNothing(t *testing.T) {
	t.Parallel()
	got := allowList(config.Patterns{})
	if re := regexp.MustCompile(got); got == "" || re.MatchString("") || re.MatchString("https://github.com/gpu-mode/x") {
		t.Errorf("an empty list is %q", got)
	}
	if got := allowList(config.Patterns{"^a$", "^b$"}); got != "^a$,^b$" {
		t.Errorf("two patterns are %q", got)
	}
	for _, images := range [][]string{nil, {}, {"^a$"}} {
		text, err := json.Marshal(JobPolicy{Images: images})
		var back JobPolicy
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if err != nil || (back.Images == nil) != (images == nil) || len(back.Images) != len(images) {
			t.Errorf("%#v is read back as %#v, %v", images, back.Images, err)
		}
	}
}
