package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/test/machinetest"
)

var update = flag.Bool("update", false, "write the golden files again")

// result is the exit code and the output of a command line.
type result struct {
	code     int
	out, err string
}

// kbnode runs a command line.
func kbnode(t testing.TB, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	code := run(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &err})
	return result{code, out.String(), err.String()}
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("output differs from %s (-want +got); run go test ./internal/cli -update and review:\n%s", file, diff)
	}
}

// put writes a file below a machine's root.
func put(t testing.TB, root, name, text string) string {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestVersion(t *testing.T) {
	t.Parallel()
	v := kbnode(t, "version")
	if v.code != 0 || !strings.HasPrefix(v.out, "kbnode "+Version()) || kbnode(t, "--version") != v {
		t.Errorf("version: %+v", v)
	}
	if v := kbnode(t, "version", "--json"); !strings.Contains(v.out, `"version": "`+Version()+`"`) {
		t.Errorf("version --json: %+v", v)
	}
}

// contain checks that a text has all of these in it.
func contain(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %.3000s", want, text)
		}
	}
}

// full is a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	root := machinetest.VM().Dir(t)
	task, encoded := put(t, t.TempDir(), "task.json", payloadDoc), put(t, t.TempDir(), "payload", payload.Encode([]byte(payloadDoc)))
	for _, args := range [][]string{
		{"payload", "encode", task}, {"payload", "decode", encoded}, {"version"}, {"plan", "--root", root}, {"plan", "--root", root, "--json"}, {"inventory", "--root", root}, {"inventory", "--root", root, "--json"},
	} {
		var err bytes.Buffer
		code := run(t.Context(), args, Streams{Out: full{}, Err: &err})
		if code != 1 || !strings.Contains(err.String(), "no space left on device") {
			t.Errorf("%v: code %d, err %q", args, code, err.String())
		}
	}
}

func TestDrainReason(t *testing.T) {
	t.Parallel()
	for reason, ok := range map[string]bool{
		"": true, "new fan, slot 3 (ticket 12)": true, "größer": true,
		"two\nlines": false, "\x1b[31mred": false, strings.Repeat("é", maxDrainReason): true, strings.Repeat("é", maxDrainReason+1): false,
	} {
		if err := checkReason(reason); (err == nil) != ok {
			t.Errorf("%q: %v", reason, err)
		}
	}
}
