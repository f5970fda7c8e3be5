package payload

import (
	"math"
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
