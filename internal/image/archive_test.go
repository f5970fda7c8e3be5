package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestBuildContext packs a Dockerfile's directory, and nothing that a link in it points to.
func TestBuildContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM x"), 0o600),
		os.MkdirAll(filepath.Join(dir, "sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "sub/run.sh"), []byte("#!"), 0o755),
		os.Symlink("/etc/passwd", filepath.Join(dir, "link")),
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
}
