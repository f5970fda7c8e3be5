package docker

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuildArgs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"FROM x": "",
		"ARG BASE=debian:13\nFROM ${BASE}\narg BASE\nARG A B=2 C=\"x\"\n":             "BASE A B C",
		"FROM x\nARG \\\n  # what it is\n  A=1 \\\r\n  B\n# ARG NO\n RUN echo ARG NO": "A B",
		"FROM x\nRUN a \\\n && ARGS=1 b\nARG\nARG =x":                                 "",
	} {
		got, err := BuildArgs(in)
		if d := cmp.Diff(want, strings.Join(got, " ")); d != "" || err != nil {
			t.Errorf("%q: %v %s", in, err, d)
		}
	}
	for _, in := range []string{"", "# FROM x", "RUN FROM x", "\x7fELF\x00FROM"} {
		if got, err := BuildArgs(in); err == nil {
			t.Errorf("%q is taken for a Dockerfile with %q", in, got)
		}
	}
	for name, want := range map[string]bool{"A": true, "a": false, "HTTPS_PROXY": true, "https_proxy": true, "Https_Proxy": false, "": false} {
		if TakesArg([]string{"A"}, name) != want {
			t.Errorf("TakesArg(%q) is not %v", name, want)
		}
	}
}
