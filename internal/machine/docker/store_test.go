package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// hex64 returns a digest's digits.
func hex64(digit string) string { return strings.Repeat(digit, 64) }

// TestStore finds the size of an image's configuration without the engine.
func TestStore(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string, size int64) {
		path := filepath.Join(root, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		if size > 0 {
			must.Do(t, os.Truncate(path, size))
		}
	}
	id := func(digit string) string { return "sha256:" + hex64(digit) }
	write("image/overlay2/repositories.json", fmt.Sprintf(`{"Repositories": {
		"python": {"python:3": %q, "python:latest": %q, "python@%[2]s": %[2]q},
		"ghcr.io/a/b": {"ghcr.io/a/b:1": %[1]q, "ghcr.io/a/b:lost": %[3]q, "ghcr.io/a/b:odd": "sha256:../../x"}}}`, id("1"), id("2"), id("9")), 0)
	write("image/overlay2/"+contentDir+"/"+hex64("1"), "{}", maxDocument)
	write("image/overlay2/"+contentDir+"/"+hex64("2"), "{}", maxDocument+1)
	own := Info{RootDir: root, StorageDriver: "overlay2"}.Store()
	for ref, want := range map[string]struct {
		id  string
		err error
	}{
		"python:3": {id("1"), nil}, "docker.io/library/python:3": {id("1"), nil}, "ghcr.io/a/b:1": {id("1"), nil}, id("1"): {id("1"), nil},
		"python": {id("2"), ErrTooLarge}, "python:7@" + id("2"): {id("2"), ErrTooLarge}, id("2"): {id("2"), ErrTooLarge},
		"ghcr.io/a/b:lost": {id("9"), nil}, "other": {"", nil}, "ghcr.io/a/b:odd": {"", errors.ErrUnsupported},
	} {
		got, err := own.Check(ref)
		if got != want.id || (err == nil) != (want.err == nil) || errors.Is(err, ErrTooLarge) != errors.Is(want.err, ErrTooLarge) {
			t.Errorf("%s: %s, %v", ref, got, err)
		}
	}
	write("broken/image/overlay2/repositories.json", "{", 0)
	if _, err := (Info{RootDir: filepath.Join(root, "broken"), StorageDriver: "overlay2"}).Store().Check("python"); err == nil {
		t.Error("names that cannot be read are none")
	}
	for _, unknown := range []Store{{}, (Info{RootDir: filepath.Join(root, "absent")}).Store()} {
		if got, err := unknown.Check("python"); got != "" || err != nil {
			t.Errorf("%s, %v", got, err)
		}
	}

	// containerd's: 1 is an index of 2 and of 3, which is not here. 2 has the configuration 4.
	containerd := Store{blobs: filepath.Join(root, blobDir)}
	blobs := map[string]string{
		"1": fmt.Sprintf(`{"layers": 1, "manifests": [{"digest": 7}, {"digest": %q}, {"digest": %q}]}`, id("3"), id("2")),
		"2": fmt.Sprintf(`{"config": {"digest": %q}, "layers": [{}, 2]}`, id("4")), "4": fmt.Sprintf(`{"config": {"digest": %q}}`, id("1")),
	}
	for name, row := range map[string]struct {
		digit, text string
		size        int64
		want        error
	}{
		"small":                  {"4", blobs["4"], 0, nil},
		"a large configuration":  {"4", " ", maxDocument + 1, ErrTooLarge},
		"a large manifest":       {"2", " ", maxDocument + 1, ErrTooLarge},
		"a large index":          {"1", " ", maxDocument + 1, ErrTooLarge},
		"more layers than mount": {"2", `{"layers": [` + strings.Repeat("{}, ", maxLayers) + `{}]}`, 0, ErrTooLarge},
	} {
		for digit, text := range blobs {
			write(blobDir+"/"+hex64(digit), text, 0)
		}
		write(blobDir+"/"+hex64(row.digit), row.text, row.size)
		if got, err := containerd.Check(id("1")); got != id("1") || !errors.Is(err, row.want) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if got, err := containerd.Check("python"); got != "" || err != nil {
		t.Errorf("a name in containerd's database: %s, %v", got, err)
	}
}
