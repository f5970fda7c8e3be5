package agent

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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

// The job's result does not depend on the record.
func TestRecordFails(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, message string
		status        int
		want          string // in the error
	}{
		{"a record", `{"schema":1}`, http.StatusOK, ""},
		{"an older guard", "kbnode: POST /kbnode/record is nothing that a job may ask", http.StatusForbidden, "403 Forbidden: kbnode: POST"},
		{"one that was told of no job", "kbnode: no record", http.StatusNotFound, "404 Not Found: kbnode: no record"},
		{"no answer", "", http.StatusNoContent, "a record of 0 bytes"},
		{"too long", strings.Repeat("x", maxRecord+1), http.StatusOK, "a record of 16385 bytes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.URL.Path != "/kbnode/record" {
					t.Errorf("asked %s %s", r.Method, r.URL.Path)
				}
				w.WriteHeader(row.status)
				if row.message != "" {
					_ = json.NewEncoder(w).Encode(map[string]string{"message": row.message})
				}
			})}
			go func() { _ = server.Serve(l) }()
			t.Cleanup(func() { _ = server.Close() })
			text, err := record(t.Context(), socket)
			if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) || err == nil && text != row.message {
				t.Errorf("got %q, %v; want %q", text, err, row.want)
			}
		})
	}
	t.Run("no guard is not waited for", func(t *testing.T) {
		t.Parallel()
		begun := time.Now()
		if _, err := record(t.Context(), filepath.Join(t.TempDir(), "s")); err == nil || time.Since(begun) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}
