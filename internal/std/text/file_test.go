package text

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestFileError reads what cannot be read. What callers ask of an error stays true.
func TestFileError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, isDir := os.ReadFile(dir)
	_, missing := os.ReadFile(filepath.Join(dir, "x"))
	for _, c := range []struct {
		err  error
		want string
		is   error
	}{
		{nil, "", nil},
		{missing, "f does not exist; add it", fs.ErrNotExist},
		{&fs.PathError{Op: "open", Path: "f", Err: fs.ErrPermission}, "you may not read f; let its owner do it, or use sudo", fs.ErrPermission},
		{isDir, "f is a directory; name a file", nil},
		{&fs.PathError{Op: "read", Path: "f", Err: errors.New("input/output error")}, "read f: input/output error", nil},
		{fs.ErrClosed, "read f: file already closed", fs.ErrClosed},
	} {
		err := FileError("f", c.err, "add it")
		must.Err(t, err, c.want)
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%v is no %v", err, c.is)
		}
	}
}
