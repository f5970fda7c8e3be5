package agent

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A job puts something in the record's place: it is replaced, and nothing else is
// written to.
func TestWriteRecord(t *testing.T) {
	t.Parallel()
	const text = `{"schema":1}`
	for name, put := range map[string]func(t *testing.T, at, outside string) error{
		"nothing": func(*testing.T, string, string) error { return nil },
		"a file": func(_ *testing.T, at, _ string) error {
			return os.WriteFile(at, []byte("forged, and longer than that"), 0o444)
		},
		"a link out":              func(_ *testing.T, at, outside string) error { return os.Symlink(outside, at) },
		"a link inside":           func(_ *testing.T, at, _ string) error { return os.Symlink("result.json", at) },
		"a link to nothing":       func(_ *testing.T, at, outside string) error { return os.Symlink(outside+".new", at) },
		"a link to itself":        func(_ *testing.T, at, _ string) error { return os.Symlink("node.json", at) },
		"a second name of a file": func(_ *testing.T, at, outside string) error { return os.Link(outside, at) },
		"a pipe":                  func(_ *testing.T, at, _ string) error { return syscall.Mkfifo(at, 0o600) },
		"a directory":             func(_ *testing.T, at, _ string) error { return os.MkdirAll(at+"/deep", 0o700) },
		"a socket": func(t *testing.T, at, _ string) error {
			l, err := net.Listen("unix", at)
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			outside, dir := filepath.Join(top, "outside"), filepath.Join(top, "c")
			if err := os.WriteFile(outside, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(dir, recordName)
			if err := os.WriteFile(filepath.Join(dir, "result.json"), []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := put(t, at, outside); err != nil {
				t.Fatal(err)
			}
			if err := WriteRecord(dir, text); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(at)
			if err != nil || info.Mode() != 0o644 {
				t.Errorf("%v, %v", info, err)
			}
			for file, want := range map[string]string{at: text, outside: "precious", filepath.Join(dir, "result.json"): "precious"} {
				if got, err := os.ReadFile(file); string(got) != want || err != nil {
					t.Errorf("%s has %q, %v; want %q", file, got, err, want)
				}
			}
			if _, err := os.Lstat(outside + ".new"); err == nil {
				t.Error("it wrote outside")
			}
			left, err := filepath.Glob(filepath.Join(dir, ".node.json.*"))
			if moved := name == "a directory"; err != nil || (len(left) == 1) != moved || len(left) > 1 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
	t.Run("a checkout that is shut", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		if err := WriteRecord(dir, text); err == nil && os.Getuid() != 0 {
			t.Error("it wrote")
		}
		if err := WriteRecord(dir+"/none", text); err == nil || !strings.HasPrefix(err.Error(), "write node.json: ") {
			t.Errorf("without a checkout: %v", err)
		}
	})
}
