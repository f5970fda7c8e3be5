package machinetest

import (
	"archive/tar"
	"compress/bzip2"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unused matches files of a recorded machine that nothing reads.
var unused = regexp.MustCompile(`/(cache/index[0-2]|msi_irqs|power|access\d|cpufreq|cpuidle|smt_snooze_delay)(/|$)|/(memory\d+|vmstat|numastat|sensor_\d+)$`)

// Unpack unpacks the archive of a recorded machine, from hwloc's test suite, and returns its
// root. It skips the test if there is no such file.
func Unpack(t testing.TB, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no recorded machine at", archive)
	}
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
			return filepath.Join(root.Name(), strings.TrimSuffix(filepath.Base(archive), ".tar.bz2"))
		}
		if err != nil {
			t.Fatal(err)
		}
		if unused.MatchString(h.Name) {
			continue
		}
		dir := filepath.Clean(h.Name)
		if h.Typeflag != tar.TypeDir {
			dir = filepath.Dir(dir)
		}
		err = root.MkdirAll(dir, 0o755)
		switch h.Typeflag {
		case tar.TypeReg:
			var text []byte
			if text, err = io.ReadAll(io.LimitReader(in, 4<<20)); err == nil {
				err = root.WriteFile(h.Name, text, 0o644)
			}
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, h.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
