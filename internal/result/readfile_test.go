package result

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestReadFile checks that ReadFile does not read what a program put in a file's place.
func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("text"), 0o600), os.Link(at("file"), at("same")), os.Symlink("file", at("link")),
		os.Symlink("/etc/passwd", at("outside")), os.Symlink("none", at("broken")), os.Mkdir(at("dir"), 0o700), unix.Mkfifo(at("pipe"), 0o600),
		os.WriteFile(at("large"), nil, 0o600), os.Truncate(at("large"), MaxBytes+1),
	); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	must.Do(t, err)
	defer root.Close() //nolint:errcheck // a directory
	for name, reads := range map[string]bool{"file": true, "same": true, "link": false, "outside": false, "broken": false, "dir": false, "pipe": false, "none": false, "large": false} {
		text, err := ReadFile(root, name)
		if (err == nil) != reads || reads && string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}
