package payload

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	doc := `{"b": 1, "a": {"z": [1, 2.5, null]}, "b": "last"}`
	text := Encode([]byte(doc))
	wrapped := " " + text[:5] + "\r\n\t" + text[5:9] + "-_!*" + text[9:]
	packed, err := base64.StdEncoding.DecodeString(text)
	must.Do(t, err)
	trailed := base64.StdEncoding.EncodeToString(append(packed, "trailing"...))
	for name, in := range map[string]string{"plain": text, "foreign characters": wrapped, "bytes after the stream": trailed} {
		if o, err := Decode(in); err != nil || Repr(o) != `{'b': 'last', 'a': {'z': [1, 2.5, None]}}` {
			t.Errorf("%s: %s, %v", name, Repr(o), err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	must.Do(t, z.Close())
	whole := Encode([]byte(`{"key": "value and some more"}`))
	for _, c := range []struct {
		name, in string
		want     string // in the message
	}{
		{"no base64 at all", "!", "not a zlib stream"},
		{"one character", "A", "not base64"},
		{"cut text", whole[:len(whole)-5], "padding is missing"},
		{"text cut elsewhere", whole[:len(whole)-6], "padding is missing"},
		{"cut stream", whole[:len(whole)-8], "send it whole"},
		{"gzip", base64.StdEncoding.EncodeToString(zipped.Bytes()), "compress it with zlib"},
		{"JSON text", " {}", "encode it with kbnode payload encode"},
		{"JSON text of an editor on Windows", "\ufeff{}", "encode it with kbnode payload encode"},
		{"not UTF-8", Encode([]byte("{\"a\": \"\xff\"}")), "not UTF-8"},
		{"byte order mark", Encode([]byte("\ufeff{}")), "not JSON"},
		{"a list", Encode([]byte("[]")), "is a JSON list; send an object"},
		{"two values", Encode([]byte("{} {}")), "something follows"},
		{"too deep", Encode([]byte(`{"a": ` + strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1) + "}")), "deeper than 1000"},
		{"too many values", Encode([]byte(`{"a": [1` + strings.Repeat(",1", maxValues-2) + "]}")), "more than 1048576 values"},
		{"text over the limit", strings.Repeat("A", maxEncoded+1), "over 33554432 bytes"},
		{"JSON over the limit", Encode(bytes.Repeat([]byte(" "), maxJSON+1)), "more than 16777216 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode(c.in)
			must.Err(t, err, c.want)
		})
	}
	for _, doc := range []string{
		`{"a": ` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + "}",
		`{"a": [1` + strings.Repeat(",1", maxValues-3) + "]}", "{}" + strings.Repeat(" ", maxJSON-2),
	} {
		if _, err := Decode(Encode([]byte(doc))); err != nil {
			t.Errorf("at the limit: %v", err)
		}
	}
}

// TestBomb tests that a compressed bomb is refused at the bound and not unpacked further: what
// is damaged behind it is never reached, and what is damaged before it is found.
func TestBomb(t *testing.T) {
	t.Parallel()
	bomb, err := base64.StdEncoding.DecodeString(Encode(make([]byte, 5*maxJSON)))
	must.Do(t, err)
	for want, at := range map[string]int{"more than 16777216 bytes": len(bomb) / 2, "send it whole": len(bomb) / 10} {
		damaged := slices.Concat(bomb[:at], bytes.Repeat([]byte{0xff}, len(bomb)-at))
		_, err := Decode(base64.StdEncoding.EncodeToString(damaged))
		must.Err(t, err, want)
	}
}

func TestReadJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"{}": "", strings.Repeat(" ", maxJSON): "", strings.Repeat(" ", maxJSON+1): "over 16777216 bytes", "\"\xff\"": "not UTF-8",
		"\ufeff{}": "", "\xff\xfe{\x00": "not UTF-8",
	} {
		got, err := ReadJSON(strings.NewReader(in))
		must.Err(t, err, want)
		if err == nil && got != strings.TrimPrefix(in, "\ufeff") {
			t.Errorf("%.20q: got %.20q", in, got)
		}
	}
}

func TestFromEnv(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("abcdefghij", 25_000)
	for _, c := range []struct {
		name    string
		env     []string
		text    string
		refused string
	}{
		{name: "nothing", env: []string{"HOME=/", "KERNELBOT_PAYLOAD=", "KERNELBOT_PAYLOAD_ID=7"}},
		{name: "current name", env: []string{"SUBMISSION_PAYLOAD=old", "KERNELBOT_PAYLOAD=new"}, text: "new"},
		{name: "old name", env: []string{"SUBMISSION_PAYLOAD=old"}, text: "old"},
		{name: "pieces", env: []string{"KERNELBOT_PAYLOAD_1=b", "KERNELBOT_PAYLOAD_0=a"}, text: "ab"},
		{name: "a gap", env: []string{"KERNELBOT_PAYLOAD_2=b", "KERNELBOT_PAYLOAD_0=a"}, refused: "KERNELBOT_PAYLOAD_1 is not set"},
		{name: "what Environ made", env: Environ(long), text: long},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text, err := FromEnv(c.env)
			must.Err(t, err, c.refused)
			if text != c.text {
				t.Errorf("got %.20q", text)
			}
		})
	}
	for _, kv := range Environ(long) {
		if name, _, _ := strings.Cut(kv, "="); len(kv) >= 131_072 || !IsVar(name) {
			t.Errorf("%s: %d bytes", name, len(kv))
		}
	}
}

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
