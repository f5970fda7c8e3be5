package vm

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestSuites: what a suite has instead of something stands there, and what is not named in
// the scripts' own words would be left as it is.
func TestSuites(t *testing.T) {
	t.Parallel()
	for _, s := range suites {
		all := warmUp
		for _, name := range scripts {
			text, err := imageFS.ReadFile("image/" + name)
			must.Do(t, err)
			all += string(text)
		}
		made := string(s.text([]byte(all)))
		for i := 0; i < len(s.instead); i += 2 {
			must.Contain(t, all, s.instead[i])
			if strings.Contains(made, s.instead[i]) {
				t.Errorf("%s: %q is left", s.name, s.instead[i])
			}
		}
		must.Contain(t, made, "suite="+s.name+"\n")
		dir := t.TempDir() + "/src"
		must.Do(t, s.unpack(dir))
	}
	if _, err := suiteOf("sid"); err == nil {
		t.Error("a Debian that is not there is taken")
	}
}
