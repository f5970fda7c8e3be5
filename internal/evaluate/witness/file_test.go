package witness

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestTake reads what the runner wrote, and nothing that a submission may have put there instead. Nothing stays.
func TestTake(t *testing.T) {
	t.Parallel()
	many := []Finding{}
	for range MaxFindings + 1 {
		many = append(many, Finding{"leaderboard", "benchmark.0", strings.Repeat("x", 2*maxReason)})
	}
	encoded := func(found []Finding) string {
		body, err := Encode(found)
		must.Do(t, err)
		return string(body)
	}
	one := []Finding{{"leaderboard", "benchmark.0", "the mean is negative"}}
	for _, tt := range []struct {
		name, status string
		put          func(name string) error
		want         []Finding
		err          string
	}{
		{"none", "0", func(string) error { return nil }, nil, ""},
		{"one", "0", func(name string) error { return os.WriteFile(name, []byte(encoded(one)), 0o600) }, one, ""},
		{"with an error in the result", "1", func(name string) error { return os.WriteFile(name, []byte(encoded(one)), 0o600) }, one, ""},
		{"of a job that was killed", "137", func(name string) error { return os.WriteFile(name, []byte(encoded(one)), 0o600) }, nil, ""},
		{"of a job whose end is not known", "-1", func(name string) error { return os.WriteFile(name, []byte(encoded(one)), 0o600) }, nil, ""},
		{"control characters", "0", func(name string) error {
			return os.WriteFile(name, []byte(`[{"evaluation":"a\u001b[31m","case":"\n","reason":"b\nc"}]`), 0o600)
		}, []Finding{{"a", "", "b c"}}, ""},
		{"no JSON", "0", func(name string) error { return os.WriteFile(name, []byte("{"), 0o600) }, nil, "read .kbnode-implausible.json: unexpected end of JSON input"},
		{"too large", "0", func(name string) error { return os.WriteFile(name, make([]byte, maxBytes+1), 0o600) }, nil, "it has more than 131072 bytes"},
		{"a directory", "0", func(name string) error { return os.MkdirAll(filepath.Join(name, "deep"), 0o700) }, nil, "is not a file"},
		{"a pipe", "0", func(name string) error { return syscall.Mkfifo(name, 0o600) }, nil, "is not a file"},
		{"a link", "0", func(name string) error { return os.Symlink("other", name) }, nil, "is not a file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			must.Do(t, errors.Join(tt.put(filepath.Join(dir, File)), os.WriteFile(filepath.Join(dir, "other"), []byte(encoded(one)), 0o600)))
			got, err := Take(dir, tt.status)
			must.Err(t, err, tt.err)
			if len(got) != len(tt.want) || len(got) > 0 && got[0] != tt.want[0] {
				t.Errorf("%v", got)
			}
			if _, err := os.Lstat(filepath.Join(dir, File)); !errors.Is(err, fs.ErrNotExist) {
				t.Error("it is still there: ", err)
			}
		})
	}
	bounded := Clean(many)
	if len(bounded) != MaxFindings || len(bounded[0].Reason) > maxReason+3 {
		t.Errorf("%d findings, the first with %d bytes", len(bounded), len(bounded[0].Reason))
	}
	if n := len(encoded(bounded)); n > maxBytes {
		t.Errorf("as many as there may be take %d bytes", n)
	}
}
