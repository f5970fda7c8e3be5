package pipeline_test

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/pipeline"
)

func TestMentions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"steps: [{command: make}]":          "",
		"steps: [{command: 'echo $TOKEN'}]": "TOKEN",
		"steps: [{command: \"echo ${\\x54OKEN:-x}\"}]":                 "TOKEN",
		`{"steps": [{"command": "echo $\u0054OKEN"}]}`:                 "TOKEN",
		"steps: [{env: {$TOKEN: x}}]":                                  "TOKEN",
		"env: {X: &a [{y: \"$PROXY\"}]}\nsteps: [*a]":                  "PROXY",
		"steps: []\n---\nsteps: ['$TOKEN']":                            "TOKEN",
		"# $TOKEN\nsteps: []":                                          "",
		"steps:\n- command: |\n    a\n    b $TOKEN":                    "TOKEN",
		"steps: [{command: \"echo ${TO\\\n  KEN}\"}]":                  "TOKEN",
		"a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c, $TOK]": "",
	} {
		if got, err := pipeline.Mentions([]byte(text), []string{"TOKEN", "PROXY"}); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	if _, err := pipeline.Mentions([]byte("a: [\x00"), []string{"TOKEN"}); err == nil {
		t.Error("what is no YAML is taken")
	}
}
