package runner

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"
)

func TestChildEnv(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "de_DE.utf8", "LC_CTYPE"), "")
	write(t, filepath.Join(dir, "tr_TR", "LC_CTYPE"), "")
	names := "en_US.utf8\x00de_DE.iso885915@euro\x00"
	head := binary.NativeEndian.AppendUint32(nil, 0xde020109)
	for _, n := range []int{0, 56, 2, 907, 60, len(names), 7500} {
		head = binary.NativeEndian.AppendUint32(head, uint32(n))
	}
	write(t, filepath.Join(dir, "locale-archive"), string(head)+strings.Repeat("-", 60-len(head))+names+"fr_FR.utf8\x00")
	for env, want := range map[string]bool{
		"": true, "LANG=C": true, "LANG=POSIX": true, "LANG=C.UTF-8": false, "LANG=C.utf8": false, "LC_ALL=C": false, "LC_ALL= LANG=C": true,
		"LANG=de_DE.UTF-8": false, "LANG=de_DE": true, "LC_CTYPE=de_DE.utf8": false, "LC_CTYPE=tr_TR": false, "LANG=tr_TR.UTF-8": true,
		"LANG=en_US.UTF-8": false, "LANG=en_US": true, "LANG=de_DE.ISO-8859-15@euro": false, "LANG=de_DE.ISO-8859-15": true,
		"LANG=fr_FR.UTF-8": true, "LANG=../en_US.utf8": true, "LANG=UTF-8": true, "LC_CTYPE=C LANG=de_DE.UTF-8": true, "LC_CTYPE= LANG=de_DE.UTF-8": false,
		"LANG=C PYTHONCOERCECLOCALE=0": false, "LC_CTYPE=C": true, "LC_CTYPE=xx_YY": true, "LC_ALL=xx_YY": false,
	} {
		if got := getenv(childEnv(strings.Fields(env), dir), "LC_CTYPE") == "C.UTF-8"; got != want {
			t.Errorf("%q: coerced is %v", env, got)
		}
	}
	for env, want := range map[string]bool{"LANG=C": true, "LANG=C.UTF-8": false, "LANG=en_US.UTF-8": true} {
		if got := getenv(childEnv([]string{env}, t.TempDir()), "LC_CTYPE") == "C.UTF-8"; got != want {
			t.Errorf("without locales, %q: coerced is %v", env, got)
		}
	}
}
