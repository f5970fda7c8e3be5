package inventory_test

import (
	"archive/tar"
	"compress/bzip2"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorded are trees of real machines, from hwloc's test suite, beside the
// repository where they are at hand.
const recorded = "../../../shared/topologies"

func TestReadRecorded(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob(filepath.Join(recorded, "*.tar.bz2"))
	if err != nil || len(archives) == 0 {
		t.Skip("no recorded machines at", recorded)
	}
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.bz2")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, filepath.Join("recorded", name+".golden"), summary(read(t, filepath.Join(untar(t, archive), name))))
		})
	}
}

// untar unpacks an archive into a new directory.
func untar(t *testing.T, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close() //nolint:errcheck // every file in it was closed
	for in := tar.NewReader(bzip2.NewReader(f)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return root.Name()
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := root.MkdirAll(filepath.Dir(filepath.Clean(h.Name)), 0o755); err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeReg:
			text, err := io.ReadAll(io.LimitReader(in, 4<<20))
			if err != nil {
				t.Fatal(err)
			}
			if err := root.WriteFile(h.Name, text, 0o644); err != nil {
				t.Fatal(err)
			}
		case tar.TypeSymlink:
			if err := root.Symlink(h.Linkname, h.Name); err != nil {
				t.Fatal(err)
			}
		case tar.TypeDir:
			if err := root.MkdirAll(filepath.Clean(h.Name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}
