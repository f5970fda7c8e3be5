package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
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
		syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	)
	must.Do(t, err)
	read := func(r io.ReadCloser) []string {
		var got []string
		for in := tar.NewReader(r); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				return got
			}
			must.Do(t, err)
			text, err := io.ReadAll(in)
			must.Do(t, err)
			got = append(got, h.Name+" "+h.Linkname+" "+string(text))
		}
	}
	r, err := Directory(dir)
	must.Do(t, err)
	must.Equal(t, []string{"Dockerfile  FROM x", "link /etc/passwd ", "sub/  ", "sub/run.sh  #!"}, read(r))
	one, err := OneFile("D", "FROM y")
	must.Do(t, err)
	must.Equal(t, []string{"D  FROM y"}, read(one))
	f, err := os.Create(filepath.Join(dir, "huge"))
	if err == nil {
		err = errors.Join(f.Truncate(maxContext+1), f.Close())
	}
	must.Do(t, err)
	if r, err = Directory(dir); err != nil {
		t.Fatal(err)
	}
	if _, err = io.Copy(io.Discard, r); err == nil || !strings.Contains(err.Error(), "put the Dockerfile into its own directory") {
		t.Errorf("%v, want a refusal", err)
	}
}
