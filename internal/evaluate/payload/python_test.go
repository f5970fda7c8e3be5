package payload

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/gpu-mode/kbnode/test/must"
)

// askPython evaluates a Python expression in x for each document and returns the
// answers.
func askPython(t *testing.T, expr string, docs []string) []string {
	t.Helper()
	script := `import sys, json, base64, unicodedata
for line in sys.stdin:
    x = json.loads(line)
    try:
        r = ` + expr + `
    except Exception as e:
        r = "refused"
    print(json.dumps(r))`
	cmd := exec.CommandContext(t.Context(), "python3", "-c", script)
	var in strings.Builder
	for _, d := range docs {
		text, err := json.Marshal(d)
		must.Do(t, err)
		in.Write(append(text, '\n'))
	}
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.Output()
	if err != nil {
		t.Skip("python3 cannot be asked: ", err)
	}
	var answers []string
	for line := range strings.Lines(string(out)) {
		var s string
		must.Do(t, json.Unmarshal([]byte(line), &s))
		answers = append(answers, s)
	}
	if len(answers) != len(docs) {
		t.Fatalf("%d answers to %d questions", len(answers), len(docs))
	}
	return answers
}

// The random inputs have a fixed seed, so that a difference can be reproduced.
func TestAgreesWithPython(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	docs := append([]string{
		`1`, `-0`, `-0.0`, `1E3`, `1e15`, `1e16`, `0.0001`, `0.00001`, `5e-324`, `1e999`, `-1e999`, `1e-999`, `NaN`, `Infinity`, `-Infinity`, `1.5e300`,
		`123456789012345678901234567890`, `true`, `null`, `[]`, `{}`, `[1, "a", null]`, `"it's"`, `"'\""`, `"\u0000\u001f\u007f"`, `"\u00a0\u2028"`,
		`"\ud83d\ude00 \ud83d \ude00\ud83d"`, `"\udbff\udfff"`, `"é\ufffd"`,
	}, someDocs...)
	for range 3000 {
		f := math.Float64frombits(r.Uint64())
		docs = append(docs, fmt.Sprintf("%g", f), fmt.Sprint(r.NormFloat64()*math.Pow(10, float64(r.IntN(40)-20))))
		docs = append(docs, scramble(r, `0123456789.eE+-`, 8), scramble(r, `{}[],:" 1-aN\u00d8\ud83d\ude00null`, 12))
	}
	for i, want := range askPython(t, "repr(json.loads(x))", docs) {
		got := "refused"
		if o, err := ParseObject(`{"v": ` + docs[i] + `}`); err == nil && o.Len() == 1 {
			v, _ := o.Get("v")
			got = Repr(v)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", docs[i], got, want)
		}
	}
}

func scramble(r *rand.Rand, letters string, n int) string {
	var b strings.Builder
	for range r.IntN(n) + 1 {
		b.WriteByte(letters[r.IntN(len(letters))])
	}
	return b.String()
}

// TestPrintable compares characters that both Unicode tables have: all of the first
// planes, and some of the rest.
func TestPrintable(t *testing.T) {
	t.Parallel()
	var chars []string
	for r := rune(1); r <= unicode.MaxRune; r++ {
		if (r < 0xD800 || r > 0xDFFF) && (r < 0x4000 || r%17 == 0) {
			chars = append(chars, string(r))
		}
	}
	for i, want := range askPython(t, `repr(x) if unicodedata.category(x) != "Cn" else ""`, chars) {
		if r := []rune(chars[i])[0]; want != "" && Repr(chars[i]) != want {
			t.Errorf("%U: got %s, want %s", r, Repr(chars[i]), want)
		}
	}
}
