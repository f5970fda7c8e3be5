package pipeline

import "testing"

func TestStepMinutes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, "steps: [": 0, "a": 0, "steps: {}": 0, "steps:\n- wait\n- &a [*a]": 0,
		"steps: [{command: exec kbnode runner}]":                                                                                           0,
		"steps: [{command: exec kbnode runner, timeout_in_minutes: 15}]":                                                                   15,
		"steps: [{command: exec kbnode runner, timeout_in_minutes: '15'}]":                                                                 15,
		"[{command: exec kbnode runner, timeout_in_minutes: 15}]":                                                                          15,
		"steps: [{command: exec kbnode runner, timeout_in_minutes: ${T:-15}}]":                                                             0,
		"steps: [{command: exec kbnode runner, timeout_in_minutes: -3}]":                                                                   0,
		"steps: [{command: make, timeout_in_minutes: 5}]":                                                                                  0,
		"steps: [{commands: [cd x, kbnode runner], timeout_in_minutes: 20}, wait, {command: make, timeout_in_minutes: 1}]":                 20,
		"steps: [{group: g, steps: [{command: kbnode runner, timeout_in_minutes: 30}, {command: kbnode runner, timeout_in_minutes: 25}]}]": 25,
	} {
		if got := StepMinutes(text); got != want {
			t.Errorf("%s: got %d, want %d", text, got, want)
		}
	}
	for _, kind := range Kinds {
		p, err := Build(kind, Options{Queue: "q"})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]int{Eval: 90}[kind]; StepMinutes(string(p.YAML())) != want {
			t.Errorf("%s: got %d", kind, StepMinutes(string(p.YAML())))
		}
	}
}
