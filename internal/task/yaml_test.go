package task

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// read converts a document like a value of a task.yml.
func read(text string) (string, error) {
	d := document{name: "x.yml"}
	var v payload.Value
	if root := d.parse([]byte(text)); root != nil {
		v = d.value(root, 0)
	}
	if err := d.err(); err != nil {
		return "", err
	}
	return payload.JSON(v), nil
}

// TestPyYAML compares the reader with PyYAML's recorded results. Dates, sets and
// binary data, for which Python has types that JSON lacks, are null there, as are
// documents that PyYAML refuses. pyyaml.py made the record.
func TestPyYAML(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/pyyaml.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	record := bufio.NewScanner(f)
	n := 0
	for ; record.Scan(); n++ {
		var pair [2]*string
		if err := json.Unmarshal(record.Bytes(), &pair); err != nil {
			t.Fatal(err)
		}
		got, err := read(*pair[0])
		switch {
		case pair[1] == nil && err == nil:
			t.Errorf("%q: got %s where PyYAML has nothing for a payload", *pair[0], got)
		case pair[1] != nil && err != nil:
			t.Errorf("%q: %v, where PyYAML has %s", *pair[0], err, *pair[1])
		case pair[1] != nil:
			if d := cmp.Diff(*pair[1], got); d != "" {
				t.Errorf("%q: PyYAML (-): %s", *pair[0], d)
			}
		}
	}
	if err := record.Err(); err != nil || n < 200 {
		t.Errorf("%d documents, %v", n, err)
	}
}

// TestPyYAMLRecord compares the record with the installed PyYAML, if there is one.
func TestPyYAMLRecord(t *testing.T) {
	t.Parallel()
	if err := exec.Command("python3", "-c", "import yaml; assert yaml.__version__ >= '6'").Run(); err != nil {
		t.Skip("no PyYAML 6 beside python3")
	}
	want, err := os.ReadFile("testdata/pyyaml.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var in bytes.Buffer
	for line := range bytes.Lines(want) {
		var pair []json.RawMessage
		if err := json.Unmarshal(line, &pair); err != nil {
			t.Fatal(err)
		}
		in.Write(append(pair[0], '\n'))
	}
	cmd := exec.CommandContext(t.Context(), "python3", "testdata/pyyaml.py")
	cmd.Stdin = &in
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Error(d)
	}
}

// TestBounds reads documents that are small and would expand.
func TestBounds(t *testing.T) {
	t.Parallel()
	laughs := "a0: &a0 [1, 1]\n"
	merges := "a0: &a0 {k: 1}\n"
	for i := range 40 {
		laughs += fmt.Sprintf("a%d: &a%[1]d [*a%d, *a%[2]d]\n", i+1, i)
		merges += fmt.Sprintf("a%d: &a%[1]d {<<: [*a%d, *a%[2]d]}\n", i+1, i)
	}
	for name, c := range map[string]struct{ text, want string }{
		"laughs":  {laughs, "x.yml:1: with its aliases, the file holds more than 65536 values"},
		"merges":  {merges, "the file holds more than 65536 values"},
		"itself":  {"a: &a [*a]", "x.yml:1: is nested deeper than 100, or contains itself"},
		"merging": {"a: &a {b: 1, <<: *a}", "x.yml:1: is nested deeper than 100, or contains itself"},
		"deep":    {strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "x.yml:1: is nested deeper than 100"},
		"deeper":  {strings.Repeat("[", 500000), "x.yml:1: is not YAML"},
		"texts":   {"a: &a " + strings.Repeat("x", 100000) + "\nb: [" + strings.Repeat("*a, ", 200) + "]", "x.yml:2: with its aliases, the file holds more than"},
		"large":   {strings.Repeat("# \n", 400000), "x.yml:1: is over 1048576 bytes"},
		"digits":  {"a: " + strings.Repeat("1", 5000), "x.yml:1: a whole number has over 4300 digits"},
		"base 16": {"a: 0x" + strings.Repeat("f", 4000), "x.yml:1: a whole number has over 4300 digits"},
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

// FuzzRead looks for documents that are read but do not come back as JSON, that
// are refused without a line, or that crash the program.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"a: &a {b: 1}\nc: {<<: *a, <<: [*a], b: 2}", "- 1:30\n- 0x_\n- 1_0.5\n- .inf\n- -.5e+3\n- 2024-01-01", "? [a]\n: b", "{a: 1, a: 2}", "- !!int '5'\n- !!float 3\n- !!set {a}\n- !x y",
		"a: |\n  b\n  c\nd: >-\n  e\n\n  f\n", "---\na\n...\n---\nb\n", "%YAML 1.1\n---\n- \"\\uD800\\x41\"", "\ufeff- ä", "a: *b", "\ta", "- ~\n- \n- =\n- <<", "{\"size\": 127, \"seed\": 4242}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := read(s)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "x.yml:") {
					t.Errorf("%q: no line in %q", s, line)
				}
				if strings.ContainsAny(line, "\x1b\x00\u009b") {
					t.Errorf("%q: control characters in %q", s, line)
				}
			}
			return
		}
		o, err := payload.ParseObject(`{"v":`+got+`}`, payload.Limits{})
		if err != nil {
			t.Fatalf("%q became %q: %v", s, got, err)
		}
		if v, _ := o.Get("v"); payload.JSON(v) != got {
			t.Errorf("%q became %q, then %q", s, got, payload.JSON(v))
		}
	})
}
