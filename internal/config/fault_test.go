package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/yamlfile"
)

func TestEveryFaultIsTold(t *testing.T) {
	t.Parallel()
	text := strings.Join([]string{
		"queues: b",                       // 1: unknown
		"queue: b200,h100",                // 2: bad value
		"reserve:",                        // 3
		"  mem: 1G",                       // 4: unknown
		"  cpus: 8.5",                     // 5: would be truncated
		`"a \e[2J": 1`,                    // 6: unknown, and clears a screen
		"job: {max_minutes: soon}",        // 7: wrong type
		"image: [a]",                      // 8: not a group
		"queue: x",                        // 9: twice
		"gpus: 0",                         // 10: bad value of a custom type
		"memory_per_slot: 8GB",            // 11: the same
		"hygiene: {clocks: {a: b, a: c}}", // 12: a group instead of a text
		`cpus_per_slot: !!int "a\e[2J"`,   // 13: the library quotes it as it is
		"agent: {tags: [[a]], endpoint: 'ftp://me:secret@h', binary: x}", // 14: three
	}, "\n")
	_, err := Read("f.yaml", []byte(text))
	faults, ok := err.(*yamlfile.Faults) //nolint:errorlint // exactly this type, not wrapped
	if !ok {
		t.Fatalf("error is %T: %v", err, err)
	}
	got := map[int]int{}
	for _, f := range faults.List {
		got[f.Line]++
	}
	want := map[int]int{1: 1, 2: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1, 13: 1, 14: 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults by line: %s\n%v", diff, err)
	}
	if strings.ContainsAny(err.Error(), "\x1b") || strings.Contains(err.Error(), "secret") {
		t.Errorf("the message clears a screen, or has a password in it: %q", err)
	}
}

// TestHostileFiles checks that files made to take long do not.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a key very often":          strings.Repeat("a: 1\n", maxBytes/5),
		"a known key very often":    strings.Repeat("queue: a\n", maxBytes/9),
		"a group in a text":         "queue: {" + strings.Repeat("a: 1, ", maxBytes/6-10) + "}",
		"groups in a list":          "agent: {tags: [{" + strings.Repeat("a: 1, ", maxBytes/6-10) + "}]}",
		"aliases of aliases":        "a: &a [x]\nb: &b [" + strings.Repeat("*a, ", 1000) + "]\nqueue: [" + strings.Repeat("*b, ", 1000) + "]",
		"too large":                 strings.Repeat("#", maxBytes+1),
		"a group that holds itself": "agent: &a {tags: *a, binary: *a}",
		"very deep":                 "queue: " + strings.Repeat("[", 9000),
	} {
		_, err := Read("f", []byte(text))
		if err == nil {
			t.Errorf("%s: is taken", name)
		} else if n := strings.Count(err.Error(), "\n"); n > shownMost {
			t.Errorf("%s: %d lines are said of it", name, n)
		}
	}
}
