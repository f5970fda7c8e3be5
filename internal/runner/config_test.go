package runner

import (
	"math"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestParseLimits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]limit{
		"1": {1, "1"}, "1.50": {1.5, "1.5"}, "1e1": {10, "10.0"}, "-5": {-5, "-5"}, "-0.0": {0, "-0.0"}, "1e22": {1e22, "1e+22"},
		"true": {1, "1"}, "false": {0, "0"}, "null": {math.Inf(1), ""}, "Infinity": {math.Inf(1), "inf"},
	} {
		c := parse(t, `{"lang":"py","mode":"test","main":"a","sources":{"a":""},"test_timeout":`+text+`}`)
		if c.test != want {
			t.Errorf("%s: got %v, want %v", text, c.test, want)
		}
		if c.benchmark != (limit{180, "180"}) {
			t.Errorf("a limit that is not given: got %v", c.benchmark)
		}
	}
}

func TestEmptyCases(t *testing.T) {
	t.Parallel()
	for _, none := range []string{"[]", "{}", `""`} {
		if c := parse(t, `{"lang":"py","mode":"test","main":"a","sources":{"a":""},"tests":`+none+`}`); c.tests != "" {
			t.Errorf("%s: got %q", none, c.tests)
		}
	}
}

func TestCompilerFlags(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"lang":"cu","mode":"test","sources":{"a.cu":""},"compile_flags":["-lineinfo"],"include_dirs":["/usr"],"libraries":["cublas"],"defines":{"N":4}}`)
	if got := strings.Join(c.flags, " "); got != "-lineinfo -I/usr -lcublas -DN=4" {
		t.Errorf("got %s", got)
	}
}

func parse(t *testing.T, doc string) *config {
	t.Helper()
	o, err := payload.ParseObject(doc)
	must.Do(t, err)
	c, err := parseConfig(o)
	must.Do(t, err)
	return c
}
