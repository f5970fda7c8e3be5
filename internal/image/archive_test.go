package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBuildContext packs a Dockerfile's directory, and nothing that a link in it points to.
func TestBuildContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM x"), 0o600),
		os.MkdirAll(filepath.Join(dir, ".git/objects"), 0o755),
		os.MkdirAll(filepath.Join(dir, "sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "sub/run.sh"), []byte("#!"), 0o755),
		os.Symlink("/etc/passwd", filepath.Join(dir, "link")),
	)
	if err != nil {
		t.Fatal(err)
	}
	read := func(r io.ReadCloser) []string {
		var got []string
		for in := tar.NewReader(r); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				return got
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, h.Name+" "+h.Linkname+" "+string(text))
		}
	}
	r, err := Directory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"Dockerfile  FROM x", "link /etc/passwd ", "sub/  ", "sub/run.sh  #!"}, read(r)); d != "" {
		t.Error(d)
	}
	one, err := OneFile("D", "FROM y")
	if d := cmp.Diff([]string{"D  FROM y"}, read(one)); d != "" || err != nil {
		t.Error(d, err)
	}
	f, err := os.Create(filepath.Join(dir, "huge"))
	if err == nil {
		err = errors.Join(f.Truncate(maxContext+1), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if r, err = Directory(dir); err != nil {
		t.Fatal(err)
	}
	if _, err = io.Copy(io.Discard, r); err == nil || !strings.Contains(err.Error(), "put the Dockerfile into its own directory") {
		t.Errorf("%v, want a refusal", err)
	}
}
