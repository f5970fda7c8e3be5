package runner

import "testing"

func TestCommandRefuses(t *testing.T) {
	for name, args := range map[string][]string{
		"an unknown option": {"--what"}, "an argument": {"task.json"}, "an empty name": {"--payload="},
		"two payloads": {"--payload", "a", "--config", "b"},
	} {
		if code := Command(t.Context(), args); code != exitUsage {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
	if code := Command(t.Context(), []string{"--help"}); code != 0 {
		t.Errorf("help: exit code %d", code)
	}
}
