package guard

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestLinkNodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	if err := os.Symlink("/dev/none", filepath.Join(dir, "1:5")); err != nil { // another driver's
		t.Fatal(err)
	}
	for range 2 {
		must.Do(t, linkNodes(dir, []string{"/dev/null", "/dev/zero", "/dev/none", file}))
	}
	for name, want := range map[string]string{"1:3": "/dev/null", "1:5": "/dev/zero"} {
		if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != want {
			t.Errorf("%s leads to %q, want %s: %v", name, got, want, err)
		}
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 3 {
		t.Errorf("links are %v: %v", all, err)
	}
}
