package bktest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "one", "EMPTY": "", "LONG": "0123456789", "DOLLAR": "$A"}
	for in, want := range map[string]string{
		"plain":                  "plain",
		"$A-${A}":                "one-one",
		"$A_B$EMPTY.":            ".",
		"${NOT:-word}":           "word",
		"${EMPTY:-word}":         "word",
		"${EMPTY-word}":          "",
		"${NOT-}":                "",
		"${NOT:-${ALSO:-deep}}":  "deep",
		"${NOT:-a $A z}":         "a one z",
		"${A?must be set}":       "one",
		"${LONG:3}":              "3456789",
		"${LONG:3:2}":            "34",
		"${LONG: -3}":            "789",
		"${LONG: -3:1}":          "7",
		"${LONG:99}":             "",
		"$$A $${A} \\$A":         "$A ${A} $A",
		"cost: 5$$, 100%":        "cost: 5$, 100%",
		"cost: 5$, 100%":         "cost: 5$, 100%", // as newer agents do; 3.76 refuses it
		"$DOLLAR":                "$A",             // values are not expanded again
		"}":                      "}",
		"${NOT:-}}":              "}",
		"ghcr.io/x:${TAG:-main}": "ghcr.io/x:main",
	} {
		got, err := (&interpolator{env: env}).expand(in)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"${A":                        "Expected an operator",
		"${":                         "to start with a letter",
		"${1}":                       "to start with a letter",
		"${A!x}":                     "Expected an operator",
		"${NOT?}":                    "$NOT: not set",
		"${NOT?say}":                 "$NOT: say",
		"${LONG:x}":                  "parse offset",
		strings.Repeat("$LONG", 1e6): "longer than",
	} {
		if got, err := (&interpolator{env: env}).expand(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %.40q, %v; want %s", in, got, err, want)
		}
	}
}

func TestParseSteps(t *testing.T) {
	t.Parallel()
	doc, err := parseYAML(`
agents: {queue: top}
steps:
  - name: one
    id: k
    command: [a, b]
    env: {N: 1, F: 1.5, B: true, E: }
    plugins:
      - docker#v5.11.0: {gpus: all}
      - acme/thing: ~
      - https://example.com/x.git#v1: {}
      - ./local
    soft_fail: [{exit_status: [3, 4]}]
    retry: {automatic: {exit_status: -1}, manual: {allowed: false}}
  - plugins: {solo: {}}
    agents: [gpu=*]
`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseSteps(doc)
	if err != nil {
		t.Fatal(err)
	}
	want := []step{{
		label: "one", key: "k", command: "a\nb", rules: []string{"queue=top"},
		env: map[string]string{"N": "1", "F": "1.5", "B": "true", "E": ""},
		plugins: []any{
			map[string]any{"github.com/buildkite-plugins/docker-buildkite-plugin#v5.11.0": map[string]any{"gpus": "all"}},
			map[string]any{"github.com/acme/thing-buildkite-plugin": nil},
			map[string]any{"https://example.com/x.git#v1": map[string]any{}},
			"./local",
		},
		softFail: []string{"3", "4"}, retry: []retryRule{{status: []string{"-1"}, limit: 2}},
	}, {
		plugins: []any{map[string]any{"github.com/buildkite-plugins/solo-buildkite-plugin": map[string]any{}}},
		rules:   []string{"gpu=*", "queue=default"},
	}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(step{}, retryRule{})); diff != "" {
		t.Error(diff)
	}
}

func TestParseStepsRefuses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`steps: []`:                                                        "no steps",
		`stepz: [{command: x}]`:                                            "no list of steps",
		`just text`:                                                        "no list of steps",
		`steps: [wait]`:                                                    "step 1: wait: only command steps run here",
		`steps: [{command: x}, {wait: ~}]`:                                 "step 2: wait: not a key",
		`steps: [{command: x, matrix: [a]}]`:                               "step 1: matrix: not a key",
		`steps: [{label: x}]`:                                              "no command and no plugins",
		`steps: [{command: x, timeout_in_minutes: x}]`:                     `timeout_in_minutes: "x" is not a whole number`,
		`steps: [{command: {a: b}}]`:                                       "command:",
		`steps: [{command: x, env: {"A=B": c}}]`:                           `"A=B" cannot be an environment variable`,
		`steps: [{command: x, env: [A]}]`:                                  "want a map",
		`steps: [{command: x, plugins: [[a]]}]`:                            "want a name or a map",
		`steps: [{command: x, plugins: [{a: {1: b}}]}]`:                    "plugins:",
		`steps: [{command: x, soft_fail: maybe}]`:                          "soft_fail: maybe",
		`steps: [{command: x, retry: {automatic: [1]}}]`:                   "want exit_status and limit",
		`steps: [{command: x, retry: {automatic: {signal_reason: lost}}}]`: `automatic: signal_reason: "lost"; want one of *, none,`,
	} {
		doc, err := parseYAML(in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseSteps(doc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", in, err, want)
		}
	}
	for in, want := range map[string]string{
		"steps: [":               "parse pipeline",
		"steps: []\n---\nb: c\n": "more than one document",
	} {
		if _, err := parseYAML(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", in, err, want)
		}
	}
}
