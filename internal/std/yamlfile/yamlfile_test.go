package yamlfile

import (
	"fmt"
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

// TestExplain parses what people write wrong.
func TestExplain(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"a:\n\tb: 1\n":       "2: a tab in the indentation",
		"a: 1\n  b: 2\n":     "2: a second colon",
		"a: b: c\n":          "0: a second colon",
		"a: \"b\n":           "2: a quote or a bracket is not closed",
		"a: [b\nc: d\n":      "1: a bracket is not closed",
		"a: *b\n":            "0: a value that begins with *",
		"a: @b\n":            "0: a value that begins with @",
		"a: 1\nb\nc: 2\n":    "2: a key has no colon",
		"a: \xff\n":          "0: it is not UTF-8 text",
		"a: \x00\x01\n":      "0: it is not text",
		"a: {b: 1\nc: [2}\n": "1: a bracket is not closed",
	} {
		_, _, err := Parse([]byte(doc))
		if err == nil {
			t.Errorf("%q is accepted", doc)
			continue
		}
		line, says := Explain([]byte(doc), err)
		if got := fmt.Sprintf("%d: %s", line, says); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s (%v), want %s", doc, got, err, want)
		}
	}
}
