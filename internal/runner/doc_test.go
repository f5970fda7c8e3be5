package runner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	must.Do(t, err)
}

func link(t *testing.T, target, path string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.Symlink(target, path)
	}
	must.Do(t, err)
}
