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

// TestCompleteChecks offers groups and, with a description, checks. testdata/typed.txt has other flags.
func TestCompleteChecks(t *testing.T) {
	t.Parallel()
	contain(t, kbnode(t, "__complete", "doctor", "--only", "").out, "\nbuildkite\n", "\ndocker-config\t")
}

func TestLogUnits(t *testing.T) {
	t.Parallel()
	all := []string{"gpu0", "gpu10"}
	units := func(k string) []string {
		return []string{"buildkite-agent-gpu" + k + ".service", "kbnode-guard-gpu" + k + ".service", "buildkite-gpu" + k + ".slice"}
	}
	for _, tt := range []struct {
		has, args, want []string
		err             string
	}{
		{has: all, args: []string{"gpu10"}, want: units("10")},
		{has: all, args: []string{"0"}, want: units("0")},
		{has: all, want: append(append([]string{"kbnode.service"}, units("0")...), units("10")...)},
		{has: all, args: []string{"gpu1"}, err: `this node has no slot "gpu1"; it has gpu0, gpu10`},
		{err: "this machine is not set up as a node"},
	} {
		got, err := logUnits(tt.has, tt.args)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %v, want %q; %s", tt.args, err, tt.err, diff)
		}
	}
}

func TestSlotsOfUnits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{
		"buildkite-agent-gpu10.service", "buildkite-agent-gpu2.service", "buildkite-agent-gpux.service",
		"kbnode-guard-gpu3.service", "kbnode.service", "buildkite-agent-gpu2.service.d/mine.conf",
	} {
		put(t, root, name, "")
	}
	spell := func(k int) string { return strings.Repeat("i", k) }
	if diff := cmp.Diff([]string{"ii", "iiiiiiiiii"}, slots(root, spell)); diff != "" {
		t.Error(diff)
	}
	if got := slots(root+"/none", spell); got != nil {
		t.Errorf("without units: %q", got)
	}
}
