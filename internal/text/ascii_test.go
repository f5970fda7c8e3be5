package text

import (
	"bytes"
	"errors"
	"testing"
)

func TestLocale(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"LANG": "C.UTF-8"}, true},
		{map[string]string{"LANG": "de_DE.utf8"}, true},
		{map[string]string{"LANG": "de_DE.UTF-8@euro"}, true},
		{map[string]string{"LANG": "de_DE"}, false},
		{map[string]string{"LANG": "de_DE.ISO-8859-1"}, false},
		{map[string]string{"LANG": "C.UTF-8", "LC_ALL": "C"}, false},
		{map[string]string{"LANG": "C.UTF-8", "LC_CTYPE": "POSIX"}, false},
		{map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, true},
		{map[string]string{"LC_CTYPE": "C.UTF-8", "LC_ALL": "C"}, false},
		{map[string]string{"LANG": "C.UTF-8", "LC_ALL": ""}, true},
		{map[string]string{"BUILDKITE": "true"}, true},
	} {
		if got := IsUTF8(func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("%v: %t", tt.env, got)
		}
	}
}

func TestASCIIWriter(t *testing.T) {
	t.Parallel()
	const in, want = "12 °C … über \xff 日本 ±1\n", "12 C ... ?ber ? ?? +/-1\n"
	for size := 1; size <= len(in); size++ { // characters come in pieces
		var b bytes.Buffer
		a := &ASCIIWriter{To: &b}
		for at := 0; at < len(in); at += size {
			piece := in[at:min(at+size, len(in))]
			if n, err := a.Write([]byte(piece)); err != nil || n != len(piece) {
				t.Fatal(n, err)
			}
		}
		if b.String() != want {
			t.Errorf("in pieces of %d: %q", size, b.String())
		}
	}
	if _, err := (&ASCIIWriter{To: full{}}).Write([]byte("…")); err == nil {
		t.Error("an error is lost")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestASCIISpellings(t *testing.T) {
	t.Parallel()
	for r, as := range asciiOf {
		if !isASCII(as) {
			t.Errorf("%q is spelled %q", r, as)
		}
	}
}
