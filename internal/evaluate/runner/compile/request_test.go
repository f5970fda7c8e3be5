package compile

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestLead finds compilers' paths in arguments, and takes no longer for many.
func TestLead(t *testing.T) {
	t.Parallel()
	o := &Offer{dir: "/tmp/tmp1/c", compilers: map[string]string{"gcc": "/usr/bin/gcc", "g++": "/usr/bin/g++"}}
	many := strings.Repeat("/tmp/tmp1/c/", 1<<17)
	for text, want := range map[string]string{
		"/tmp/tmp1/c/gcc":                        "/usr/bin/gcc",
		"-ccbin=/tmp/tmp1/c/g++,/tmp/tmp1/c/gcc": "-ccbin=/usr/bin/g++,/usr/bin/gcc",
		"/tmp/tmp1/c/gcc -O2":                    "/usr/bin/gcc -O2",
		"/tmp/tmp1/c/gcc-13 /tmp/tmp1/c/":        "/tmp/tmp1/c/gcc-13 /tmp/tmp1/c/",
		"/tmp/tmp1/cgcc":                         "/tmp/tmp1/cgcc",
		many:                                     many,
	} {
		if got := o.lead(text); got != want {
			t.Errorf("%.100q became %.100q, want %.100q", text, got, want)
		}
	}
	must.Equal(t, "", o.lead(""))
}
