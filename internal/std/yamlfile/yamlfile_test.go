package yamlfile

import (
	"strings"
	"testing"
)

// TestErr adds faults to the bounds of what is recorded and shown.
func TestErr(t *testing.T) {
	t.Parallel()
	for added, want := range map[int]string{0: "", 1: "f:1: no", 20: "f:20: no", 21: "f: and 1 more", 250: "f: and 230 more"} {
		f := Faults{File: "f"}
		for n := range added {
			f.Add(n+1, "%s", "no")
		}
		last := ""
		if err := f.Err(20); err != nil {
			lines := strings.Split(err.Error(), "\n")
			last = lines[len(lines)-1]
		}
		if last != want {
			t.Errorf("%d faults end with %q, want %q", added, last, want)
		}
	}
}
