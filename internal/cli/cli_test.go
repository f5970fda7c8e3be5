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

// TestRefusals checks the exit code and the message of each wrong command line, and that
// standard output stays empty.
func TestRefusals(t *testing.T) {
	t.Parallel()
	root := machinetest.B200x8().Dir(t)
	noGPU := machinetest.NoGPU().Dir(t)
	for _, tt := range []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"argument of a command that removes all", []string{"uninstall", "--now", "gpu3"}, 2, `kbnode: kbnode uninstall takes no argument "gpu3" and removes all slots, not only one; write sudo kbnode drain gpu3`},
		{"number that is none", []string{"plan", "--cpus-per-slot", "many"}, 2, `kbnode: --cpus-per-slot: "many" is not a number`},
		{"guard without a slot", []string{"guard"}, 2, `kbnode: required flag(s) "slot" not set`},
		{"hook without a name", []string{"hook"}, 2, "kbnode: accepts 1 arg(s), received 0; see kbnode hook --help"},
		{"queue with a comma", []string{"plan", "--root", root, "--queue", "b200,h100"}, 2, `kbnode: --queue: "b200,h100" is not a queue name; use letters, digits`},
		{"negative reserve", []string{"plan", "--root", root, "--reserve-cpus", "-1"}, 2, "--reserve-cpus: -1 is negative"},
		{"two wrong flags", []string{"plan", "--root", root, "--reserve-memory", "lots", "--gpus", "first"}, 2, "kbnode: --gpus: \"first\" is not a GPU"},
		{"4 GPUs or GPU 4", []string{"plan", "--root", root, "--gpus", "4"}, 2, "kbnode: --gpus 4 may mean 4 GPUs or GPU 4; write --gpu-count 4 for 4 GPUs, or --gpus 4-4 for GPU 4 alone"},
		{"no GPUs by number", []string{"plan", "--root", root, "--gpu-count", "0"}, 2, "kbnode: --gpu-count: 0 is not a number of GPUs; write 1 or more"},
		{"more GPUs than there are", []string{"plan", "--root", root, "--gpu-count", "9"}, 1, "kbnode: gpu_count: 9 GPUs are requested, but this machine has 8; write at most 8 (--gpu-count)"},
		{"two GPUs and four", []string{"plan", "--root", root, "--gpu-count", "2", "--gpus", "0-3"}, 2, "kbnode: --gpu-count: 2 and gpus, which lists 4, contradict each other"},
		{"usage with --json", []string{"plan", "--root", root, "--json", "--queue", "a,b"}, 2, "kbnode: --queue:"},
		{"GPU that is not there", []string{"plan", "--root", root, "--gpus", "0,99"}, 1, "kbnode: GPU 99 does not exist: this machine has GPUs 0 to 7; choose one of them with --gpus"},
		{"memory that does not fit", []string{"plan", "--root", root, "--memory-per-slot", "900GiB"}, 1, "--memory-per-slot"},
		{"no GPU at all", []string{"plan", "--root", noGPU}, 1, "kbnode: this machine has no GPU that kbnode can see"},
		{"root that is not there", []string{"plan", "--root", root + "/absent"}, 1, "kbnode: open machine: " + root + "/absent does not exist; name a directory with a machine's files"},
		{"root that holds no machine", []string{"inventory", "--root", t.TempDir()}, 1, "kbnode inventory --capture"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := kbnode(t, tt.args...)
			if got.code != tt.code || got.out != "" || !strings.Contains(got.err, tt.err) {
				t.Errorf("code %d, out %q, err %q; want code %d, no output and %q", got.code, got.out, got.err, tt.code, tt.err)
			}
			for line := range strings.Lines(got.err) {
				if !strings.HasPrefix(line, "kbnode: ") {
					t.Errorf("line %q does not say who speaks", line)
				}
			}
		})
	}
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
