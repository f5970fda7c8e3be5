package payload

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strconv"
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

// FuzzParseObject compares the parser with encoding/json: it accepts the same texts with the same
// values, except for Python's additions. What it reads is written the same again.
func FuzzParseObject(f *testing.F) {
	for _, doc := range []string{
		`{"a": [1, -0.5e7, "\ud83d\ude00"], "a": null}`, `{"\u0000": NaN, "b": -Infinity, "c": 1e400, "d": -0.0, "e": -0, "f": 1E3}`, `{"a":{"b":{}}}`, ` { } `, `[]`,
		`{"a": "\ud800\ud83d\ude00", "b": "\udc00\ud800\n\/\\\"", "\ude00": {"z": [], "y": {}}}`, `{"lang": "py", "tests": [{"size": 1}, {"size": 12345678901234567890}]}`,
		strings.Repeat(`{"a":[`, 30) + strings.Repeat(`]}`, 30), "{\"\u2028\u009b\": \"\u007f\"}", `{"a":01}`, `{"a":1.}`, "{\"a\":\"\t\"}", `{"a":1}}`, `{"a":1,}`, `{"a" 1}`, `{"a":"\x"}`,
		``, `{`, `{"a"}`, `{"a":}`, `{a:1}`, `{'a':1}`, `{"a":.5}`, `{"a":+1}`, `{"a":-}`, `{"a":1e}`, `{"a":[1,]}`, `{"a":[1 2]}`, `{"a":"`, `{"a":"\u12"}`, `{"a":"\u+123"}`,
		"{\"a\":\"\n\"}", `{"a":nul}`, `{"a":-infinity}`, `{"a":1}x`, "{\"a\":\u00a01}", `{"b": 1, "a": 2, "b": 3}`,
	} {
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
		switch named := strings.Contains(doc, "NaN") || strings.Contains(doc, "Infinity"); {
		case stdErr != nil && !named:
			t.Errorf("accepted what encoding/json refuses: %v", stdErr)
		case stdErr == nil && !strings.Contains(doc, `\u`): // encoding/json does not keep surrogates
			if want, got := numbers(std), plain(o); !reflect.DeepEqual(want, got) {
				t.Errorf("values are %v, with encoding/json %v", got, want)
			}
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

// numbers converts encoding/json's numbers as Python does: integers have any size, and numbers out of
// range are infinite.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = numbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = numbers(e)
		}
	case json.Number:
		if strings.ContainsAny(string(v), ".eE") {
			f, _ := strconv.ParseFloat(string(v), 64) // an infinity if out of range
			return f
		}
		if v == "-0" {
			return json.Number("0")
		}
	}
	return v
}

// plain converts a value to what encoding/json would return.
func plain(v Value) any {
	switch v := v.(type) {
	case *Object:
		m := map[string]any{}
		for k, e := range v.All() {
			m[k] = plain(e)
		}
		return m
	case []Value:
		l := make([]any, len(v))
		for i, e := range v {
			l[i] = plain(e)
		}
		return l
	case Int:
		return json.Number(v)
	case Float:
		return float64(v)
	}
	return v
}
