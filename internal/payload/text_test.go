package payload

import (
	"bufio"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func indented(t *testing.T, doc string) string {
	t.Helper()
	var b strings.Builder
	w := bufio.NewWriter(&b)
	err := Indent(w, doc)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestIndent(t *testing.T) {
	t.Parallel()
	got := indented(t, " {\"a\\\"{\" : [ ] ,\"b\":{ },\"c\":[1E3,{\"d\":-0.0}\n,\"}]\"], \"a\\\"{\":NaN} ")
	want := `{
  "a\"{": [],
  "b": {},
  "c": [
    1E3,
    {
      "d": -0.0
    },
    "}]"
  ],
  "a\"{": NaN
}
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The text of nested lists does not grow with the square of their depth.
	const deep = 1000
	doc := `{"a":` + strings.Repeat("[", deep) + "1" + strings.Repeat("]", deep) + "}"
	if got := indented(t, doc); len(got) > 2*deep*(2*indentDepth+2) {
		t.Errorf("%d bytes became %d", len(doc), len(got))
	}
}

func TestEscapeInvisible(t *testing.T) {
	t.Parallel()
	doc := "{\"a\u009b31m\": \"é\u202e\u007f\U000e0001 \\u0041 😀\"}\n"
	got := EscapeInvisible(doc)
	if want := `{"a\u009b31m": "é\u202e\u007f\udb40\udc01 \u0041 😀"}` + "\n"; got != want {
		t.Errorf("got %q", got)
	}
	var before, after any
	for text, v := range map[string]*any{doc: &before, got: &after} {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("it means something else: %s", d)
	}
}

func TestReadJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"{}": "", "12345678901": "", "123456789012": "over 11 bytes", "\"\xff\"": "not UTF-8",
	} {
		got, err := ReadJSON(strings.NewReader(in), Limits{JSON: 11})
		if want == "" && (err != nil || got != in) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
}
