package agent

import "testing"

func TestLastWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"silent", nil, ""},
		{"no word of an error", []string{"started", " gone "}, "gone"},
		{"the last error before the end", []string{"error: first", "fatal: second ", "Stopped."}, "fatal: second"},
		{"kbnode's own", []string{"kbnode: read agent token: no such file", "exit"}, "kbnode: read agent token: no such file"},
	} {
		if got := LastWords(tt.lines); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
