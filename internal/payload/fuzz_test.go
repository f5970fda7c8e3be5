package payload

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// FuzzInflate compares Inflate with the standard library where the latter accepts a
// payload, and checks the limits. A text that is encoded and inflated must not change.
func FuzzInflate(f *testing.F) {
	whole := Encode([]byte(`{"a": 1, "b": "é"}`))
	packed, err := base64.StdEncoding.DecodeString(whole)
	if err != nil {
		f.Fatal(err)
	}
	trailed := base64.StdEncoding.EncodeToString(append(packed, "more"...))
	for _, s := range []string{
		"", whole, whole[:len(whole)-2], " " + whole[:7] + "\r\n\t-_" + whole[7:], trailed, "H4sIAAAAAAAA", "eJyrVkpUsjKsBQAIJQJF====x", "eJw=", "A", "AA=A", "ä",
		Encode(nil), Encode([]byte("\xff")), Encode(make([]byte, 1<<20)), Encode(bytes.Repeat([]byte("[1, "), 16383)), `{"mode": "test"}`,
	} {
		f.Add(s)
	}
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, text string) {
		lim := Limits{Encoded: 1 << 20, JSON: limit}
		got, err := Inflate(text, lim)
		if err == nil && (len(got) > limit || !utf8.ValidString(got)) {
			t.Errorf("%d bytes were accepted, valid %v", len(got), utf8.ValidString(got))
		}
		if want, ok := plainInflate(text, limit); ok && (err != nil || got != want) {
			t.Errorf("got %.40q, %v; want %.40q", got, err, want)
		}
		// Characters outside the alphabet do not matter.
		spaced, serr := Inflate("\n"+strings.ReplaceAll(text, "e", " e-\n"), lim)
		if (serr == nil) != (err == nil) || spaced != got {
			t.Errorf("with blanks: got %.40q, %v; want %.40q, %v", spaced, serr, got, err)
		}
		if utf8.ValidString(text) && len(text) <= limit {
			if back, err := Inflate(Encode([]byte(text)), lim); err != nil || back != text {
				t.Errorf("%.40q came back as %.40q, %v", text, back, err)
			}
		}
	})
}

// plainInflate uses base64, zlib and UTF-8 of the standard library.
func plainInflate(text string, limit int) (string, bool) {
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", false
	}
	z, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", false
	}
	doc, err := io.ReadAll(io.LimitReader(z, int64(limit)+1))
	return string(doc), err == nil && len(doc) <= limit && utf8.Valid(doc)
}

// FuzzParseObject compares the parser with encoding/json: it accepts the same texts
// with the same values, except for Python's additions and the limits.
func FuzzParseObject(f *testing.F) {
	for _, doc := range []string{
		`{"a": [1, -0.5e7, "\ud83d\ude00"], "a": null}`, `{"\u0000": NaN, "b": -Infinity}`, `{"a":{"b":{}}}`, `{}`, ` { } `, `[]`, `{"a": -0, "b": -0.0, "c": 1E+400}`,
		`{"a": "\ud800", "b": "\udc00\ud800\n\/\\\""}`, `{"lang": "py", "sources": {"a.py": "é"}, "tests": [{"size": 1}, {"size": 12345678901234567890}]}`,
		strings.Repeat(`{"a":[`, 30) + strings.Repeat(`]}`, 30), `{"a":[` + strings.Repeat("1,", 1100) + `1]}`, "{\"\u2028\u009b\": \"\u007f\"}", `{"a":01}`, `{"a":1.}`, "{\"a\":\"\t\"}", `{"a":1}}`,
	} {
		f.Add(doc)
	}
	lim := Limits{Depth: 50, Values: 1000}
	f.Fuzz(func(t *testing.T, doc string) {
		if !utf8.ValidString(doc) {
			return // Inflate and ReadJSON refuse it
		}
		o, err := ParseObject(doc, lim)
		dec := json.NewDecoder(strings.NewReader(doc))
		dec.UseNumber()
		var std any
		stdErr := dec.Decode(&std)
		if _, more := dec.Token(); stdErr == nil && !errors.Is(more, io.EOF) {
			stdErr = errors.New("something follows")
		}
		_, isObject := std.(map[string]any)
		if err != nil {
			if stdErr == nil && isObject && !strings.Contains(err.Error(), "more than 1000 values") && !strings.Contains(err.Error(), "deeper than 50") {
				t.Errorf("refused what encoding/json accepts: %v", err)
			}
			return
		}
		if values, depth := measure(o); values > lim.Values || depth > lim.Depth+1 { // an empty list may be at the limit
			t.Errorf("%d values, %d deep", values, depth)
		}
		if r := Repr(o); strings.ContainsAny(r, "\n\r\x00\x1b\u009b\u2028") {
			t.Errorf("repr holds a control character: %q", r)
		}
		switch named := strings.Contains(doc, "NaN") || strings.Contains(doc, "Infinity"); {
		case stdErr != nil && !named:
			t.Errorf("accepted what encoding/json refuses: %v", stdErr)
		case stdErr == nil && !strings.Contains(doc, `\u`): // encoding/json does not keep surrogates
			if d := cmp.Diff(numbers(std), plain(o)); d != "" {
				t.Errorf("values differ from encoding/json's (-): %s", d)
			}
		}
		// What people see means the same.
		spread := indented(t, doc)
		if again := indented(t, spread); again != spread {
			t.Errorf("indented twice: %q, then %q", spread, again)
		}
		for _, shown := range []string{spread, EscapeInvisible(doc)} {
			same, err := ParseObject(shown, lim)
			if err != nil || Repr(same) != Repr(o) {
				t.Errorf("%q is shown as %q: %v", doc, shown, err)
			}
		}
	})
}

// measure returns the number of values and the depth of lists and objects.
func measure(v Value) (values, depth int) {
	values = 1
	inner := func(v Value) {
		n, d := measure(v)
		values, depth = values+n, max(depth, d)
	}
	switch v := v.(type) {
	case *Object:
		for _, e := range v.All() {
			inner(e)
		}
	case []Value:
		for _, e := range v {
			inner(e)
		}
	default:
		return values, 0
	}
	return values, depth + 1
}

// numbers converts encoding/json's numbers as Python does: integers have any size, and
// numbers out of range are infinite.
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
