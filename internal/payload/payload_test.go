package payload

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	doc := `{"b": 1, "a": {"z": [1, 2.5, null]}, "b": "last"}`
	text := Encode([]byte(doc))
	wrapped := " " + text[:5] + "\r\n\t" + text[5:9] + "-_!*" + text[9:]
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	trailed := base64.StdEncoding.EncodeToString(append(packed, "trailing"...))
	for name, in := range map[string]string{"plain": text, "foreign characters": wrapped, "bytes after the stream": trailed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := Decode(in, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := Repr(o), `{'b': 'last', 'a': {'z': [1, 2.5, None]}}`; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	whole := Encode([]byte(`{"key": "value and some more"}`))
	for _, c := range []struct {
		name, in string
		lim      Limits
		want     string // in the message
	}{
		{"no base64 at all", "!", Limits{}, "not a zlib stream"},
		{"one character", "A", Limits{}, "one more than a multiple of 4"},
		{"cut text", whole[:len(whole)-5], Limits{}, "padding is missing"},
		{"cut stream", whole[:len(whole)-8], Limits{}, "send it whole"},
		{"not ASCII", "ä", Limits{}, "not ASCII"},
		{"gzip", base64.StdEncoding.EncodeToString(zipped.Bytes()), Limits{}, "compress it with zlib"},
		{"not UTF-8", Encode([]byte("{\"a\": \"\xff\"}")), Limits{}, "not UTF-8"},
		{"byte order mark", Encode([]byte("\ufeff{}")), Limits{}, "not JSON"},
		{"a list", Encode([]byte("[]")), Limits{}, "is a JSON list; send an object"},
		{"two values", Encode([]byte("{} {}")), Limits{}, "something follows"},
		{"too deep", Encode([]byte(`{"a": ` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + "}")), Limits{}, "deeper than 1000"},
		{"too many values", Encode([]byte(`{"a": [1, 2, 3]}`)), Limits{Values: 4}, "more than 4 values"},
		{"text over the limit", whole, Limits{Encoded: 10}, "over 10 bytes"},
		{"JSON over the limit", whole, Limits{JSON: 10}, "more than 10 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode(c.in, c.lim)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// Not parallel: it measures the allocations of the whole process.
func TestBombCostsNoMemory(t *testing.T) {
	bomb := Encode(make([]byte, 90<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Decode(bomb, Limits{})
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Fatal("a bomb was accepted")
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("refusing a bomb allocated %d bytes", n)
	}
}

func TestFromEnv(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("abcdefghij", 25_000)
	for _, c := range []struct {
		name       string
		env        []string
		text, from string
		refused    string
	}{
		{name: "nothing", env: []string{"HOME=/", "KERNELBOT_PAYLOAD=", "KERNELBOT_PAYLOAD_ID=7"}},
		{name: "current name", env: []string{"SUBMISSION_PAYLOAD=old", "KERNELBOT_PAYLOAD=new"}, text: "new", from: Var},
		{name: "old name", env: []string{"SUBMISSION_PAYLOAD=old"}, text: "old", from: OldVar},
		{name: "pieces", env: []string{"KERNELBOT_PAYLOAD_1=b", "KERNELBOT_PAYLOAD_0=a"}, text: "ab", from: "KERNELBOT_PAYLOAD_0"},
		{name: "a gap", env: []string{"KERNELBOT_PAYLOAD_2=b", "KERNELBOT_PAYLOAD_0=a"}, refused: "KERNELBOT_PAYLOAD_1 is not set"},
		{name: "what Environ made", env: Environ(long), text: long, from: "KERNELBOT_PAYLOAD_0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text, from, err := FromEnv(c.env)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("got %v, want %q in it", err, c.refused)
				}
				return
			}
			if err != nil || text != c.text || from != c.from {
				t.Errorf("got %.20q from %q, %v", text, from, err)
			}
		})
	}
	for _, kv := range Environ(long) {
		if name, _, _ := strings.Cut(kv, "="); len(kv) >= 131_072 || !IsVar(name) {
			t.Errorf("%s: %d bytes", name, len(kv))
		}
	}
}

func TestObjectKeepsOrder(t *testing.T) {
	t.Parallel()
	var o Object
	var want []string
	for i := range 100 { // enough keys for an index
		key := fmt.Sprint(100 - i)
		o.Set(key, nil)
		want = append(want, key)
	}
	o.Set("50", true)
	var got []string
	for k, v := range o.All() {
		got = append(got, k)
		if (v == true) != (k == "50") {
			t.Errorf("%s is %v", k, v)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, ok := o.Get("101"); ok || o.Len() != 100 {
		t.Error("a key is too much")
	}
}
