package task

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/yamlfile"
	"github.com/gpu-mode/kbnode/test/must"
)

// read converts a document like a value of a task.yml.
func read(text string) (string, error) {
	d := definition{Faults: yamlfile.Faults{File: "x.yml"}}
	var v payload.Value
	if root := d.parse([]byte(text)); root != nil {
		v = d.value(root)
	}
	if err := d.Err(shownMost); err != nil {
		return "", err
	}
	return payload.JSON(v), nil
}

// TestPyYAML checks that what is read has the value that PyYAML recorded. Dates, sets and
// binary data, for which Python has types that JSON lacks, are null there, as are
// documents that PyYAML refuses. What people would read differently may be refused.
// pyyaml.py made the record.
func TestPyYAML(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/pyyaml.jsonl")
	must.Do(t, err)
	defer f.Close() //nolint:errcheck // opened for reading
	lines := bufio.NewScanner(f)
	n, same := 0, 0
	for ; lines.Scan(); n++ {
		var pair [2]*string
		must.Do(t, json.Unmarshal(lines.Bytes(), &pair))
		got, err := read(*pair[0])
		switch {
		case pair[1] == nil && err == nil:
			t.Errorf("%q: got %s where PyYAML has nothing for a payload", *pair[0], got)
		case err == nil:
			same++
			if d := cmp.Diff(*pair[1], got); d != "" {
				t.Errorf("%q: PyYAML (-): %s", *pair[0], d)
			}
		}
	}
	if err := lines.Err(); err != nil || n < 200 || same < 100 {
		t.Errorf("%d documents, %d read, %v", n, same, err)
	}
}

// TestRefuses reads documents that are too large, or that people and PyYAML read differently.
func TestRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"deep":    {strings.Repeat("[", 500000), "x.yml:1: is not YAML"},
		"large":   {strings.Repeat("# \n", 400000), "x.yml:1: is over 1048576 bytes"},
		"digits":  {"a: " + strings.Repeat("1", 5000), "x.yml:1: "},
		"alias":   {"a: &a [*a]", "x.yml:1: anchors and aliases (&name, *name) are not read"},
		"merge":   {"a: {b: 1}\nc: {<<: {d: 1}}", `x.yml:2: key: "<<" means something else in YAML`},
		"tag":     {"a: !!float 3", `x.yml:1: the tag "!!float" is not read`},
		"octal":   {"a: 0644", `x.yml:1: "0644" is not a plain number such as 1024 or 0.5`},
		"base 60": {"a: 1:30", `x.yml:1: "1:30" is not a plain number`},
		"power":   {"a: 1e6", `x.yml:1: "1e6" is not a plain number`},
		"date":    {"a: 2024-01-01 10:00:00", "is not a plain number"},
		"key":     {"1: a", `x.yml:1: key "1" is not a word`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := read(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %.100q, %.300v; want %q", got, err, c.want)
			}
		})
	}
}
