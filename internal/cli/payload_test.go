package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// fed runs a command line with a standard input.
func fed(t *testing.T, in io.Reader, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	code := run(t.Context(), args, Streams{In: in, Out: &out, Err: &err})
	return result{code, out.String(), err.String()}
}

// payloadDoc has what encoding/json would not preserve: the order of keys, a duplicate key, and
// Python's numbers.
const payloadDoc = `{"mode": "test", "lang": "py", "sources": {"b.py": "", "a.py": "é\u0041"}, "tests": [], "seed": 1E3, "x": NaN, "seed": 12345678901234567890123}`

func TestPayloadThereAndBack(t *testing.T) {
	t.Parallel()
	file := put(t, t.TempDir(), "task.json", payloadDoc)
	want := result{out: payload.Encode([]byte(payloadDoc)) + "\n"}
	encoded := put(t, t.TempDir(), "payload", want.out)
	for name, got := range map[string]result{
		"file":           kbnode(t, "payload", "encode", file),
		"standard input": fed(t, strings.NewReader(payloadDoc), "payload", "encode"),
		"a dash":         fed(t, strings.NewReader(payloadDoc), "payload", "encode", "-"),
	} {
		if d := cmp.Diff(want, got, cmp.AllowUnexported(result{})); d != "" {
			t.Errorf("encode, %s: %s", name, d)
		}
	}
	for name, got := range map[string]result{
		"file":           kbnode(t, "payload", "decode", encoded),
		"standard input": fed(t, strings.NewReader("  "+want.out), "payload", "decode"),
		"a dash":         fed(t, strings.NewReader(want.out), "payload", "decode", "-"),
	} {
		if d := cmp.Diff(result{out: payloadDoc + "\n"}, got, cmp.AllowUnexported(result{})); d != "" {
			t.Errorf("decode, %s: %s", name, d)
		}
	}
	got := kbnode(t, "payload", "decode", "--indent", encoded)
	indented := `{
  "mode": "test",
  "lang": "py",
  "sources": {
    "b.py": "",
    "a.py": "é\u0041"
  },
  "tests": [],
  "seed": 1E3,
  "x": NaN,
  "seed": 12345678901234567890123
}
`
	if d := cmp.Diff(result{out: indented}, got, cmp.AllowUnexported(result{})); d != "" {
		t.Error(d)
	}
}

// Not parallel: it sets the environment.
func TestPayloadOfTheEnvironment(t *testing.T) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); payload.IsVar(name) {
			t.Setenv(name, "")
		}
	}
	const nothing = "kbnode: nothing to decode; name a file, pipe a payload in, or set KERNELBOT_PAYLOAD\n"
	if got := kbnode(t, "payload", "decode"); got.code != 2 || got.err != nothing {
		t.Errorf("without a payload: %+v", got)
	}
	doc := `{"a": "` + noiseText(300_000) + `"}` // takes more than one variable
	env := fed(t, strings.NewReader(doc), "payload", "encode", "--env")
	lines := strings.Split(strings.TrimSuffix(env.out, "\n"), "\n")
	if env.code != 0 || len(lines) < 2 {
		t.Fatalf("encode --env: code %d, %d lines, %s", env.code, len(lines), env.err)
	}
	for _, kv := range lines {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = null.Close() })
	for name, in := range map[string]io.Reader{"nothing piped in": strings.NewReader("\n"), "/dev/null": null} {
		if got := fed(t, in, "payload", "decode"); got.out != doc+"\n" {
			t.Errorf("%s: code %d, %d bytes, %s", name, got.code, len(got.out), got.err)
		}
	}
	if got := fed(t, strings.NewReader(payload.Encode([]byte("{}"))), "payload", "decode"); got.out != "{}\n" {
		t.Errorf("what is piped in goes before: %+v", got)
	}
	if one := fed(t, strings.NewReader("{}"), "payload", "encode", "--env"); one.out != "KERNELBOT_PAYLOAD="+payload.Encode([]byte("{}"))+"\n" {
		t.Errorf("one variable: %+v", one)
	}
	if got := fed(t, null, "payload", "encode"); got.code != 2 || !strings.Contains(got.err, "nothing to encode; name a JSON file") {
		t.Errorf("nothing to encode: %+v", got)
	}
}

func TestPayloadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		name, in string
		args     []string
		code     int
		want     string
	}{
		{"broken JSON", `{"a": 1,}`, []string{"encode"}, 1, "the payload is not JSON: line 1, byte 8: a key in double quotes is missing"},
		{"no file", "", []string{"encode", dir + "/absent"}, 1, "read payload: open " + dir + "/absent: no such file"},
		{"a file of nothing", "", []string{"decode", "-"}, 1, "not a zlib stream"},
		{"no JSON inside", payload.Encode([]byte("text")), []string{"decode"}, 1, "is not JSON"},
		{"JSON itself", payloadDoc, []string{"decode"}, 1, "the payload is JSON text; encode it with kbnode payload encode"},
	} {
		got := fed(t, strings.NewReader(c.in), append([]string{"payload"}, c.args...)...)
		if got.code != c.code || got.out != "" || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: %+v, want code %d and %q", c.name, got, c.code, c.want)
		}
	}
}
