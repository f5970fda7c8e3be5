package payload

import (
	"math"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestJSON(t *testing.T) {
	t.Parallel()
	inner := &Object{}
	inner.Set("b", nil)
	inner.Set("a", true)
	for want, v := range map[string]Value{
		`null`: nil, `false`: false, `-12345678901234567890123`: Int("-12345678901234567890123"), `{}`: (*Object)(nil), `[]`: []Value(nil),
		`0.1`: Float(0.1), `1.0`: Float(1), `-0.0`: Float(math.Copysign(0, -1)), `1e+16`: Float(1e16), `1e-05`: Float(1e-5),
		`NaN`: Float(math.NaN()), `Infinity`: Float(math.Inf(1)), `-Infinity`: Float(math.Inf(-1)),
		`"é😀\"\\\n\u0000\u001b` + "\x7f\u2028" + `"`: "é😀\"\\\n\x00\x1b\x7f\u2028", `"a\ud800b\udfff"`: "a\xed\xa0\x80b\xed\xbf\xbf", "\"a\ufffdb\"": "a\xffb",
		`[1,{"b":null,"a":true},[]]`: []Value{Int("1"), inner, []Value{}},
	} {
		must.Equal(t, want, JSON(v))
	}
}

func TestIndent(t *testing.T) {
	t.Parallel()
	got := Indent(" {\"a\\\"{\" : [ ] ,\"b\":{ },\"c\":[1E3,{\"d\":-0.0}\n,\"}]\\\\\"], \"a\\\"{\":NaN} ")
	want := `{
  "a\"{": [],
  "b": {},
  "c": [
    1E3,
    {
      "d": -0.0
    },
    "}]\\"
  ],
  "a\"{": NaN
}`
	must.Equal(t, want, got)
	const deep = 1000
	if got := Indent(strings.Repeat("[", deep) + "1" + strings.Repeat("]", deep)); len(got) > 2*deep*(2*indentDepth+2) {
		t.Errorf("%d nested lists became %d bytes", deep, len(got))
	}
}

func TestEscapeInvisible(t *testing.T) {
	t.Parallel()
	got := EscapeInvisible("{\"a\u009b31m\": \"é\u202e\u007f\U000e0001 \\u0041 😀\"}\n")
	if want := `{"a\u009b31m": "é\u202e\u007f\udb40\udc01 \u0041 😀"}` + "\n"; got != want {
		t.Errorf("got %q", got)
	}
}
