package payload

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzInflate compares Inflate with the standard library, where that accepts a payload.
func FuzzInflate(f *testing.F) {
	whole := Encode([]byte(`{"a": 1, "b": "é"}`))
	for _, s := range []string{
		"", whole, whole[:len(whole)-2], " " + whole[:7] + "\r\n\t-_" + whole[7:], whole + "more", "H4sIAAAAAAAA", "eJyrVkpUsjKsBQAIJQJF====x", "eJw=", "A", "AA=A", "ä",
		Encode(nil), Encode([]byte("\xff")), Encode(make([]byte, 1<<16)), `{"mode": "test"}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Inflate(text)
		if err == nil && (len(got) > maxJSON || !utf8.ValidString(got)) {
			t.Errorf("%d bytes were accepted, valid %v", len(got), utf8.ValidString(got))
		}
		packed, wantErr := base64.StdEncoding.DecodeString(text)
		if z, zErr := zlib.NewReader(bytes.NewReader(packed)); wantErr == nil && zErr == nil {
			want, readErr := io.ReadAll(io.LimitReader(z, maxJSON+1))
			if readErr == nil && len(want) <= maxJSON && utf8.Valid(want) && (err != nil || got != string(want)) {
				t.Errorf("got %.40q, %v; want %.40q", got, err, want)
			}
		}
		// Characters outside the alphabet do not matter.
		if spaced, again := Inflate("\n" + strings.ReplaceAll(text, "e", " e-\n")); (again == nil) != (err == nil) || spaced != got {
			t.Errorf("with blanks: got %.40q, %v; want %.40q, %v", spaced, again, got, err)
		}
		if back, err := Inflate(Encode([]byte(text))); utf8.ValidString(text) && (err != nil || back != text) {
			t.Errorf("%.40q came back as %.40q, %v", text, back, err)
		}
	})
}

// someDocs are texts that are JSON, or almost.
var someDocs = []string{
	`{"a": [1, -0.5e7, "\ud83d\ude00"], "a": null}`, `{"\u0000": NaN, "b": -Infinity, "c": 1e400, "d": -0.0, "e": -0, "f": 1E3}`, `{"a":{"b":{}}}`, ` { } `, `[]`,
	`{"a": "\ud800\ud83d\ude00", "b": "\udc00\ud800\n\/\\\"", "\ude00": {"z": [], "y": {}}}`, `{"lang": "py", "tests": [{"size": 1}, {"size": 12345678901234567890}]}`,
	strings.Repeat(`{"a":[`, 30) + strings.Repeat(`]}`, 30), "{\"\u2028\u009b\": \"\u007f\"}", `{"a":01}`, `{"a":1.}`, "{\"a\":\"\t\"}", `{"a":1}}`, `{"a":1,}`, `{"a" 1}`, `{"a":"\x"}`,
	``, `{`, `{"a"}`, `{"a":}`, `{a:1}`, `{'a':1}`, `{"a":.5}`, `{"a":+1}`, `{"a":-}`, `{"a":1e}`, `{"a":[1,]}`, `{"a":[1 2]}`, `{"a":"`, `{"a":"\u12"}`, `{"a":"\u+123"}`,
	"{\"a\":\"\n\"}", `{"a":nul}`, `{"a":-infinity}`, `{"a":1}x`, "{\"a\":\u00a01}", `{"b": 1, "a": 2, "b": 3}`,
}

// FuzzParseObject compares the parser with encoding/json: it accepts the same texts, except for
// Python's additions. What it reads is written the same again. TestAgreesWithPython compares values.
func FuzzParseObject(f *testing.F) {
	for _, doc := range someDocs {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		if !utf8.ValidString(doc) {
			return // Inflate and ReadJSON refuse it
		}
		o, err := ParseObject(doc)
		dec := json.NewDecoder(strings.NewReader(doc))
		dec.UseNumber()
		var std any
		stdErr := dec.Decode(&std)
		if _, more := dec.Token(); stdErr == nil && !errors.Is(more, io.EOF) {
			stdErr = errors.New("something follows")
		}
		_, isObject := std.(map[string]any)
		if err != nil {
			if stdErr == nil && isObject && !strings.Contains(err.Error(), "nested deeper than") {
				t.Errorf("refused what encoding/json accepts: %v", err)
			}
			return
		}
		if stdErr != nil && !strings.Contains(doc, "NaN") && !strings.Contains(doc, "Infinity") {
			t.Errorf("accepted what encoding/json refuses: %v", stdErr)
		}
		if r := Repr(o); strings.ContainsAny(r, "\n\r\x00\x1b\u009b\u2028") {
			t.Errorf("repr holds a control character: %q", r)
		}
		text := JSON(o)
		// Repr tells 1 from 1.0 and "nan" from nan, and keeps the order.
		if same, err := ParseObject(text); err != nil || Repr(o) != Repr(same) || !utf8.ValidString(text) {
			t.Errorf("%q was written as %q: %v", doc, text, err)
		}
	})
}
